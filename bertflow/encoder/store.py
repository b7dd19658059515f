"""Embeddings at rest: computed once, read many times, never half written.

    store.json                     the recipe (all that decides the numbers), sizes, digest of the text
    row_ids.npy                    the corpus as rows of the store: row_ids[i] is the row of sentence i
    text_hashes.npy                what the corpus was, for provenance (``bertflow.text_keys``)
    shards/00000-of-00008.npy      the embeddings of distinct sentences, in order of first appearance
    done/00000-of-00008.json       written last: how many rows, their checksum, and the center of a float16 shard

The number of shards is fixed when a store is begun, whoever computes them. A run that was killed is continued by
building again: shards with a valid marker are kept, the others are computed. Reading maps the files into memory.

``float16`` halves the disk: a shard is then kept around a center of its own, so that the common mean of all embeddings,
often most of their length, does not eat the precision of what tells them apart.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.encoder.batching import check_sentences
from bertflow.encoder.progress import sentence_bar
from bertflow.encoder.transformer import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.files import atomic_file, file_sha256, read_json, to_json, write_json
from bertflow.registry import lookup
from bertflow.text_keys import hash_texts

FORMAT = 1
DTYPES: Mapping[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
CHUNK = 8192
"""Sentences encoded at a time; memory grows with this, not with the corpus."""


@dataclass(frozen=True)
class Shard:
    """Some consecutive rows of a store: ``start`` to ``stop``, in a file, with a marker once it is done."""

    start: int
    stop: int
    path: Path
    marker: Path

    def is_whole(self) -> bool:
        """Whether the file is the one that the marker speaks of."""
        if not (self.marker.exists() and self.path.exists()):
            return False
        return bool(read_json(self.marker)["sha256"] == file_sha256(self.path))


class EmbeddingStore:
    """A folder of embeddings, one row a distinct sentence.

    Made by ``build`` or ``open``.

    Attributes:
        folder: Where it lies.
        n: Rows, that is, distinct sentences.
        dim: Width of a row.
        recipe: What the encoder said of itself.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._manifest = read_json(self.folder / "store.json")
        if self._manifest.get("format") != FORMAT:
            found = self._manifest.get("format")
            raise DataError(
                f"{folder} should be a store of format {FORMAT}, but its store.json says {found}. Build it again."
            )
        self.n: int = self._manifest["n"]
        self.dim: int = self._manifest["dim"]
        self.recipe: dict[str, Any] = self._manifest["recipe"]

    @classmethod
    def build(
        cls,
        encoder: SentenceEncoder,
        sentences: Sequence[str],
        folder: str | Path,
        shards: int = 8,
        dtype: str = "float32",
        progress: bool = False,
    ) -> "EmbeddingStore":
        """Encode each distinct sentence once; what is there already is kept.

        Args:
            encoder: Makes the embeddings.
            sentences: The corpus.
            folder: New, or begun by an earlier call with the same arguments.
            shards: Into how many files; also how finely a killed run is resumed.
            dtype: ``float32``, or ``float16`` around each shard's center.
            progress: Show a bar on stderr.

        Raises:
            DataError: If the folder holds a store of something else; the message names what differs.
        """
        check_sentences(sentences)
        lookup("store dtype", DTYPES, dtype)
        if not len(sentences) or shards < 1:
            raise UsageError(
                f"A store needs sentences and shards, got {len(sentences)} and {shards}. Give one at least."
            )
        rows = {sentence: row for row, sentence in enumerate(dict.fromkeys(sentences))}
        manifest = {
            "format": FORMAT,
            "recipe": encoder.describe(),
            "text": _text_digest(sentences),
            "n": len(rows),
            "dim": encoder.dim,
            "shards": shards,
            "dtype": dtype,
        }
        folder = Path(folder)
        if (folder / "store.json").exists():
            _check_same(folder, cls(folder)._manifest, json.loads(to_json(manifest)))
        else:
            _write_array(folder / "row_ids.npy", np.array([rows[sentence] for sentence in sentences], dtype=np.int64))
            _write_array(folder / "text_hashes.npy", hash_texts(rows))
            write_json(folder / "store.json", manifest)
        cls(folder)._fill(encoder, list(rows), progress)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> "EmbeddingStore":
        """A finished store.

        Raises:
            DataError: If it is no store, or not finished.
        """
        store = cls(folder)
        shards = store._shards
        missing = [shard for shard in shards if not (shard.marker.exists() and shard.path.exists())]
        if missing:
            raise DataError(
                f"{folder} is not finished: {len(missing)} of {len(shards)} shards are missing, {missing[0].path.name} "
                "the first. Build it again with the same text and encoder; what is done is kept."
            )
        return store

    def __len__(self) -> int:
        return self.n

    @functools.cached_property
    def row_ids(self) -> NDArray[np.int64]:
        """The row of each sentence of the corpus, in the corpus' order."""
        return np.load(self.folder / "row_ids.npy")

    @functools.cached_property
    def text_hashes(self) -> NDArray[np.uint64]:
        """Hashes of the corpus, sorted."""
        return np.load(self.folder / "text_hashes.npy")

    def rows(self, indices: NDArray[np.integer] | Sequence[int]) -> NDArray[np.float32]:
        """Some rows, in any order; (len(indices), dim).

        Raises:
            UsageError: If an index is out of range.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self.n:
            raise UsageError(f"Rows go from 0 to {self.n - 1}, got {wanted.min()} to {wanted.max()}. Mind the row ids.")
        found = np.empty((len(wanted), self.dim), dtype=np.float32)
        starts = [shard.start for shard in self._shards]
        owner = np.searchsorted(starts, wanted, side="right") - 1
        for number in np.unique(owner):
            mine = owner == number
            found[mine] = self._read(number, wanted[mine] - starts[number])
        return found

    def blocks(self, size: int = CHUNK) -> Iterator[NDArray[np.float32]]:
        """All rows in order, in blocks of at most ``size``: for what streams, as ``Moments`` do."""
        for number, shard in enumerate(self._shards):
            for start in range(0, shard.stop - shard.start, size):
                yield self._read(number, slice(start, start + size))

    @functools.cached_property
    def _shards(self) -> list[Shard]:
        count = self._manifest["shards"]
        bounds = [self.n * number // count for number in range(count + 1)]
        names = [f"{number:05d}-of-{count:05d}" for number in range(count)]
        return [
            Shard(start, stop, self.folder / "shards" / f"{name}.npy", self.folder / "done" / f"{name}.json")
            for name, (start, stop) in zip(names, pairwise(bounds), strict=True)
        ]

    @functools.cached_property
    def _mapped(self) -> list[tuple[NDArray[Any], NDArray[np.float32]]]:
        """Each shard's rows as they lie on disk, and its center."""
        return [
            (np.load(shard.path, mmap_mode="r"), np.array(read_json(shard.marker)["center"], dtype=np.float32))
            for shard in self._shards
        ]

    def _read(self, number: int, index: NDArray[np.int64] | slice) -> NDArray[np.float32]:
        stored, center = self._mapped[number]
        return stored[index].astype(np.float32) + center

    def _fill(self, encoder: SentenceEncoder, sentences: list[str], progress: bool) -> None:
        """Compute the shards that are not whole."""
        with sentence_bar(len(sentences), progress) as advance:
            for shard in self._shards:
                if not shard.is_whole():
                    self._compute(shard, encoder, sentences[shard.start : shard.stop])
                advance(shard.stop - shard.start)

    def _compute(self, shard: Shard, encoder: SentenceEncoder, sentences: list[str]) -> None:
        for leftover in shard.path.parent.glob(f".{shard.path.name}.*"):
            leftover.unlink()  # of a run that was killed
        dtype = DTYPES[self._manifest["dtype"]]
        center = np.zeros(self.dim, dtype=np.float32)
        header = {"descr": dtype.str, "fortran_order": False, "shape": (len(sentences), self.dim)}
        with atomic_file(shard.path) as aside, aside.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, len(sentences), CHUNK):
                x = encoder.encode(sentences[start : start + CHUNK])
                if start == 0 and dtype.itemsize == 2:
                    center = x.mean(0)
                file.write(_narrow(x - center, dtype).tobytes())
        write_json(shard.marker, {"rows": len(sentences), "sha256": file_sha256(shard.path), "center": center.tolist()})


def _narrow(x: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """``x`` in the dtype of the store."""
    largest = np.abs(x).max(initial=0)
    if not largest <= np.finfo(dtype).max:
        raise DataError(f"Embeddings reach {largest:g}, more than {dtype.name} holds. Use a store of float32.")
    return x.astype(dtype)


def _check_same(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse to mix two stores in one folder."""
    before, now = ({**manifest, **manifest["recipe"]} for manifest in (old, new))
    changed = [key for key in sorted(before | now) if key != "recipe" and before.get(key) != now.get(key)]
    if changed:
        changes = ", ".join(f"{key} {before.get(key)!r} (now {now.get(key)!r})" for key in changed)
        raise DataError(
            f"{folder} holds a store of something else: {changes}. Choose another folder, or delete this one."
        )


def _text_digest(sentences: Sequence[str]) -> str:
    """One fingerprint for the same sentences in the same order."""
    sha = hashlib.sha256()
    for sentence in sentences:
        encoded = sentence.encode()
        sha.update(len(encoded).to_bytes(8, "little") + encoded)
    return sha.hexdigest()


def _write_array(path: Path, array: NDArray[Any]) -> None:
    with atomic_file(path) as aside, aside.open("wb") as file:
        np.save(file, array)
