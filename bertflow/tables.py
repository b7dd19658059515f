"""Tables and sections of a report, which every command prints and every report holds; and rows written to a file."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow.files import write_text
from bertflow.registry import lookup

MISSING = "-"
"""The cell of a table where there is no value."""

REST = "--details, or --output DIR"
"""Place of what the answer of a result leaves out; a command that was given a folder names it."""

UNSCALED = "_cosine"
"""Ending of the metrics that are shown as they are; all others are x 100."""

FORMULA = ("=", "+", "@")
"""First characters of a formula of a spreadsheet."""


class Strong(str):
    """A line that says what counts: bold where lines can be."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """Text, ready to be printed; the first cell of a line names the system."""

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    prose: bool = False
    """Whether its cells are sentences, which are broken wherever it is printed."""

    @property
    def widths(self) -> list[int]:
        """Characters of the widest cell of each column."""
        return [max(map(len, column)) for column in zip(self.header, *self.lines, strict=True)]

    def to_markdown(self) -> str:
        """A Markdown table, columns aligned."""
        cells = [tuple(map(_escaped, line)) for line in (self.header, *self.lines)]
        widths = Table(cells[0], tuple(cells[1:])).widths
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


def _escaped(cell: str) -> str:
    """A cell in one line, without the sign that separates cells."""
    return " ".join(cell.split()).replace("|", "\\|")


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]


def number(value: float | None, metric: str = "", sign: str = "") -> str:
    """A value as tables show it, x 100 for all but some metrics; a dash where there is none.

    Args:
        value: A number in [-1, 1].
        metric: Metric of the value.
        sign: "+" for differences that show their sign.
    """
    if value is None:
        return MISSING
    return f"{value if metric.endswith(UNSCALED) else 100 * value:{sign}.2f}"


def shortened(text: str, most: int) -> str:
    """A text cut to this many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def cell(value: str | float | None, digits: int = 3, most: int = 40) -> str:
    """A text cut to this many characters, or a number with this many digits behind the point; a dash for nothing."""
    if value is None:
        return MISSING
    return f"{value:.{digits}f}" if isinstance(value, float) else shortened(str(value), most)


def interval(low: float | None, high: float | None, metric: str = "") -> str:
    """An interval as tables show it."""
    ends = (low, high)
    return MISSING if None in ends else " to ".join(number(end, metric) for end in ends)


def write_rows(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table by the file's ending, complete or not at all; ``open_table`` reads it."""
    write_text(path, lookup("ending of --output", WRITERS, Path(path).suffix)(header, rows))


def require_writable(path: str | Path, option: str = "output") -> None:
    """Refuse an ending that is none of ``WRITERS``, before anything is computed.

    Raises:
        UnknownNameError: With the known endings.
    """
    lookup(f"ending of --{option}", WRITERS, Path(path).suffix)


def to_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as csv; a text that a spreadsheet would compute as a formula gets an apostrophe in front."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_plain(cell) for cell in row] for row in (header, *rows))
    return out.getvalue()


def _plain(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.lstrip().startswith(FORMULA) else cell


def _to_tsv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    # White space inside a text becomes a space, and a text with a quotation mark is quoted, as pandas reads it.
    lines = [[" ".join(cell.split()) if isinstance(cell, str) else f"{cell}" for cell in row] for row in rows]
    out = io.StringIO()
    csv.writer(out, "excel-tab", lineterminator="\n").writerows([header, *lines])
    return out.getvalue()


def to_jsonl(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as one JSON object a line."""
    return "".join(json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)


WRITERS: Mapping[str, Callable[[Sequence[str], Iterable[Sequence[Any]]], str]] = {
    ".tsv": _to_tsv,
    ".csv": to_csv,
    ".jsonl": to_jsonl,
}
"""A row is a file ending and how a table becomes such text."""
