"""What a person sees: a terminal breaks lines at words and shows what counts; elsewhere only tables of prose break.

    VERDICT: whiten           bold                       ``Strong``
    files     fixed/...       the label in color, the lines below it indented
    a wide table              its first column with as many others as there is room for, then again with the next ones

``NO_COLOR`` in the environment switches bold and color off.
"""

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from bertflow.results import LABEL, NUMBER
from bertflow.tables import REST, Section, Strong, Table

START = re.compile(rf"(?:note|error|next): |{LABEL.pattern}|{NUMBER.pattern}")
"""What a line may begin with; the lines that follow it are indented by its length."""
GAP = 3
"""Characters between two columns."""
WORDY = 24
"""Characters of a cell above which it is text, whose lines can be broken; twice as many where it has no space."""
NARROWED = 20
"""Characters that a column of text keeps where no terminal says how wide a table may be."""


def say(text: str, stream: TextIO | None = None, whole: bool = False) -> None:
    """Print a line, or several.

    Args:
        text: The lines.
        stream: Where to; stdout by default.
        whole: Whether lines are not broken, because they will be copied.
    """
    stream = stream or sys.stdout
    if not (stream and stream.isatty()):
        print(text, file=stream, flush=True)
        return
    from rich.text import Text

    out = console(stream)
    if "tqdm" in sys.modules and not out.is_dumb_terminal:
        stream.write("\r\x1b[K")  # a bar is drawn again below
    for line in text.split("\n"):
        found = START.match(line)
        label = len(found[0]) if found else 0
        indent = " " * (label or len(line) - len(line.lstrip()))
        fill = textwrap.TextWrapper(out.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        short = whole or len(line) <= out.width
        shown = Text(line if short else fill.fill(line), "bold" if isinstance(text, Strong) else "")
        shown.stylize("bold red" if line.startswith("error") else "cyan", 0, label)
        out.print(shown, soft_wrap=True)
    stream.flush()


def console(stream: TextIO | None = None) -> Any:
    """Rich's console for a stream; without a system of colors nothing is bold either."""
    from rich.console import Console

    return Console(file=stream, color_system=None if os.environ.get("NO_COLOR") else "auto")


def print_parts(parts: Iterable[Table | Section | str], output: object = None) -> None:
    """Print what a person reads of a result, which is also in ``output``: lines, and tables whose cells are whole."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as RichTable

    out = console()
    for part in parts:
        pieces: tuple[Table | str, ...]
        pieces = (Strong(part.title), part.table, *part.lines) if isinstance(part, Section) else (part,)
        for one in pieces:
            if isinstance(one, str):
                said = one.replace(REST, f"--details, or in {output}") if output else one
                say(Strong(f"\n{one}") if isinstance(one, Strong) else said)
                continue
            for piece in fitting(one, out.width) if out.is_terminal else (one,):
                printed = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
                for at, (title, wordy) in enumerate(zip(piece.header, _wordy(piece), strict=True)):
                    text = wordy and (out.is_terminal or piece.prose)
                    look: dict[str, Any] = {"overflow": "fold"} if text else {"no_wrap": True}
                    printed.add_column(title, justify="right" if at and not text else "left", **look)
                for line in piece.lines:
                    printed.add_row(*map(escape, line))
                if not out.is_terminal:
                    kept = NARROWED if piece.prose else max(piece.widths)
                    out.width = max(out.width, sum(min(width, kept) + GAP for width in piece.widths))
                out.print(printed, soft_wrap=True)


def height(parts: Iterable[Table | Section | str]) -> int:
    """Lines of what a person reads of a result, before any are broken."""
    tables = (one.table if isinstance(one, Section) else one for one in parts)
    return sum(one.count("\n") + 1 if isinstance(one, str) else len(one.lines) + 4 for one in tables)  # and a head


def fitting(table: Table, width: int) -> Iterator[Table]:
    """The table in pieces that are no wider, each with the first column; whole where it has text that can be broken."""
    widths, first = table.widths, 1
    if any(_wordy(table)) or len(widths) == 1:
        yield table
        return
    while first < len(widths):
        room, last = width - widths[0] - widths[first] - 2 * GAP, first + 1
        while last < len(widths) and (room := room - widths[last] - GAP) >= 0:
            last += 1
        header, *lines = [(line[0], *line[first:last]) for line in (table.header, *table.lines)]
        yield Table(header, tuple(lines))
        first = last


def _wordy(table: Table) -> list[bool]:
    """Whether the cells of each column are text."""
    longest = (max(column, key=len) for column in zip(table.header, *table.lines, strict=True))
    return [len(cell) > (WORDY if " " in cell else 2 * WORDY) for cell in longest]
