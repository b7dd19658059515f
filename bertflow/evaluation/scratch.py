"""Embeddings of the same sentences by many poolings, from one pass over the text.

Together they can be larger than memory (85 poolings of 26,000 sentences by a BERT-base are 7 GB), so they lie in a
scratch folder that is gone afterwards: written a chunk of sentences at a time, read one pooling at a time.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertflow.encoder.pooling import parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError

CHUNK_BYTES = 2**28
"""Embeddings that are held in memory before they are written."""


class Scratch:
    """Embeddings (n, width) by pooling, on disk.

    Args:
        folder: An empty one.
        widths: Of the embeddings, by the spelling of their pooling.
    """

    def __init__(self, folder: Path, widths: dict[str, int]) -> None:
        self.widths = widths
        self._paths = {pooling: folder / f"{at}.f32" for at, pooling in enumerate(widths)}

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self._paths.values())

    def append(self, pooling: str, x: NDArray[np.float32]) -> None:
        """Write the embeddings of the next sentences."""
        with self._paths[pooling].open("ab") as file:
            x.tofile(file)

    def read(self, pooling: str) -> NDArray[np.float32]:
        """All embeddings of one pooling."""
        return np.fromfile(self._paths[pooling], dtype=np.float32).reshape(-1, self.widths[pooling])


@contextmanager
def embed_poolings(
    encoder: TransformerEncoder, sentences: Sequence[str], poolings: Sequence[str], progress: bool = False
) -> Iterator[Scratch]:
    """Embed the sentences once, by all poolings; what comes lasts as long as the block.

    Args:
        encoder: Should have the blocks loaded that the poolings read: it would load them anew for each chunk.
        sentences: One or more.
        poolings: Spellings.
        progress: Show a bar on stderr.
    """
    widths = {pooling: x.shape[1] for pooling, x in encoder.encode_poolings(sentences[:1], poolings).items()}
    chunk = max(1, CHUNK_BYTES // (4 * sum(widths.values())))
    with tempfile.TemporaryDirectory(prefix="bertflow-") as folder:
        scratch = Scratch(Path(folder), widths)
        for start in range(0, len(sentences), chunk):
            found = encoder.encode_poolings(sentences[start : start + chunk], poolings, progress=progress)
            for pooling, x in found.items():
                scratch.append(pooling, x)
        yield scratch


def readable(poolings: Sequence[str], blocks: int) -> list[str]:
    """Those poolings whose layers an encoder of so many blocks has."""
    return [pooling for pooling in poolings if _fits(pooling, blocks)]


def _fits(pooling: str, blocks: int) -> bool:
    try:
        parse_pooling(pooling).resolve(blocks)
    except UsageError:
        return False
    return True
