"""One file of a store and its marker.

    shards/00000-of-00008.npy     consecutive rows, float32 or float16
    done/00000-of-00008.json      written last: rows, bytes, checksum, and the center that was taken off float16 rows

A shard without its marker is not there. Both are written aside and renamed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError
from bertflow.files import atomic_file, file_sha256, write_json
from bertflow.progress import Advance
from bertflow.records import read_record

DTYPES: Mapping[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
"""How rows may rest."""
SHARD_ROWS = 65536
"""Rows of a shard, where nobody says how many shards there are: with an encoder of 300 sentences a second, 4 minutes of
work that a killed run loses at most."""
SHARDS_LEAST = 8
"""Shards of a small store, so that some processes can share it."""


def default_shards(n: int) -> int:
    """How many shards ``n`` rows are kept in: a function of the rows alone, whoever computes them."""
    return max(SHARDS_LEAST, -(-n // SHARD_ROWS))


@dataclass(frozen=True)
class Marker:
    """What the marker of a finished shard says of its file."""

    bytes: int
    sha256: str
    center: list[float]


@dataclass(frozen=True)
class Shard:
    """Some consecutive rows of a store: ``start`` to ``stop``, in a file, with a marker once it is done."""

    start: int
    stop: int
    path: Path
    marker: Path

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.stop - self.start

    def is_done(self) -> bool:
        """Whether the file is there, as long as its marker says."""
        if not (self.marker.exists() and self.path.exists()):
            return False
        return self._read_marker().bytes == self.path.stat().st_size

    def is_whole(self) -> bool:
        """Whether the file is the one that the marker speaks of, byte for byte; reads all of it."""
        return self.is_done() and self._read_marker().sha256 == file_sha256(self.path)

    def mapped(self) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The rows as they lie on disk, and their center."""
        return np.load(self.path, mmap_mode="r"), np.array(self._read_marker().center, dtype=np.float32)

    def _read_marker(self) -> "Marker":
        return read_record(self.marker, Marker, "marker of a shard", "Delete it and build the store again.")

    def write(self, blocks: Iterable[NDArray[np.float32]], dim: int, dtype: np.dtype[Any]) -> None:
        """Write file and marker; only for whoever holds the shard's lock.

        Raises:
            DataError: If a row does not fit the dtype, or is not finite.
        """
        for leftover in self.path.parent.glob(f".{self.path.name}.*"):
            leftover.unlink()  # of a run that was killed
        self.marker.unlink(missing_ok=True)  # from here on there is no shard, until the new one is whole
        center, sha, written = np.zeros(dim, dtype=np.float32), hashlib.sha256(), 0
        with atomic_file(self.path) as aside, aside.open("wb") as file:
            header = {"descr": dtype.str, "fortran_order": False, "shape": (self.rows, dim)}
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            sha.update(aside.read_bytes())
            for x in blocks:
                if not written and dtype.itemsize == 2:
                    center = x.mean(0)
                block = np.ascontiguousarray(_narrow(x - center, dtype)).data
                sha.update(block)
                file.write(block)
                written += len(x)
        assert written == self.rows, "a shard is given all of its rows"
        facts = {"rows": self.rows, "bytes": self.path.stat().st_size, "sha256": sha.hexdigest()}
        write_json(self.marker, facts | {"center": center.tolist()})


def layout(folder: Path, n: int, count: int) -> list[Shard]:
    """``n`` rows in ``count`` files of equal length, or nearly."""
    bounds = [n * number // count for number in range(count + 1)]
    names = [f"{number:05d}-of-{count:05d}" for number in range(count)]
    return [
        Shard(start, stop, folder / "shards" / f"{name}.npy", folder / "done" / f"{name}.json")
        for name, (start, stop) in zip(names, pairwise(bounds), strict=True)
    ]


def counted(blocks: Iterable[NDArray[np.float32]], advance: Advance) -> Iterator[NDArray[np.float32]]:
    """The same blocks; ``advance`` is told the rows of each once it was used."""
    for block in blocks:
        yield block
        advance(len(block))


def _narrow(x: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """``x`` in the dtype of the store."""
    largest = np.abs(x).max(initial=0)
    if not largest <= np.finfo(dtype).max:
        raise DataError(f"Embeddings reach {largest:g}, more than {dtype.name} holds. Use a store of float32.")
    return x.astype(dtype, copy=False)
