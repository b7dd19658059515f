"""Choose a row of a table by its name; rows of a user's own; the names of a tree of options; one thing or several."""

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from bertflow.errors import DataError, MissingCodeError, UnknownNameError, UsageError, reason_of

Choice = TypeVar("Choice")
NOT_OWN = ("bertflow", "torch", "nflows", "sklearn", "functools", "builtins")
"""Packages of what is saved; code of all other packages is a user's own."""
MEANT = " Did you mean "
"""Words before the name that is close to an unknown one."""


def lookup(kind: str, table: Mapping[str, Choice], name: str) -> Choice:
    """Return ``table[name]``, or say which names there are.

    Args:
        kind: What the table holds, for the message: "pooling", "task".
        table: The known choices.
        name: The one asked for.

    Raises:
        UnknownNameError: If the table has no such row.
    """
    try:
        return table[name]
    except (KeyError, TypeError):  # a list is not hashable
        raise UnknownNameError(
            f"Unknown {kind} {name!r}. Known: {', '.join(table)}.{did_you_mean(str(name), table)}"
        ) from None


def several(given: Any) -> list[Any]:
    """What may be given alone or in a list, as a list: a text is one thing, None is nothing."""
    if given is None:
        return []
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def as_texts(sentences: Iterable[str]) -> list[str]:
    """The sentences as a list; of a table or a mapping it would be the names, so these are refused."""
    if isinstance(sentences, Mapping) or hasattr(sentences, "columns"):
        raise DataError(f"Sentences must be a list of texts, got a {type(sentences).__name__}. Give one column of it.")
    return list(sentences)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that names the closest of the known names, else one that begins so; empty if there is none.

    A space stands before it.
    """
    names = list(known)
    begun = [one for one in names if len(name) > 2 and one.startswith(name)]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.65) or begun
    return f"{MEANT}{close[0]}?" if close else ""


def own_modules(*parts: object) -> list[str]:
    """Modules of a user's own in which some classes and functions, or the classes of objects, are defined."""
    names = {getattr(part, "__module__", "builtins") for part in parts}
    return sorted(name for name in names if name.partition(".")[0] not in NOT_OWN)


@contextmanager
def own_code(place: object, modules: Sequence[str]) -> Iterator[None]:
    """Name the modules of a user's own that ``place`` needs, if it cannot be read and they are not imported.

    Raises:
        MissingCodeError: With the modules; they are never imported because a folder names them.
    """
    try:
        yield
    except (TypeError, RuntimeError, UsageError) as error:
        if not (missing := [name for name in modules if name == "__main__" or name not in sys.modules]):
            raise
        reason = reason_of(error).partition(MEANT)[0]
        raise MissingCodeError(
            f"{place} needs code of your own, in {', '.join(missing)}: {reason}. Add --import {missing[0]}, "
            "or import it before in Python."
        ) from None


def flat_options(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree of options, as ``flow.glow.hidden``."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from flat_options(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
