"""The options of a command, from the signature and the docstring of its function.

Annotations say what can be typed:

    "str | Path | SentenceEncoder"   -> str                 an encoder can only be handed over in Python
    "Sequence[str] | str | Path"     -> str                 sentences likewise; a file of them can be named
    list[str] | str | None           -> list[str] | str     None is what was not given
    Callable[[int], None]            -> nothing             the parameter is for Python alone

They may be strings that name what is imported for the type checker alone: those names are left out, and nothing is
imported for them.
"""

import builtins
import collections.abc
import inspect
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
from typing_extensions import get_original_bases, is_typeddict

from bertflow.cli.commands import OWN, Row
from bertflow.cli.printing import say
from bertflow.progress import watched

FILLED: Mapping[str, Callable[[], Any]] = {
    "progress": lambda: watched() or None,
    "say": lambda: say,
}
"""Parameters that a command fills itself: whether to show bars, and where lines go that come before the result."""
NAMED = {"open_report": "open", "show_lines": "list"}
"""Parameters whose option has another name in every command."""
METAVARS: Mapping[str, Sequence[str]] = {
    "FILE": ("candidate_lists", "fit_on", "frequencies", "labels", "nli", "queries", "results", "skip_bad", "vectors"),
    "FOLDER|FILE": ("golden",),
    "DIR": ("data_dir", "save", "store"),
    "PATH": ("output",),
    "MODEL": ("encoder", "models", "nli_models"),
    "OWNER/NAME": ("push",),
    "LIST": ("candidates", "columns", "compare", "layers", "tokens"),
    "TASK=X": ("fail_below",),
    "TASK": ("lexical",),
    "TEXT": ("domain", "texts"),
    "A B": ("pair",),
}
"""What stands for the value of a parameter in the help, where it is not its name in capitals."""
ORDER = (bool, int, float)
"""Types that are tried first, in this order; a Path and a str, which take anything, come last."""
PYTHON_ONLY = (collections.abc.Sequence, collections.abc.Mapping)
CONTAINERS = (list, tuple, dict, *PYTHON_ONLY)


@dataclass(frozen=True)
class Option:
    """A parameter that a command line can give."""

    name: str
    kind: Any
    """Its annotation, as far as a command line can say it."""
    default: Any
    help: str
    required: bool = False
    parameter: str = ""
    """The parameter of the function; that of the same name where it is empty."""

    @property
    def group(self) -> Any | None:
        """The dataclass, or the TypedDict, whose fields are options, as ``--data.sentences``; else None."""
        return next(filter(is_group, members(self.kind)), None)

    @property
    def metavar(self) -> str:
        """What stands for its value in the help."""
        if get_origin(self.kind) is Literal:
            return f"{{{','.join(map(str, get_args(self.kind)))}}}"
        return next((shown for shown, names in METAVARS.items() if self.name in names), self.name.upper())


def described(thing: Any) -> docstring_parser.Docstring:
    """The docstring of a function or class, taken apart."""
    return docstring_parser.parse(inspect.getdoc(thing) or "", docstring_parser.DocstringStyle.GOOGLE)


def examples_of(docstring: docstring_parser.Docstring) -> list[str]:
    """Command lines, and what else is shown of their form."""
    lines = [line for one in docstring.examples for line in (one.description or "").splitlines()]
    return [line for line in lines if not line.startswith("```")]


def options_of(function: Callable[..., Any], row: Row) -> Iterator[Option]:
    """What can be given to a command, in the order of its function's signature."""
    helps = {one.arg_name: plain(one.description) for one in described(function).params}
    left_out = {*FILLED, *row.python_only, *(("trainer", "options") if row.trainer else ())}
    known = {**vars(builtins), **vars(collections.abc), **function.__globals__, "kinds": _Names()}
    kinds = get_type_hints(function, localns=_Names(known))
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (shape,) = get_args(parameter.annotation)
            yield from (option for option in options_in(shape) if option.name not in left_out)
        elif name not in left_out:
            kind = command_line_type(kinds.get(name))
            required = parameter.default is parameter.empty
            if kind is not None and parameter.kind is not parameter.VAR_POSITIONAL:
                default, option = None if required else parameter.default, {**NAMED, **row.named}.get(name, name)
                yield Option(option, kind, default, helps.get(name, ""), required, name)
            else:
                assert not required, f"{function.__name__}: no command line can say the parameter {name}"
    yield from (Option(name, *OWN[name]) for name in OWN if name in row.own)


def options_in(shape: Any) -> Iterator[Option]:
    """The keys of a TypedDict, and of those that it extends, as their docstrings explain them."""
    kinds = get_type_hints(shape)
    for each in filter(is_typeddict, (shape, *get_original_bases(shape))):
        for one in described(each).params:
            yield Option(one.arg_name, command_line_type(kinds[one.arg_name]), None, plain(one.description))


def is_group(kind: Any) -> bool:
    """Whether the fields of a type are options."""
    return is_dataclass(kind) or is_typeddict(kind)


class _Unknown:
    """A class that is not loaded for a help, as no command line can say it."""


class _Names(dict[str, Any]):
    """Names of annotations; what is not among them is not loaded."""

    def __missing__(self, name: str) -> type:
        return _Unknown

    __getattr__ = __missing__


def command_line_type(annotation: Any) -> Any | None:
    """The part of an annotation that a command line can say; None where it can say nothing."""
    found = [kind for kind in members(annotation) if kind not in (Any, types.NoneType) and _can_be_said(kind)]
    if str in found or Path in found:  # then a Sequence is one of sentences and a Mapping one of texts, for Python
        found = [kind for kind in found if get_origin(kind) not in PYTHON_ONLY]
    if str in found:
        found = [kind for kind in found if kind is not Path]
    found = [list[get_args(kind)] if get_origin(kind) is collections.abc.Sequence else kind for kind in found]  # type: ignore[misc]
    return reduce(operator.or_, sorted(found, key=_place)) if found else None


def members(kind: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else, itself."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _can_be_said(kind: Any) -> bool:
    if kind in (str, Path, Any, types.NoneType, Ellipsis, *ORDER, *CONTAINERS) or is_group(kind):
        return True
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return all(map(_can_be_said, inner))
    return origin is Literal or (origin in CONTAINERS and all(map(_can_be_said, inner)))


def _place(kind: Any) -> int:
    return ORDER.index(kind) if kind in ORDER else len(ORDER) + (kind in (Path, str))


def plain(text: str | None) -> str:
    """Prose of a docstring for a terminal."""
    return (text or "").replace("``", "")
