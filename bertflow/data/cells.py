"""Rows of files: cells as people and programs write them, and objects of JSON.

.tsv     split at tabs, without quoting: sentences hold unbalanced quotation marks. Unless all quotation marks of the
         file are those of a writer that quotes cells, as Python's csv and Excel do: '"He said ""no"", and left."'
.csv     double quotes, strictly: an open quotation mark is an error, not half a file in one cell. Cells are
         separated by commas, or by what splits the first rows into more cells: semicolons (Excel in Europe) or tabs
.xlsx    the first sheet, through ``openpyxl``; numbers and dates are text
.jsonl   one object a line
.json    a list of objects
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from bertflow.data.lines import State, decoded, leave_out, read_lines, read_raw_lines, state_of, usable, usable_lines
from bertflow.errors import DataError, RowError, logger, needs, reason_of, shown
from bertflow.places import require_files

Cells = Iterator[tuple[int, list[str]]]
"""The number of a row, for messages, and its cells."""
Objects = Iterator[tuple[int, dict[str, Any]]]
"""The number of an object's line or row, for messages, and the object."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
SAMPLE = 20
"""Rows that tell what stands between the cells of a csv."""
_QUOTED = re.compile(r'(?:(?:[^"\t]*|"(?:[^"]|"")*")\t)*(?:[^"\t]*|"(?:[^"]|"")*"|(?P<open>"(?:[^"]|"")*))')
"""A line of a tsv that quotes its cells; ``open`` is a last cell that goes on in the next line."""
_DOUBLED = re.compile(r'[^"\t]""|""[^"\t]|"""')
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
def _quotes_cells(state: State) -> bool:
    """Whether a tsv quotes its cells: all quotation marks are in place, and its rows are more even than its lines.

    Those of the common width count for it, others against it; each doubled mark, and each line that goes on without a
    tab, counts for the rows.
    """
    is_open, proofs = False, 0
    lines, rows = Counter[int](), Counter[int]()
    with suppress(DataError):  # what stands behind a line that is not text says nothing
        for _, line in usable_lines(state[0]):
            if not (found := _QUOTED.fullmatch(f'"{line}' if is_open else line)):
                return False
            is_open = found["open"] is not None
            proofs += bool(_DOUBLED.search(line)) or (is_open and "\t" not in line)
            lines[line.count("\t") + 1] += bool(line)
    with suppress(DataError):
        rows.update(len(cells) for _, cells in split_csv(Path(state[0]), "\t"))
    width = max(rows, key=lambda width: rows[width], default=0)
    of_rows, of_lines = (2 * n[width] - n.total() for n in (rows, lines))
    return not is_open and of_rows + proofs >= of_lines + (not proofs)


def split_csv(path: Path, between: str = "") -> Cells:
    """Rows of a csv file, where a row may have several lines; its number is that of the first.

    Args:
        path: The file.
        between: What stands between the cells; found by the first rows if empty.
    """
    between = between or _separator(state_of(path))
    bad: list[RowError] = []

    def lines() -> Generator[str, None, None]:
        for number, raw in read_raw_lines(path):
            try:
                line = decoded(path, number, raw)
            except RowError as error:  # of the whole row, which may have several lines
                bad.append(error)
                line = raw.decode(errors="replace").rstrip("\r\n")
            yield f"{line}\n"

    reader, first = csv.reader(text := lines(), delimiter=between, strict=True), 1
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
    finally:
        text.close()  # a bad row and the frame that found it keep each other, and the file, until they are collected


@lru_cache
def _separator(state: State) -> str:
    """The separator that splits the first rows of a csv most evenly, and into the most cells."""

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


def _parsed(text: str) -> Any:
    found = json.loads(text)
    if "\\ud" in text.lower():  # half of a surrogate pair is legal JSON, but no text
        json.dumps(found, ensure_ascii=False).encode()
    return found


def objects_in_list(path: Path) -> Objects:
    """The objects of a file that is one list of them."""
    try:
        rows = _parsed("\n".join(line for _, line in read_lines(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {reason_of(error)}. Objects that stand in lines end in .jsonl.") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} should be a list of objects, got {shown(rows)}. Write one, or a line each as .jsonl.")
    return enumerate(rows, start=1)


def objects_in_lines(path: Path) -> Objects:
    """The objects of a file that has one in each line."""

    def parse(numbered: tuple[int, str]) -> tuple[int, dict[str, Any]]:
        number, line = numbered
        try:
            row = _parsed(line)
        except (ValueError, RecursionError) as error:
            raise RowError(str(path), number, f"this is not JSON: {reason_of(error)}. Repair the line.") from None
        if not isinstance(row, dict):
            raise RowError(str(path), number, f"an object is wanted, got {line[:40]!r}. Repair the line.")
        return number, row

    return usable(parse, (line for line in usable_lines(path) if line[1].strip()))
