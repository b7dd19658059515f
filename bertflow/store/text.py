"""The text of a store: read once as a stream; a distinct sentence is known by its 64-bit hash.

    sentences.txt     the text, one sentence per line; read again shard by shard, then deleted
    starts.npy        where each distinct sentence starts in it, in order of first appearance
    row_ids.npy       for each sentence of the text, the number of its distinct sentence
    text_hashes.npy   sorted hashes of the text's keys, for provenance (``bertflow.text_keys``)

Whatever grows with the text is kept in memory-mapped files: 48 bytes a sentence, besides the text. The probability that
two different sentences share a hash, and so an embedding, is 3e-6 among ten million sentences and 0.03 among a billion.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.array_types import Hashes, Int64
from bertflow.data.arrays import map_array
from bertflow.data.corpus import chunks
from bertflow.errors import BadRowsError, DataError
from bertflow.files import allocate, atomic_file
from bertflow.text_keys import hash_text

CHUNK = 65536
"""Sentences, or numbers, in memory at a time."""
BUCKET = 2**20
"""Hashes that are sorted at a time, as long as there are at most ``BUCKETS`` buckets."""
BUCKETS = 64
RAW = {"hashes.raw": np.uint64, "offsets.raw": np.int64, "keys.raw": np.uint64}
SPOOL = "text"
"""The folder of a store that holds its text until the store is finished."""
SENTENCES, STARTS, ROW_IDS, HASHES = "sentences.txt", "starts.npy", "row_ids.npy", "text_hashes.npy"


def exact_hashes(sentences: Iterable[str]) -> Hashes:
    """64-bit hashes of sentences as they are written: equal text, equal hash."""
    digests = (hashlib.blake2b(sentence.encode(), digest_size=8).digest() for sentence in sentences)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def text_digest(hashes: Iterable[Hashes]) -> str:
    """One fingerprint of some sentences in their order, from chunks of their hashes."""
    sha = hashlib.sha256()
    for chunk in hashes:
        sha.update(np.ascontiguousarray(chunk, dtype="<u8").data)
    return sha.hexdigest()


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array, whole or not at all; a memory-mapped array is not loaded."""
    with atomic_file(path) as aside, aside.open("wb") as file:
        np.save(file, array)


def index_text(sentences: Iterable[str], folder: Path) -> tuple[int, str, str]:
    """Read a text, sentences of one line, into an empty folder.

    Returns:
        The number of distinct sentences, and the ``text_digest`` of them and of all sentences, repeats included.
    """
    total = _spool(sentences, folder)
    if not total:
        return 0, text_digest([]), text_digest([])
    raw: list[NDArray[Any]] = [np.memmap(folder / name, dtype=dtype, mode="r") for name, dtype in RAW.items()]
    hashes, offsets, keys = raw
    first = np.memmap(folder / "first.raw", dtype=np.int64, mode="w+", shape=(total,))
    row_ids = np.lib.format.open_memmap(folder / ROW_IDS, mode="w+", dtype=np.int64, shape=(total,))
    for name in ("first.raw", ROW_IDS):
        allocate(folder / name)
    first_appearances(hashes, first)
    n = number_rows(first, row_ids)
    _save_parts(folder / STARTS, _at_first(offsets, first), np.int64)
    _save_parts(folder / HASHES, (np.unique(keys[where]) for where in _buckets(keys)), np.uint64)
    text, corpus = text_digest(_at_first(hashes, first)), text_digest([hashes])
    for path in folder.glob("*.raw"):
        path.unlink()
    return n, text, corpus


def text_rows(folder: Path, start: int, stop: int | None) -> Iterator[str]:
    """Distinct sentences ``start`` to ``stop`` (None: the last) of a text that was read, one at a time."""
    with (folder / SENTENCES).open("rb") as file:
        for offset in map_array(folder / STARTS)[start:stop]:
            file.seek(offset)
            yield file.readline().removesuffix(b"\n").decode()


def rows_digest(folder: Path) -> str:
    """The ``text_digest`` of all distinct sentences of a text that was read; empty if it is missing or damaged."""
    try:
        return text_digest(exact_hashes(chunk) for chunk in chunks(text_rows(folder, 0, None), CHUNK))
    except (OSError, ValueError, TypeError, OverflowError):  # it is not text, or its starts are no places in it
        return ""


