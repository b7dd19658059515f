"""Files of text in lines and columns, and splits of datasets of the Hugging Face hub.

A line is UTF-8 or refused. It ends at LF or CRLF alone, since other characters that Unicode counts as line ends occur
in sentences; a byte-order mark is removed. Every table becomes a ``TextTable``: its column names, and a way to read
some of them row by row, so that a large file is never held in memory. What cannot be read is refused with file and
line.

    .tsv      split on tabs, without quoting: sentences hold unbalanced quotation marks
    .csv      commas and double quotes, strictly: an open quotation mark is an error, not half a file in one cell
    .jsonl    one object a line
    .parquet  through ``datasets``
    hub       ``datasets`` fetches a split once and keeps it in its cache; a folder in the hub's own format
              (``<root>/owner/name/`` with a ``test.jsonl.gz``, say) can stand in for the hub

All but parquet may be compressed (``.gz``).
"""

import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow.errors import DataError
from bertflow.files import read_raw_lines

Rows = Iterator[tuple[int, tuple[Any, ...]]]
"""The number of a row, for messages, and its cells."""
Choices = Sequence[Sequence[str]]
"""Sets of column names, in any case; the first that a table has all columns of is taken."""
PAIR_KINDS = ("graded", "binary", "classes", "retrieval", "texts")
"""The kinds that are pairs of texts; the first that a table has the columns of is taken."""
TEXTS = (
    *(("query", "text"), ("question", "answer"), ("text", "paraphrase"), ("anchor", "positive")),
    *(("sentence1", "sentence2"), ("sentence_A", "sentence_B"), ("premise", "hypothesis")),
    *(("a", "b"), ("text1", "text2")),
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
    "documents": (*(("question", "answer"), ("query", "text")), *(("title", "text"), ("title", "body")), TEXTS[3]),
    "texts": TEXTS,
    # One text, perhaps with something beside it.
    "sentences": (("query", "text"), ("text",), ("sentence",), *TEXTS[1:]),
    "labelled": (("text", "label"), ("sentence", "label"), ("word", "label")),
    "answers": (("id", "text", "questions"), ("id", "text")),
    "answered": (("question", "id"),),
}
"""A row is what a table holds, and what its columns may be called: the texts first, then what belongs to them."""


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers from 1, without their line ends.

    Raises:
        DataError: If the file is missing, is damaged or is not UTF-8; the message gives line and byte, both from 1.
    """
    number = 0
    try:
        for number, raw in read_raw_lines(path):
            text = raw.removesuffix(b"\n").removesuffix(b"\r").decode()
            yield number, text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        at, byte = error.start, error.object[error.start]
        raise DataError(
            f"{path}, line {number}, byte {at + 1}: 0x{byte:02x} is not UTF-8. Save the file as UTF-8."
        ) from None


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

    def where(self, number: int) -> str:
        """The place of a row, for messages: "pairs.tsv, line 3"."""
        return f"{self.name}, {self.unit} {number}"

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
        # Cut, since the names of a table without a header are sentences.
        given = ", ".join(name if len(name) <= 30 else f"{name[:27]}..." for name in self.columns)
        raise DataError(f"{self.name} should have the columns {wanted}, but has {given}. {do}")

    def text(self, number: int, column: str, cell: Any, do: str = "Fill it in, or leave the line out.") -> str:
        """A cell that should hold text.

        Raises:
            DataError: If it is empty or something else; the message names the row and the column.
        """
        if isinstance(cell, str) and cell.strip():
            return cell
        raise DataError(f"{self.where(number)}: the column {column} should hold text, got {cell!r}. {do}")


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


def is_plain_text(path: str | Path) -> bool:
    """Whether a file is text in lines by its ending: .txt, also .gz."""
    return Path(path).name.lower().removesuffix(".gz").endswith(".txt")


def split_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that is not empty, with its number."""
    for number, line in read_lines(path):
        if line:
            yield number, line.split("\t")


def _split_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = (line + "\n" for _, line in read_lines(path))
    reader, first = csv.reader(lines, strict=True), 1
    try:
        for cells in reader:
            if cells:
                yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {first}: this is not csv: {error}. Is a quotation mark left open? "
            "Double the quotation marks inside a cell, or save the table as tsv."
        ) from None


