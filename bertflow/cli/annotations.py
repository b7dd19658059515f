"""What a command line can say of an annotation.

    "str | Path | SentenceEncoder"   -> str                 an encoder can only be handed over in Python
    "Sequence[str] | str | Path"     -> str                 sentences likewise; a file of them can be named
    list[str] | str | None           -> list[str] | str     None is what was not given
    Callable[[int], None]            -> nothing             the parameter is for Python alone

Annotations may be strings that name what is imported for the type checker alone: those names are left out, and nothing
is imported for them.
"""

import ast
import collections.abc
import operator
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin

ORDER = (bool, int, float)
"""Tried first, in this order; a Path and a str, which take anything, come last."""
PYTHON_ONLY = (collections.abc.Sequence, collections.abc.Mapping)
CONTAINERS = (list, tuple, dict, collections.abc.Sequence, collections.abc.Mapping)


def command_line_type(annotation: Any, namespace: Mapping[str, Any]) -> Any | None:
    """The part of an annotation that a command line can say; None where it can say nothing.

    Args:
        annotation: Annotation of a parameter; may be a string.
        namespace: Names that it may use: the globals of the function.
    """
    names = {**vars(typing), **vars(collections.abc), "Path": Path, **namespace}
    found = [kind for kind in _members(annotation, names) if kind not in (Any, types.NoneType) and _can_be_said(kind)]
    if str in found or Path in found:  # then a Sequence is one of sentences and a Mapping one of texts, for Python
        found = [kind for kind in found if get_origin(kind) not in PYTHON_ONLY]
    if str in found:
        found = [kind for kind in found if kind is not Path]
    found = [list[get_args(kind)] if get_origin(kind) is collections.abc.Sequence else kind for kind in found]  # type: ignore[misc]
    return reduce(operator.or_, sorted(found, key=_place)) if found else None


def members(kind: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else, itself."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _members(annotation: Any, names: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        for leaf in _leaves(ast.parse(annotation, mode="eval").body):
            try:
                known = eval(leaf, dict(names))
            except (NameError, AttributeError):
                continue  # imported for the type checker alone
            yield from _members(types.NoneType if known is None else known, names)
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member, names)
    else:
        yield annotation


def _leaves(node: ast.expr) -> Iterator[str]:
    """The source of each member of ``A | B | C``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _leaves(node.left)
        yield from _leaves(node.right)
    else:
        yield ast.unparse(node)


def _can_be_said(kind: Any) -> bool:
    if kind in (str, Path, Any, types.NoneType, Ellipsis, *ORDER, *CONTAINERS) or is_dataclass(kind):
        return True
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return all(map(_can_be_said, inner))
    return origin is Literal or (origin in CONTAINERS and all(map(_can_be_said, inner)))


def _place(kind: Any) -> int:
    return ORDER.index(kind) if kind in ORDER else len(ORDER) + (kind in (Path, str))
