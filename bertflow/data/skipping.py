"""Rows that cannot be used: refused, or left out and listed where the user asks for it.

    with bertflow.skip_bad("bad.tsv") as skipped:        bertflow embed text.tsv --store mine --skip_bad bad.tsv
        bertflow.embed(["text.tsv"], store="mine")
    len(skipped)

A bad row is a line that is not UTF-8 or not JSON, a line with a cell too many, an empty cell, a score that is not a
number, a vector with a NaN or of zeros alone, a sentence whose embedding is not finite, for ``embed``. What is wrong
with a whole file (it is missing, it is damaged, its columns or its first line) is refused all the same, and so is a
task that has a known number of pairs.

The rows that are left are numbered without gaps, so row i of what is made is row i of those that were kept: what stands
in the list must be taken out of the input, too, to put both side by side.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertflow.errors import BadRowsError, DataError, RowError
from bertflow.files import require_place
from bertflow.progress import place
from bertflow.tables import require_writable, write_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Given = TypeVar("Given")
Made = TypeVar("Made")
HEADER = ("file", "row", "line", "reason")
"""Columns of the list: rows are numbered as in messages, from 0 in vectors and from 1 in tables; lines from 1."""


class SkippedRows:
    """The rows that were left out so far; one that is read twice counts once."""

    def __init__(self) -> None:
        self._errors: dict[tuple[str, int | str], RowError] = {}

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, error: RowError) -> None:
        """Leave out one more row."""
        self._errors.setdefault((error.file, error.number), error)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """File, row, line and reason of each; of row and line one is empty."""
        numbers = (("", one.number) if one.unit == "line" else (one.number, "") for one in self._errors.values())
        errors = self._errors.values()
        return [(one.file, *number, one.reason) for one, number in zip(errors, numbers, strict=True)]


_ACTIVE: ContextVar[SkippedRows | None] = ContextVar("skipped", default=None)


@contextmanager
def skip_bad(file: str | Path) -> Iterator[SkippedRows]:
    """Leave out rows that cannot be used, and list them, instead of refusing the first one.

    Args:
        file: Where the list is written when the block ends without an error: .tsv, .csv or .jsonl, with the columns
            file, row, line and reason. A list that is there is replaced.

    Yields:
        What is left out, as it becomes known.

    Raises:
        UnknownNameError: For another ending.
        DataError: If ``file`` holds something else than such a list.
        OSError: If nothing can be written there.
    """
    require_writable(file)
    require_place(file)
    _require_own(Path(file))
    skipped = SkippedRows()
    token = _ACTIVE.set(skipped)
    try:
        yield skipped
    finally:
        _ACTIVE.reset(token)
    if place()[0] == 0:
        write_rows(file, HEADER, skipped.rows)


@contextmanager
def none_skipped() -> Iterator[None]:
    """Refuse bad rows in a block in any case: those that say how others are to be read."""
    token = _ACTIVE.set(None)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def skipping() -> SkippedRows | None:
    """What is left out so far; None where bad rows are refused."""
    return _ACTIVE.get()


def leave_out(error: RowError) -> None:
    """Refuse a row, unless bad rows are left out."""
    if (skipped := _ACTIVE.get()) is None:
        raise error
    skipped.add(error)


def usable(make: Callable[[Given], Made], rows: Iterable[Given]) -> Iterator[Made]:
    """As ``map``, without those rows of which ``make`` raises a ``RowError``, where bad rows are left out."""
    for row in rows:
        try:
            made = make(row)
        except RowError as error:
            leave_out(error)
        else:
            yield made


def refuse(bad: Mapping[int, str]) -> None:
    """Refuse rows, unless there are none or bad rows are left out."""
    if bad and _ACTIVE.get() is None:
        raise BadRowsError(bad)


def usable_rows(
    function: "Callable[[Any], NDArray[np.floating]]", rows: "Sequence[Any] | NDArray[Any]", dim: int
) -> "tuple[NDArray[np.floating], dict[int, str]]":
    """What ``function`` makes of those rows that it takes, (n, dim), and what is wrong with the others, by number."""
    import numpy as np

    kept, bad = [*range(len(rows))], dict[int, str]()
    while kept:
        try:
            made = function([rows[row] for row in kept] if bad else rows)
            if odd := np.flatnonzero(~np.isfinite(made).all(1)).tolist():
                raise BadRowsError(dict.fromkeys(odd, "comes out as a number that is not finite. Leave it out."))
            return made, bad
        except BadRowsError as error:
            bad |= {kept[at]: reason for at, reason in error.bad.items()}
            kept = [row for row in kept if row not in bad]
    return np.empty((0, dim), np.float32), bad


def _require_own(path: Path) -> None:
    from bertflow.data.tables import open_table

    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    columns: Sequence[str] = open_table(path).columns
    if tuple(columns) != HEADER:
        raise DataError(f"{path} should become the list of bad rows, but holds something else. Name another file.")
