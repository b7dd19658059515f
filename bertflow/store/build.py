"""What a store is made of, and how it is begun and filled: a job (``bertflow.jobs``) whose plan is ``store.json``."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from bertflow import jobs
from bertflow.array_types import Float32
from bertflow.data.arrays import map_array, usable_rows
from bertflow.data.corpus import chunks
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.device import ahead, gpu_of
from bertflow.encoder.identity import Identity
from bertflow.encoder.notes import said_once
from bertflow.errors import DataError, logger, require_between
from bertflow.files import file_xxh3
from bertflow.places import require_room
from bertflow.progress import Advance
from bertflow.records import Count, read_record
from bertflow.registry import lookup
from bertflow.store.shards import AGAIN, DTYPES, Block, Blocks, Shards
from bertflow.store.text import HASHES, ROW_IDS, SPOOL

FORMAT = 3
MANIFEST = "store.json"
ARRAYS: Mapping[str, str] = {ROW_IDS: "int64", HASHES: "uint64"}
"""Files beside ``store.json`` that say which text the rows are of, with the type of their numbers."""
OWN = (SPOOL, *ARRAYS)
"""What a folder may hold before it has a ``store.json``."""
VERSIONED = ("bertflow", "torch", "transformers")
CHUNK = 8192
"""Sentences encoded, or rows read, at a time; memory grows with this and not with the corpus."""
GPU_CHUNK = 32768
"""Sentences given to a GPU at a time: many of its batches."""
MOST_SHARDS = 99_999
"""Number of shards at most: their names have five digits."""
SHARD_ROWS = 65536
"""Largest default size of a shard, in rows: at 300 sentences a second, a killed run loses at most 4 minutes of work."""
SHARDS_LEAST = 8
"""Number of shards of a small store, so that several processes can share it."""


def default_shards(n: int) -> int:
    """Number of shards for ``n`` rows; it does not depend on the number of processes."""
    return min(MOST_SHARDS, max(SHARDS_LEAST, -(-n // SHARD_ROWS)))


def counted(blocks: Iterable[Float32], advance: Advance) -> Iterator[Float32]:
    """The blocks; ``advance`` is told the rows of each block after it was used."""
    for block in blocks:
        yield block
        advance(len(block))


def encoded(encoder: SentenceEncoder, sentences: Callable[[int, int], Iterable[str]]) -> Blocks:
    """The embeddings of ``sentences(start, stop)``, in blocks; a GPU makes the next one while one is written."""
    gpu = gpu_of(encoder)

    def blocks(start: int, stop: int) -> Iterator[Block]:
        parts = chunks(sentences(start, stop), GPU_CHUNK if gpu else CHUNK)
        made = (usable_rows(lambda part: encoder.encode(part, progress=False), part, encoder.dim) for part in parts)
        return ahead(made) if gpu else made

    return blocks


@dataclass(frozen=True)
class Manifest:
    """What ``store.json`` holds.

    Attributes:
        format: Version of the form.
        recipe: Everything that decides the numbers.
        versions: Versions of the packages that made them.
        text: Digest of the distinct sentences.
        corpus: Digest of all sentences.
        n: Number of distinct sentences.
        dim: Width of a row.
        shards: Number of files.
        storage: Precision of the rows, a row of ``DTYPES``.
        xxh3: Checksums of the arrays beside it; hashes may have been left out.
    """

    format: Literal[3]
    recipe: dict[str, Any]
    versions: dict[str, str]
    text: str
    corpus: str
    n: Count
    dim: Count
    shards: Count
    storage: str
    xxh3: dict[str, str]

    def __post_init__(self) -> None:
        require_layout(self.shards, self.storage)

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of the store in ``folder``.

        Raises:
            DataError: If the folder is not a store, or one of another format.
        """
        return read_record(folder / MANIFEST, cls, "store", "Build it again.")

    def shards_in(self, folder: Path) -> Shards:
        """The shards of the store in ``folder``."""
        return Shards(folder, self.n, self.shards, self.dim, self.storage)

    def array(self, folder: Path, name: str) -> NDArray[Any]:
        """One of ``ARRAYS``, compared with its checksum.

        Raises:
            DataError: If it is damaged.
        """
        array = map_array(folder / name, AGAIN)
        if not self.is_whole(folder, name) or (array.dtype.name, array.ndim) != (ARRAYS[name], 1):
            raise DataError(f"{folder / name} is damaged: it is not what the store was begun with. {AGAIN}")
        return array

    def is_whole(self, folder: Path, name: str) -> bool:
        """Whether one of ``ARRAYS`` is there, with its checksum; or was left out."""
        there = (folder / name).is_file()
        return there and self.xxh3[name] == file_xxh3(folder / name) if name in self.xxh3 else not there

    def check(self, folder: Path, plan: Mapping[str, Any]) -> None:
        """Compare the store in ``folder`` with a plan.

        Raises:
            DataError: If they differ; the message gives both values of everything that differs.
        """
        others = Identity.from_record(self.recipe).differences(Identity.from_record(plan["recipe"]))
        changed = [f"{one.key} {one.mine!r} (now {one.theirs!r})" for one in others]
        wanted = {name: value for name, value in plan.items() if name != "recipe"}
        changed += jobs.changes({name: getattr(self, name) for name in wanted}, wanted)
        newer = jobs.changes(self.versions, _versions())
        finished = newer and len(self.shards_in(folder).job.marks()) == self.shards
        jobs.require_plan(folder, "store", changed if finished else changed + newer)
        if newer:
            logger.warning("%s was made by another version: %s.", folder, ", ".join(newer))