def first_appearances(hashes: Hashes, first: Int64) -> None:
    """Write to ``first``, for each hash, the position of its first appearance; memory grows with a bucket."""
    for where in _buckets(hashes):
        _, index, inverse = np.unique(hashes[where], return_index=True, return_inverse=True)
        first[where] = where[index][inverse]


def number_rows(first: Int64, row_ids: Int64) -> int:
    """Write to ``row_ids`` the number of each sentence's distinct sentence; returns the number of distinct ones."""
    n = 0
    for start in range(0, len(first), CHUNK):
        part = first[start : start + CHUNK]
        rank = n + np.cumsum(part == np.arange(start, start + len(part)))
        row_ids[start : start + len(part)] = rank - 1  # right where a sentence is new
        row_ids[start : start + len(part)] = row_ids[part]
        n = int(rank[-1])
    return n


def places(rows: Mapping[int, str], row_ids: Int64) -> dict[int, str]:
    """What is known of some rows, by the places of their sentences in the corpus."""
    return {int(at): rows[int(row_ids[at])] for at in np.flatnonzero(np.isin(row_ids, list(rows)))}


def renumbered(row_ids: Int64, left_out: Iterable[int]) -> Int64:
    """The row of each sentence of a corpus, where some rows were left out, and their sentences with them."""
    gone = np.array(sorted(left_out), dtype=np.int64)
    if not len(gone):
        return row_ids
    kept = row_ids[~np.isin(row_ids, gone)]
    return kept - np.searchsorted(gone, kept)


@contextmanager
def by_places(row_ids: Int64) -> Iterator[None]:
    """Count bad rows by the places of their sentences in the corpus."""
    try:
        yield
    except BadRowsError as error:
        bad = places(error.bad, row_ids)
        raise BadRowsError(bad, "Sentence {}: {}".format(*min(bad.items()))) from None


def _spool(sentences: Iterable[str], folder: Path) -> int:
    """Write the text, and hash, offset and key of each sentence; returns the number of sentences."""
    total = offset = 0
    with ExitStack() as stack:
        text = stack.enter_context((folder / SENTENCES).open("wb"))
        hashes, offsets, keys = (stack.enter_context((folder / name).open("wb")) for name in RAW)
        for chunk in chunks(sentences, CHUNK):
            lines = [sentence.encode() + b"\n" for sentence in chunk]
            for number, line in enumerate(lines, start=total):
                if b"\n" in line[:-1]:
                    raise DataError(
                        f"Sentence {number} of the stream has several lines. Replace its line ends by spaces."
                    )
            starts = offset + np.cumsum([0] + [len(line) for line in lines])
            text.writelines(lines)
            exact_hashes(chunk).tofile(hashes)
            starts[:-1].astype(np.int64).tofile(offsets)
            np.array([hash_text(sentence) for sentence in chunk], dtype=np.uint64).tofile(keys)
            total, offset = total + len(chunk), int(starts[-1])
    return total


def _buckets(hashes: Hashes) -> Iterator[Int64]:
    """Ascending positions of the hashes of each bucket; hashes of a later bucket are larger."""
    bits = min(BUCKETS, max(1, len(hashes) // BUCKET)).bit_length() - 1
    shift = np.uint64(64 - bits)
    for bucket in range(2**bits):
        parts = []
        for start in range(0, len(hashes), CHUNK):
            chunk = hashes[start : start + CHUNK]
            here = chunk >> shift == bucket if bits else np.ones(len(chunk), dtype=bool)
            parts.append(start + np.flatnonzero(here))
        yield np.concatenate(parts)


def _save_parts(path: Path, parts: Iterable[NDArray[Any]], dtype: type) -> None:
    """Write arrays, one after the other, as one .npy file."""
    raw = path.with_suffix(".raw")
    with raw.open("wb") as file:
        for part in parts:
            part.tofile(file)
    save_array(path, np.memmap(raw, dtype=dtype, mode="r"))


def _at_first(values: NDArray[Any], first: Int64) -> Iterator[NDArray[Any]]:
    """The ``values`` of first appearances, in order, in chunks."""
    for start in range(0, len(first), CHUNK):
        part = first[start : start + CHUNK]
        yield values[start : start + len(part)][part == np.arange(start, start + len(part))]


def distinct_rows(sentences: Sequence[str]) -> tuple[list[str], Int64]:
    """The distinct sentences of a list, and the row of each sentence among them."""
    rows = {sentence: row for row, sentence in enumerate(dict.fromkeys(sentences))}
    return list(rows), np.array([rows[sentence] for sentence in sentences], dtype=np.int64)
