"""Tables and sections of a report: what every command prints and every report holds."""

from collections.abc import Sequence
from dataclasses import dataclass

MISSING = "-"
"""The cell of a table where there is no value."""


@dataclass(frozen=True)
class Table:
    """Text, ready to be printed; the first cell of a line names the system."""

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    @property
    def widths(self) -> list[int]:
        """Characters of the widest cell of each column."""
        return [max(map(len, column)) for column in zip(self.header, *self.lines, strict=True)]

    @property
    def width(self) -> int:
        """Characters of a line, with the space between the columns."""
        return sum(width + 3 for width in self.widths)

    def to_markdown(self) -> str:
        """A Markdown table, columns aligned."""
        cells, widths = [self.header, *self.lines], self.widths
        rule = "|".join([":" + "-" * (widths[0] + 1), *("-" * (width + 1) + ":" for width in widths[1:])])
        body = ["| " + " | ".join(_aligned(line, widths)) + " |" for line in cells]
        return "\n".join([body[0], f"|{rule}|", *body[1:]]) + "\n"


@dataclass(frozen=True)
class Section:
    """A table that stands below the scores: what it is, and what must be said of it."""

    title: str
    table: Table
    lines: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        """A heading, the table, and a list."""
        return f"## {self.title}\n\n{self.table.to_markdown()}" + "".join(f"\n* {line}" for line in self.lines) + "\n"


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
