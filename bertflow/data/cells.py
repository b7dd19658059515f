"""Rows of cells: tsv and csv as people and programs write them, and the first sheet of an Excel file.

.tsv     split at tabs, without quoting: sentences hold unbalanced quotation marks. Unless all quotation marks of the
         file are those of a writer that quotes cells, as Python's csv and Excel do: '"He said ""no"", and left."'
.csv     double quotes, strictly: an open quotation mark is an error, not half a file in one cell. Between the cells
         stand commas, or what parts the first rows into more cells: semicolons (Excel in Europe) or tabs
.xlsx    through ``openpyxl``; numbers and dates are text
"""

import csv
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from zipfile import BadZipFile

from bertflow.data.lines import decoded, leave_out, read_lines, read_raw_lines, state_of, usable_lines
from bertflow.errors import DataError, RowError, needs, reason_of
from bertflow.files import require_files

logger = logging.getLogger("bertflow")
Cells = Iterator[tuple[int, list[str]]]
"""The number of a row, for messages, and its cells."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
SAMPLE = 20
"""Rows that tell what stands between the cells of a csv."""
_QUOTED = re.compile(r'(?:(?:[^"\t]*|"(?:[^"\t]|"")*")\t)*(?:[^"\t]*|"(?:[^"\t]|"")*"|(?P<open>"(?:[^"\t]|"")*))')
"""A line of a tsv that quotes its cells; ``open`` is a last cell that goes on in the next line."""
_DOUBLED = re.compile(r'[^"\t]""|""[^"\t]')
"""A quotation mark inside a quoted cell."""


def split_tsv(path: Path) -> Cells:
    """The cells of each line that is not empty, with its number."""
    for number, line in usable_lines(path):
        if '"' in line and _quotes_cells(state_of(path)):
            yield from (row for row in split_csv(path, "\t") if row[0] >= number)
            return
        if line:
            yield number, line.split("\t")


@lru_cache
def _quotes_cells(state: tuple[str, int, int]) -> bool:
    """Whether a tsv quotes its cells: all quotation marks are in place, and one is doubled or a cell has two lines."""
    is_open = proven = False
    with suppress(DataError):  # a line that is not text says nothing of the others
        for _, line in read_lines(state[0]):
            if not (found := _QUOTED.fullmatch(f'"{line}' if is_open else line)):
                return False
            is_open = found["open"] is not None
            proven = proven or is_open or bool(_DOUBLED.search(line))
    return proven and not is_open


def split_csv(path: Path, between: str = "") -> Cells:
    """Rows of a csv file, where a row may have several lines; its number is that of the first.

    Args:
        path: The file.
        between: What stands between the cells; found by the first rows if empty.
    """
    between = between or _separator(state_of(path))
    bad: list[RowError] = []

    def lines() -> Iterator[str]:
        for number, raw in read_raw_lines(path):
            try:
                line = decoded(path, number, raw)
            except RowError as error:  # of the whole row, which may have several lines
                bad.append(error)
                line = raw.decode(errors="replace").rstrip("\r\n")
            yield f"{line}\n"

    reader, first = csv.reader(lines(), delimiter=between, strict=True), 1
    try:
        for cells in reader:
            if bad:
                leave_out(bad[0])
                bad.clear()
            elif cells:
                yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {first}: this is not csv: {error}. Is a quotation mark left open? "
            "Double the quotation marks inside a cell, or save the table as tsv."
        ) from None


@lru_cache
def _separator(state: tuple[str, int, int]) -> str:
    """What parts the first rows of a csv into as many cells each, and into the most."""

    def fit(sign: str) -> tuple[float, int]:
        widths = []
        with suppress(DataError):
            for _, cells in islice(split_csv(Path(state[0]), sign), SAMPLE):
                widths.append(len(cells))
        same = widths.count(widths[0]) / len(widths) if widths else 0
        return (same, widths[0]) if same and widths[0] > 1 else (0, 0)

    found = max(SEPARATORS, key=fit)
    if found != ",":
        logger.info("%s has %s between its cells.", state[0], SEPARATORS[found])
    return found


def split_xlsx(path: Path) -> Cells:
    """Rows of the first sheet of an Excel file, numbered as in Excel."""
    require_files(path)
    with needs("openpyxl", "excel"):
        from openpyxl import load_workbook
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        sheet, width = book.worksheets[0], 0
        if len(book.worksheets) > 1:
            logger.info("%s has %d sheets; the first, %s, is read.", path, len(book.worksheets), sheet.title)
        for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
            cells = ["" if cell is None else str(cell) for cell in row]
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                width = width or len(cells)
                yield number, cells + [""] * (width - len(cells))
        book.close()
    except (BadZipFile, KeyError, IndexError, ValueError, SyntaxError, OSError) as error:
        raise DataError(
            f"{path} cannot be read as an Excel file: {reason_of(error)}. Save it again as .xlsx."
        ) from None