def _delimited(path: Path, header: bool, split: Callable[[Path], Iterator[tuple[int, list[str]]]]) -> TextTable:
    first = next(split(path), None)
    if first is None:
        raise DataError(f"{path} is empty. It should hold a table.")
    names = [name.strip() for name in first[1]] if header else [str(k) for k in range(1, len(first[1]) + 1)]

    def read(columns: Sequence[str]) -> Rows:
        picked = [names.index(column) for column in columns]
        for number, cells in itertools.islice(split(path), int(header), None):
            if len(cells) != len(names):
                raise DataError(
                    f"{path}, line {number}: {len(names)} cells are wanted, as in line {first[0]}, "
                    f"but {len(cells)} are there. Repair the line."
                )
            yield number, tuple(cells[k] for k in picked)

    return TextTable(str(path), tuple(names), read)


def _jsonl(path: Path, _header: bool) -> TextTable:
    first = next(_objects(path), None)
    if first is None:
        raise DataError(f"{path} is empty. It should hold a table.")

    def read(columns: Sequence[str]) -> Rows:
        for number, row in _objects(path):
            if missing := [column for column in columns if column not in row]:
                raise DataError(
                    f"{path}, line {number}: the key {missing[0]!r} is wanted, as in line {first[0]}, "
                    f"but the keys are {', '.join(row)}. Repair the line."
                )
            yield number, tuple(row[column] for column in columns)

    return TextTable(str(path), tuple(first[1]), read)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if "\\ud" in line.lower():  # half of a surrogate pair is legal JSON, but no text
                json.dumps(row, ensure_ascii=False).encode()
        except ValueError as error:
            raise DataError(f"{path}, line {number}: this is not JSON: {error}. Repair the line.") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: an object is wanted, got {line[:40]!r}. Repair the line.")
        yield number, row


def _parquet(path: Path, _header: bool) -> TextTable:
    if not path.is_file():
        raise DataError(f"{path} is missing. Give the path of an existing file.")
    import pyarrow
    from datasets import load_dataset

    try:
        # Streamed, so that no copy of the file is left in the cache of the library.
        rows = load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    except (pyarrow.ArrowException, ValueError) as error:
        raise DataError(f"{path} is not a parquet file: {error}. Fetch it again.") from None
    return dataset_table(rows, str(path))


def dataset_table(rows: Any, name: str) -> TextTable:
    """A ``datasets.Dataset`` or ``IterableDataset`` as a table."""
    import pyarrow

    def read(columns: Sequence[str]) -> Rows:
        try:
            for number, row in enumerate(rows.select_columns(list(columns)), start=1):
                yield number, tuple(row[column] for column in columns)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{name} is damaged: {error}. Fetch it again.") from None

    # Of a stream in some formats the columns are known when a row was seen.
    columns: Iterable[str] = rows.column_names or next(iter(rows), {})
    return TextTable(name, tuple(columns), read, unit="row")


FORMATS: Mapping[str, Callable[[Path, bool], TextTable]] = {
    ".tsv": lambda path, header: _delimited(path, header, split_tsv),
    ".csv": lambda path, header: _delimited(path, header, _split_csv),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
"""A row is a file ending and how such a file is opened; the flag says whether the first line names the columns."""


def parse_hub_split(spelling: str) -> dict[str, Any]:
    """Read ``owner/name[@revision][#config][:split]``; the split is ``train`` unless named."""
    rest, _, split = spelling.partition(":")
    rest, _, config = rest.partition("#")
    path, _, revision = rest.partition("@")
    return {"path": path, "name": config or None, "revision": revision or None, "split": split or "train"}


def load_hub_table(spelling: str, root: str = "", streaming: bool = False) -> TextTable:
    """Fetch one split, or take it from the cache.

    Args:
        spelling: ``owner/name[@revision][#config][:split]``; with a commit as the revision, numbers can be repeated.
        root: A folder that holds ``owner/name`` folders in the hub's format; the hub itself if empty.
        streaming: Read it as it comes, each time it is read, and keep nothing of it on disk.

    Raises:
        DataError: If there is no such dataset, revision or split, or no way to the hub.
    """
    from datasets import load_dataset

    where = parse_hub_split(spelling)
    try:
        rows = load_dataset(**{**where, "path": str(Path(root, where["path"]))}, streaming=streaming)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"The dataset {spelling} could not be loaded: {reason}. "
            "Check its name, revision and split, and the way to the hub."
        ) from None
    return dataset_table(rows, spelling)
