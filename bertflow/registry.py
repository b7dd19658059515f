"""Choose a row of a table by its name; the names of a tree of options."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from bertflow.errors import UnknownNameError

Choice = TypeVar("Choice")


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
        known = ", ".join(table)
        raise UnknownNameError(f"Unknown {kind} {name!r}. Known: {known}.{did_you_mean(str(name), table)}") from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that names the closest of the known names, with a space before it; empty if none is close."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]}?" if close else ""


def flat_options(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree of options, as ``flow.glow.hidden``."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from flat_options(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