def require_layout(shards: int | None, storage: str | None) -> None:
    """Refuse files that no store can have; None is the default.

    Raises:
        UnknownNameError: For another precision.
        UsageError: For another number.
    """
    if storage is not None:
        lookup("store dtype", DTYPES, storage)
    require_between(1, MOST_SHARDS, shards=shards)


def plan_of(
    recipe: Mapping[str, Any], dim: int, shards: int | None, storage: str | None, **known: Any
) -> dict[str, Any]:
    """What a store should hold, as far as it is known: fields of its ``Manifest``."""
    require_layout(shards, storage)
    plan = {"recipe": dict(recipe), "dim": dim, "shards": shards, "storage": storage, **known}
    return {name: value for name, value in plan.items() if value is not None}


def begin(folder: Path, create: Callable[[], Mapping[str, Any]], check: Callable[[], Mapping[str, Any]]) -> None:
    """Begin a new store, or compare the existing one with its plan.

    Args:
        folder: Folder of the store.
        create: Writes the corpus of a new store and returns its plan; called again where a file of it is damaged.
        check: Returns the plan to compare an existing store with.

    Raises:
        DataError: If the store holds something else.
        UsageError: If the folder holds other files.
    """

    def manifest() -> dict[str, Any]:
        plan = create()
        chosen = {"shards": default_shards(plan["n"]), "storage": "float32", **plan}
        sums = {name: file_xxh3(folder / name) for name in ARRAYS if (folder / name).exists()}
        return {**chosen, "format": FORMAT, "versions": _versions(), "xxh3": sums}

    if _is_read_only(folder):
        Manifest.read(folder).check(folder, check())
    elif not jobs.begin_job(folder / MANIFEST, "store", OWN, manifest):
        Manifest.read(folder).check(folder, check())
        with jobs.locked(folder / jobs.PLAN_LOCK, "begins the store"):
            held = Manifest.read(folder)
            if not all(held.is_whole(folder, name) for name in ARRAYS):
                create()
                if HASHES not in held.xxh3:
                    (folder / HASHES).unlink(missing_ok=True)


def fill(folder: Path, blocks: Blocks, advance: Advance) -> None:
    """Compute the missing shards, and wait for those that other processes compute; in the end the text is deleted.

    Raises:
        BadRowsError: For rows that cannot be used, unless they are left out (``bertflow.skip_bad``).
    """
    if _is_read_only(folder):
        return
    manifest = Manifest.read(folder)
    shards, size = manifest.shards_in(folder), manifest.dim * DTYPES[manifest.storage].itemsize
    require_room(folder / "shards", size * (manifest.n - sum(mark.rows for mark in shards.job.marks().values())))

    with said_once():
        shards.job.work(lambda number: shards.write(number, blocks, advance), advance)
    with jobs.locked(folder / jobs.PLAN_LOCK, "tidies up"):
        shutil.rmtree(folder / SPOOL, ignore_errors=True)


def _is_read_only(folder: Path) -> bool:
    """Whether a store stands where nothing can be written; a finished one can be used all the same."""
    return not os.access(folder, os.W_OK) and (folder / MANIFEST).exists()


def _versions() -> dict[str, str]:
    return {name: version(name) for name in VERSIONED}
