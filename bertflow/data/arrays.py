"""Files of NumPy: bertflow's own are mapped into memory, those of a user are read.

A map of a file that somebody cuts meanwhile ends the process without a word, and one that is overwritten gives rows of
two files.
"""

import errno
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic, write_array_header_1_0
from numpy.typing import NDArray

from bertflow.array_types import Floats
from bertflow.errors import BadRowsError, DataError, reason_of

HEADER_ERRORS = (ValueError, OSError, EOFError, SyntaxError, TokenError, TypeError, ArithmeticError, MemoryError)
"""What NumPy raises for a damaged head of an array, which it reads as Python."""
AGAIN = "Save it again with numpy.save."


@dataclass(frozen=True)
class ArrayFile:
    """An array in a .npy file, of which only the head was read.

    Attributes:
        path: The file.
        shape: Shape of the array.
        dtype: Type of its numbers.
        by_column: Whether the first index varies fastest, as in Fortran.
        head: Bytes before the first number.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool
    head: int

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Some rows of a matrix.

        Raises:
            DataError: If they are no longer in the file.
        """
        n, dim = self.shape
        if self.by_column:
            return np.stack([self._numbers(column * n + start, stop - start) for column in range(dim)], axis=1)
        return self._numbers(start * dim, (stop - start) * dim).reshape(-1, dim)

    def _numbers(self, first: int, count: int) -> NDArray[Any]:
        found = np.fromfile(self.path, self.dtype, count, offset=self.head + first * self.dtype.itemsize)
        if len(found) < count:
            raise changed(self.path)
        return found


def open_array(path: Path) -> ArrayFile:
    """Read the head of a .npy file.

    Raises:
        DataError: If it is damaged, or the file is shorter than it says.
    """
    with _readable(path, AGAIN), path.open("rb") as file:
        read_header = read_array_header_1_0 if read_magic(file) == (1, 0) else read_array_header_2_0
        shape, by_column, dtype = read_header(file)
        array = ArrayFile(path, shape, dtype, by_column, file.tell())
        size = array.head + math.prod(shape) * dtype.itemsize
        if dtype.hasobject or min(shape, default=0) < 0 or size > path.stat().st_size:
            raise ValueError(f"an array of shape {shape} and type {dtype} is not in it")
        return array


def map_array(path: Path, do: str = AGAIN) -> NDArray[Any]:
    """Map a .npy file of bertflow's own into memory, read-only.

    Raises:
        DataError: If it is missing, damaged, or holds objects; ``do`` says what the user can do about it.
        MemoryError: If the process may not have that much.
    """
    if not path.is_file():
        raise DataError(f"{path} is missing. {do}")
    with _readable(path, do):
        return np.lib.format.open_memmap(path, mode="r")


def write_head(file: BinaryIO, dtype: np.dtype[Any], rows: int, dim: int) -> None:
    """Begin a .npy file of a matrix; the head of another number of rows takes as many bytes."""
    write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": (rows, dim)})


def changed(path: Path) -> DataError:
    """The error of a file that is written to while it is read."""
    return DataError(
        f"{path} should stay as it is while it is read, but it was changed. Run the command again once it is whole."
    )


@contextmanager
def _readable(path: Path, do: str) -> Iterator[None]:
    """Refuse whatever NumPy cannot read of a file in one line."""
    try:
        with warnings.catch_warnings(action="ignore"), np.errstate(over="raise"):  # headers by Python 2, made up sizes
            yield
    except HEADER_ERRORS as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise MemoryError(f"{path.stat().st_size:,} bytes are wanted to map {path}") from None
        raise DataError(f"{path} cannot be read as a matrix: {reason_of(error)}. {do}") from None


def usable_rows(
    function: Callable[[Any], Floats], rows: Sequence[Any] | NDArray[Any], dim: int
) -> tuple[Floats, dict[int, str]]:
    """What ``function`` makes of those rows that it takes, (n, dim), and what is wrong with the others, by number."""
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
