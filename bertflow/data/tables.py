"""Files of text in lines and columns.

A line is UTF-8 or refused. It ends at LF or CRLF alone, since other characters that Unicode counts as line ends occur
in sentences; a byte-order mark is removed. Every table becomes a ``TextTable``: its column names, and a way to read
some of them row by row, so that a large file is never held in memory. What cannot be read is refused with file and
line.

    .tsv      split on tabs, without quoting: sentences hold unbalanced quotation marks
    .csv      commas and double quotes, strictly: an open quotation mark is an error, not half a file in one cell
    .jsonl    one object a line
    .parquet  through ``pyarrow``

All but parquet may be compressed (``.gz``).
"""

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow.data.skipping import leave_out, none_skipped, usable
from bertflow.errors import DataError, RowError, reason_of, shown
from bertflow.files import read_raw_lines
from bertflow.text_keys import is_blank

Rows = Iterator[tuple[int, tuple[Any, ...]]]
"""The number of a row, for messages, and its cells."""
ROWS = 1024
"""Rows of a parquet file in memory at a time."""
NAMED = 20
"""Columns that a message names."""
Choices = Sequence[Sequence[str]]
"""Sets of column names, in any case; the first that a table has all columns of is taken."""
PAIR_KINDS = ("graded", "binary", "classes", "retrieval", "texts")
"""The kinds that are pairs of texts; the first that a table has the columns of is taken."""
TEXTS = (
    *(("query", "text"), ("question", "answer"), ("text", "paraphrase"), ("anchor", "positive")),
    *(("sentence1", "sentence2"), ("sentence_A", "sentence_B"), ("premise", "hypothesis")),
    *(("a", "b"), ("text1", "text2")),
    *(("title", "description"), ("title", "body"), ("subject", "body")),
)
COLUMNS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    # Two texts and a target.
    "graded": (("sentence1", "sentence2", "score"), ("sentence_A", "sentence_B", "relatedness_score")),
    "binary": (("a", "b", "label"), ("sentence1", "sentence2", "label"), ("question", "sentence", "label")),
    "classes": (
        ("sentence1", "sentence2", "gold_label"),  # SNLI, MNLI, GLUE's copies
        ("premise", "hypothesis", "label"),
        ("premise", "hypothesis", "gold_label"),
        ("sentence1", "sentence2", "label"),
        ("sentence_A", "sentence_B", "entailment_judgment"),  # SICK
    ),
    # Two texts.
    "retrieval": (("query", "text"), ("question", "answer")),
    "candidates": (("query", "text", "label"), ("question", "answer", "label"), ("question", "sentence", "label")),
    "documents": (("question", "answer"), ("query", "text"), ("title", "text"), TEXTS[3], *TEXTS[-3:]),
    "texts": TEXTS,
    # One text, perhaps with something beside it.
    "sentences": (("query", "text"), ("text",), ("sentence",), *TEXTS[1:]),
    "queries": tuple((name,) for name in ("query", "question", "text", "sentence")),
    "labelled": (("text", "label"), ("sentence", "label"), ("word", "label")),
    "answers": (
        *(("id", "text", "questions"), ("id", "text")),
        *(("id", "answer", "questions"), ("id", "answer", "question"), ("id", "answer")),
    ),
    "answered": (("question", "id"),),
    "passages": tuple((name,) for name in ("text", "page_content", "content", "passage", "chunk", "body", "sentence")),
}
"""A row is what a table holds, and what its columns may be called: the texts first, then what belongs to them."""


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers from 1, without their line ends.

    Raises:
        DataError: If the file is missing or damaged, or a line is not UTF-8; the message gives line and byte, from 1.
    """
    return ((number, decoded(path, number, raw)) for number, raw in read_raw_lines(path))


def usable_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """As ``read_lines``; lines that are not text are left out where ``skip_bad`` asks for it."""
    return usable(lambda line: (line[0], decoded(path, *line)), read_raw_lines(path))


def decoded(path: str | Path, number: int, raw: bytes) -> str:
    """A line of a file as text, without its end.

    Raises:
        RowError: If it is not UTF-8, or holds a zero.
    """
    line = raw.removesuffix(b"\n").removesuffix(b"\r")
    if number == 1 and b"\r" in line and not raw.endswith(b"\n"):
        raise DataError(f"{path}: its lines end with CR alone. Save it with LF as the end of a line.")
    try:
        if (at := line.find(b"\0")) < 0:
            return line.decode()
        what = "zero, as in UTF-16"
    except UnicodeDecodeError as error:
        at, what = error.start, f"0x{line[error.start]:02x}, which is not UTF-8"
    raise RowError(str(path), number, f"byte {at + 1} is {what}. Save the file as UTF-8.")


@dataclass(frozen=True)
class TextTable:
    """Columns of a file or of a hub dataset.

    ``read(columns)`` starts from the top each time and gives each row's number and the cells asked for.
    """

    name: str
    """Its name in messages: the path as the user gave it."""
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Rows]
    unit: str = "line"
    """What the rows' numbers count: lines of the file, or rows."""

    def bad(self, number: int, reason: str) -> RowError:
        """The error of a row that cannot be used, whose message begins with its place: "pairs.tsv, line 3"."""
        return RowError(self.name, number, reason, self.unit)

    def find(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """These columns as the table spells them, whatever the case; None unless all are there."""
        spelled = {column.casefold(): column for column in reversed(self.columns)}
        found = tuple(spelled[name.casefold()] for name in names if name.casefold() in spelled)
        return found if len(found) == len(names) else None

    def known(self, choices: Choices) -> tuple[str, ...] | None:
        """The first of several sets of column names that is here, as the table spells it; None if none is."""
        return next((found for names in choices if (found := self.find(names))), None)

    def require(self, choices: Choices, do: str = "Rename its columns.") -> tuple[str, ...]:
        """The same, refused if none is here; ``do`` is what the user can do about it.

        Raises:
            DataError: Its message lists the columns that are wanted and those of the table.
        """
        if found := self.known(choices):
            return found
        wanted = " | ".join(" + ".join(names) for names in choices)
        if sign := next((sign for sign in (";", "\t") if len(self.columns) == 1 and sign in self.columns[0]), None):
            do = f"Between its cells stands {sign!r}: save it as csv with commas, or as tsv with tabs."
        raise DataError(f"{self.name} should have the columns {wanted}, but has {column_names(self.columns)}. {do}")

    def text(self, number: int, column: str, cell: Any, do: str = "Fill it in, or leave the line out.") -> str:
        """A cell that should hold text.

        Raises:
            RowError: If it is empty or something else; the message names the row and the column.
        """
        if isinstance(cell, str) and not is_blank(cell):
            return cell
        raise self.bad(number, f"the column {column} should hold text, got {shown(cell)}. {do}")


def column_names(names: Sequence[str]) -> str:
    """Names of columns for a message; cut, since those of a table without a header are sentences."""
    cut = [name if len(name) <= 30 else f"{name[:27]}..." for name in names[:NAMED]]
    return ", ".join([*cut, *([f"and {len(names) - NAMED} more"] if len(names) > NAMED else [])]) or "none"


def open_table(path: str | Path, header: bool = True, suffix: str | None = None) -> TextTable:
    """Open a file by its ending.

    Args:
        path: A .tsv, .csv, .jsonl (each also .gz) or .parquet file.
        header: Whether the first line of a tsv or csv names the columns; they are called "1", "2", ... if not.
        suffix: The ending to go by; that of the file if None.

    Raises:
        DataError: If the file is missing, empty, damaged, or of another format.
    """
    suffix = suffix or table_suffix(path)
    if suffix is None:
        known = ", ".join(FORMATS)
        raise DataError(f"{path} should be a table, by its ending one of {known} (text also .gz). Convert it to one.")
    return FORMATS[suffix](Path(path), header)


def open_columns(
    path: str | Path,
    choices: Choices,
    columns: Sequence[str] | None = None,
    headless: bool = False,
    do: str = "Rename its columns.",
) -> tuple[TextTable, tuple[str, ...]]:
    """Open a file and find its columns.

    Args:
        path: As for ``open_table``; .txt is tsv, as SNLI, MNLI and SICK call theirs.
        choices: What the columns may be called.
        columns: Names that are wanted instead; numbers from 1 for a tsv or csv without a header.
        headless: Whether a tsv of two columns with other names has no header.
        do: What the user can do if the columns are not there.

    Raises:
        DataError: As ``open_table``, and if the columns are not there.
    """
    suffix = ".tsv" if is_plain_text(path) else table_suffix(path)
    table = open_table(path, columns is None or not all(name.isdecimal() for name in columns), suffix)
    two = columns is None and suffix == ".tsv" and len(table.columns) == 2
    if headless and two and not table.known(choices):
        table, columns = open_table(path, False, suffix), ("1", "2")
    return table, table.require(choices if columns is None else [columns], do)


def table_suffix(path: str | Path) -> str | None:
    """The ending by which a file is a table, ``.gz`` put aside; None if it is none."""
    name = Path(path).name.lower()
    stem = name.removesuffix(".gz")
    suffix = Path(stem).suffix
    return suffix if suffix in FORMATS and not (suffix == ".parquet" and name != stem) else None


def table_name(path: str | Path) -> str:
    """What is in a table is called by its file, without the ending."""
    return Path(path).name.removesuffix(".gz").rpartition(".")[0]


def is_plain_text(path: str | Path) -> bool:
    """Whether a file is text in lines by its ending: .txt, also .gz."""
    return Path(path).name.lower().removesuffix(".gz").endswith(".txt")


def split_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that is not empty, with its number."""
    for number, line in usable_lines(path):
        if line:
            yield number, line.split("\t")


def _split_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    bad: list[RowError] = []

    def lines() -> Iterator[str]:
        for number, raw in read_raw_lines(path):
            try:
                line = decoded(path, number, raw)
            except RowError as error:  # of the whole row, which may have several lines
                bad.append(error)
                line = raw.decode(errors="replace").rstrip("\r\n")
            yield f"{line}\n"

    reader, first = csv.reader(lines(), strict=True), 1
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


def _delimited(path: Path, header: bool, split: Callable[[Path], Iterator[tuple[int, list[str]]]]) -> TextTable:
    with none_skipped():
        first = next(split(path), None)
    if first is None:
        raise DataError(f"{path} is empty. It should hold a table.")
    names = [name.strip() for name in first[1]] if header else [str(k) for k in range(1, len(first[1]) + 1)]

    def read(columns: Sequence[str]) -> Rows:
        picked = [names.index(column) for column in columns]

        def pick(line: tuple[int, list[str]]) -> tuple[int, tuple[str, ...]]:
            number, cells = line
            if len(cells) == len(names):
                return number, tuple(cells[k] for k in picked)
            wanted = f"{len(names)} cells are wanted, as in line {first[0]}"
            raise RowError(str(path), number, f"{wanted}, but {len(cells)} are there. Repair the line.")

        return usable(pick, itertools.islice(split(path), int(header), None))

    return TextTable(str(path), tuple(names), read)


def _jsonl(path: Path, _header: bool) -> TextTable:
    first = next(_objects(path), None)
    if first is None:
        raise DataError(f"{path} is empty. It should hold a table.")

    def read(columns: Sequence[str]) -> Rows:
        def pick(line: tuple[int, dict[str, Any]]) -> tuple[int, tuple[Any, ...]]:
            number, row = line
            missing = [column for column in columns if column not in row]
            if not missing:
                return number, tuple(row[column] for column in columns)
            wanted = f"the key {missing[0]!r} is wanted, as in line {first[0]}"
            raise RowError(
                str(path), number, f"{wanted}, but the keys are {column_names(tuple(row))}. Repair the line."
            )

        return usable(pick, _objects(path))

    return TextTable(str(path), tuple(first[1]), read)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    def parse(numbered: tuple[int, str]) -> tuple[int, dict[str, Any]]:
        number, line = numbered
        try:
            row = json.loads(line)
            if "\\ud" in line.lower():  # half of a surrogate pair is legal JSON, but no text
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise RowError(str(path), number, f"this is not JSON: {reason_of(error)}. Repair the line.") from None
        if not isinstance(row, dict):
            raise RowError(str(path), number, f"an object is wanted, got {line[:40]!r}. Repair the line.")
        return number, row

    return usable(parse, (line for line in usable_lines(path) if line[1].strip()))


def _parquet(path: Path, _header: bool) -> TextTable:
    from bertflow.data.vectors import open_parquet, parquet_batches, readable_parquet

    with readable_parquet(path):
        names = tuple(open_parquet(path).schema_arrow.names)

    def read(columns: Sequence[str]) -> Rows:
        number = 0
        with readable_parquet(path):
            for batch in parquet_batches(path, ROWS, columns=list(columns)):
                cells = [batch.column(batch.schema.names.index(column)).to_pylist() for column in columns]
                for row in zip(*cells, strict=True):
                    number += 1
                    yield number, row

    return TextTable(str(path), names, read, unit="row")


FORMATS: Mapping[str, Callable[[Path, bool], TextTable]] = {
    ".tsv": lambda path, header: _delimited(path, header, split_tsv),
    ".csv": lambda path, header: _delimited(path, header, _split_csv),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
"""A row is a file ending and how such a file is opened; the flag says whether the first line names the columns."""
