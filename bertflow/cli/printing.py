"""How the commands print: tables and lines on stdout."""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from bertflow.results import AbstractResult
from bertflow.tables import Section, Table


def print_table(out: Console, table: Table) -> None:
    """Print a table; it is wider than a narrow terminal rather than with cells cut off. Cells are not markup."""
    printed = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, title in enumerate(table.header):
        printed.add_column(title, justify="right" if at else "left", no_wrap=True)
    for line in table.lines:
        printed.add_row(*map(escape, line))
    out.width = max(out.width, table.width)
    out.print(printed, soft_wrap=True)


def print_lines(out: Console, lines: Iterable[str]) -> None:
    """Print sentences as they are: not wrapped, nothing in them taken for markup."""
    for line in lines:
        out.print(line, highlight=False, markup=False, soft_wrap=True)


def print_result(result: AbstractResult) -> None:
    """Print what a person reads of a result."""
    out = Console()
    for part in result.parts():
        if isinstance(part, str):
            print_lines(out, part.split("\n"))
        elif isinstance(part, Section):
            print_lines(out, [part.title])
            print_table(out, part.table)
            print_lines(out, part.lines)
        else:
            print_table(out, part)
