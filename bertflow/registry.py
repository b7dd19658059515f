"""Choose a row of a table by its name."""

from collections.abc import Mapping
from typing import TypeVar

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
    except KeyError:
        known = ", ".join(table)
        raise UnknownNameError(f"Unknown {kind} {name!r}. Known: {known}.") from None
