"""Files of text in columns.

Every table becomes a ``TextTable``: its column names, and a way to read some of them row by row, so that a large file
is never held in memory. What cannot be read is refused with file and line.

    .tsv .csv .xlsx .jsonl .json    see ``bertflow.data.cells``; text may be compressed (``.gz``)
    .parquet           through ``pyarrow``
    the hub   owner/name[@revision][#config][:split], through ``datasets``, which fetches a split once and keeps it in
              its cache; a folder in the hub's own format (<root>/owner/name/ with a test.jsonl.gz, say) can stand in
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow.data.cells import Objects, objects_in_lines, objects_in_list, split_csv, split_tsv, split_xlsx
from bertflow.data.lines import Given, Made, is_blank, none_skipped, usable
from bertflow.errors import DataError, RowError, reason_of, shown
from bertflow.tables import shortened

HUB = "hub:"
"""Prefix of the name of a dataset of the hub."""
Rows = Iterator[tuple[int, tuple[Any, ...]]]
"""The number of a row, for messages, and its cells."""
ROWS = 1024
"""Rows of a parquet file in memory at a time."""
PACKED = (".parquet.gz", ".xlsx.gz")
"""Endings of what is compressed already."""
NAMED = 20
"""Columns that a message names."""
Choices = Sequence[Sequence[str]]
"""Sets of column names, in any case; the first that a table has all columns of is taken."""


@dataclass(frozen=True)
class TableRow:
    """One row of a table.

    Attributes:
        table: The table.
        names: The columns that were read.
        number: Number of its line or row, for messages.
        cells: One for each of ``names``.
    """

    table: "TextTable"
    names: Sequence[str]
    number: int
    cells: tuple[Any, ...]

    def bad(self, reason: str) -> RowError:
        """The error of a row that cannot be used, whose message begins with its place: "pairs.tsv, line 3"."""
        return RowError(self.table.name, self.number, reason, self.table.unit)

    def text(self, at: int, do: str = "Fill it in, or leave the line out.") -> str:
        """A cell that should hold text; refused as a bad row if it is empty or something else."""
        if isinstance(cell := self.cells[at], str) and not is_blank(cell):
            return cell
        raise self.bad(f"the column {self.names[at]} should hold text, got {shown(cell)}. {do}")

    def name(self, at: int) -> str:
        """A cell that should hold a name, which may be a number in jsonl and parquet; without white space around it."""
        cell = self.cells[at]
        return str(cell) if type(cell) in (int, float) and cell == cell else self.text(at).strip()  # NaN is none


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

    def usable(self, names: Sequence[str], make: Callable[[TableRow], Made]) -> Iterator[Made]:
        """What ``make`` makes of the rows of some columns; without those that it refuses, where ``skip_bad`` asks."""
        return usable(lambda found: make(TableRow(self, names, *found)), self.read(names))

    def find(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """These columns as the table spells them, whatever the case; None unless all are there."""
        spelled = {column.casefold(): column for column in reversed(self.columns)}
        found = tuple(spelled[name.casefold()] for name in names if name.casefold() in spelled)
        return found if len(found) == len(names) else None

    def named(self, names: Sequence[str]) -> tuple[str, ...]:
        """The columns that a user named, as the table spells them.

        Raises:
            DataError: If one is not there; the message lists those that are.
        """
        if missing := [name for name in names if not self.find([name])]:
            raise DataError(
                f"{self.name} has no column {missing[0]!r}. Its columns: {column_names(self.columns)}. Name some of "
                "these with --columns, or number them, from 1, if the file has no header."
            )
        return self.require([names])

    def known(self, choices: Choices) -> tuple[str, ...] | None:
        """The first of several sets of column names that is here, as the table spells it; None if none is."""
        return next((found for names in choices if (found := self.find(names))), None)

    def require(self, choices: Choices, do: str = "Rename its columns.") -> tuple[str, ...]:
        """The ``known`` set of names, refused if none is here; ``do`` is what the user can do about it.

        Raises:
            DataError: Its message lists the columns that are wanted and those of the table.
        """
        if found := self.known(choices):
            return found
        wanted = " | ".join(" + ".join(names) for names in choices)
        if is_plain_text(self.name) and len(self.columns) == 1:
            held, do = "plain lines", "Begin with a line of such names, and put a tab between the cells."
            raise DataError(f"{self.name} should be a table with the columns {wanted}, but holds {held}. {do}")
        lacking = min(([name for name in names if not self.find([name])] for names in choices), key=len)
        do = do.replace("Rename its columns", f"Rename the columns that hold them to {', '.join(lacking)}")
        raise DataError(f"{self.name} should have the columns {wanted}, but has {column_names(self.columns)}. {do}")


def column_names(names: Sequence[str]) -> str:
    """Names of columns for a message; cut, since those of a table without a header are sentences."""
    cut = [shortened(name, 30) for name in names[:NAMED]]
    return ", ".join([*cut, *([f"and {len(names) - NAMED} more"] if len(names) > NAMED else [])]) or "none"


def open_table(
    path: str | Path, columns: Sequence[str] | None = None, suffix: str | None = None, streaming: bool = False
) -> TextTable:
    """Open a file by its ending, or a dataset of the hub.

    Args:
        path: A file that ends as in ``FORMATS``, text also in .gz, or ``hub:owner/name[@revision][#config][:split]``.
        columns: Wanted columns. If all are numbers from 1, a tsv or csv has no line that names its columns.
        suffix: The ending to go by; that of the file if None.
        streaming: Whether a dataset of the hub is read as it comes, instead of stored.

    Raises:
        DataError: If the file is missing, empty, damaged, or of another format.
    """
    if is_hub(path):
        return load_hub_table(str(path).removeprefix(HUB), streaming=streaming)
    suffix = suffix or table_suffix(path)
    if suffix is None:
        known = ", ".join(FORMATS)
        raise DataError(f"{path} should be a table, by its ending one of {known} (text also .gz). Convert it to one.")
    return FORMATS[suffix](Path(path), not columns or not all(map(str.isdecimal, columns)))


def is_hub(path: str | Path) -> bool:
    """Whether a name is that of a dataset of the hub."""
    return str(path).startswith(HUB)


def table_suffix(path: str | Path) -> str | None:
    """The ending by which a file is a table, without ``.gz``; None if it is not a table."""
    name = Path(path).name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    return suffix if suffix in FORMATS and not is_hub(path) and not name.endswith(PACKED) else None


def table_name(path: str | Path) -> str:
    """The name of a table: that of its file, without the ending."""
    return Path(path).name.removesuffix(".gz").rpartition(".")[0]


def is_plain_text(path: str | Path) -> bool:
    """Whether a file is text in lines by its ending: .txt, also .gz."""
    return not is_hub(path) and Path(path).name.lower().removesuffix(".gz").endswith(".txt")


def _first(path: Path, rows: Iterator[tuple[int, Given]]) -> tuple[int, Given]:
    """The first row of a file, which says how the others are to be read: it is refused in any case."""
    with none_skipped():
        if (first := next(rows, None)) is None:
            raise DataError(f"{path} is empty. It should hold a table.")
    return first


def _delimited(path: Path, header: bool, split: Callable[[Path], Iterator[tuple[int, list[str]]]]) -> TextTable:
    top, first = _first(path, split(path))
    names = [name.strip() for name in first] if header else [str(k) for k in range(1, len(first) + 1)]
    hint = ", or rename a file of one sentence per line to .txt" if split is split_csv else ""

    def read(columns: Sequence[str]) -> Rows:
        picked = [names.index(column) for column in columns]

        def pick(line: tuple[int, list[str]]) -> tuple[int, tuple[str, ...]]:
            number, cells = line
            if len(cells) == len(names):
                return number, tuple(cells[k] for k in picked)
            wanted = f"{len(names)} cells are wanted, as in line {top}"
            raise RowError(str(path), number, f"{wanted}, but {len(cells)} are there. Repair the line{hint}.")

        return usable(pick, itertools.islice(split(path), int(header), None))

    return TextTable(str(path), tuple(names), read)


def _keyed(path: Path, objects: Callable[[Path], Objects], unit: str) -> TextTable:
    top, first = _first(path, objects(path))

    def read(columns: Sequence[str]) -> Rows:
        def pick(line: tuple[int, dict[str, Any]]) -> tuple[int, tuple[Any, ...]]:
            number, row = line
            for column in columns:
                if column not in row:
                    wanted = f"the key {column!r} is wanted, as in {unit} {top}"
                    keys = column_names(tuple(row))
                    raise RowError(str(path), number, f"{wanted}, but the keys are {keys}. Repair the {unit}.", unit)
            return number, tuple(row[column] for column in columns)

        return usable(pick, objects(path))

    return TextTable(str(path), tuple(first), read, unit)


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
    ".csv": lambda path, header: _delimited(path, header, split_csv),
    ".xlsx": lambda path, header: _delimited(path, header, split_xlsx),
    ".jsonl": lambda path, _: _keyed(path, objects_in_lines, "line"),
    ".json": lambda path, _: _keyed(path, objects_in_list, "row"),
    ".parquet": _parquet,
}
"""A row is a file ending and how such a file is opened; the flag says whether the first line names the columns."""


def parse_hub_split(spelling: str) -> dict[str, Any]:
    """Read ``owner/name[@revision][#config][:split]``; the split is ``train`` unless named."""
    rest, _, split = spelling.partition(":")
    rest, _, config = rest.partition("#")
    path, _, revision = rest.partition("@")
    return {"path": path, "name": config or None, "revision": revision or None, "split": split or "train"}


def load_hub_table(
    spelling: str,
    root: str = "",
    streaming: bool = False,
    do: str = "Check its name, revision and split, and the way to the hub.",
) -> TextTable:
    """Fetch one split, or take it from the cache.

    Args:
        spelling: ``owner/name[@revision][#config][:split]``; with a commit as the revision, numbers can be repeated.
        root: A folder that holds ``owner/name`` folders in the hub's format; the hub itself if empty.
        streaming: Read it as it comes, each time it is read, and keep nothing of it on disk.
        do: What the user can do if it cannot be loaded.

    Raises:
        DataError: If there is no such dataset, revision or split, or no way to the hub.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    where = parse_hub_split(spelling)
    try:
        rows = load_dataset(**{**where, "path": str(Path(root, where["path"]))}, streaming=streaming)
        # Of a stream in some formats the columns are known when a row was seen.
        columns: Iterable[str] = rows.column_names or next(iter(rows), {})
    except (OSError, ValueError, EOFError, DatasetsError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise DataError(f"The dataset {spelling} could not be loaded: {reason_of(cause)}. {do}") from None

    def read(names: Sequence[str]) -> Rows:
        try:
            for number, row in enumerate(rows.select_columns(list(names)), start=1):
                yield number, tuple(row[name] for name in names)
        except (OSError, ValueError, EOFError, DatasetsError) as error:
            raise DataError(f"{spelling} is damaged: {reason_of(error)}. Fetch it again.") from None

    return TextTable(spelling, tuple(columns), read, unit="row")
