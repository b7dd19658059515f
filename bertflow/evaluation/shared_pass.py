"""Several poolings of one transformer, each sentence through it once.

    SharedPass -- pooled("mean(1,2)") --> a SentenceEncoder
               -- pooled("sif(1,2)")  --> another one; both remember what either asked for

What was embedded is kept in memory: a few ten thousand sentences, not a corpus.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.encoder.abstract import AbstractEncoder, Float32, Role
from bertflow.encoder.transformer import TransformerEncoder


class SharedPass:
    """One transformer, whose poolings share a pass.

    Args:
        open_encoder: Gives the encoder with a pooling, by its spelling; None for the encoder's own.
    """

    def __init__(self, open_encoder: Callable[[str | None], TransformerEncoder]) -> None:
        self._open = open_encoder
        self.own = open_encoder(None)
        self.own_pooling: str = self.own.describe()["pooling"]
        self._encoders = {self.own_pooling: self.own}
        self._rows: dict[Role, dict[str, dict[str, Float32]]] = {"document": {}, "query": {}}

    def pooled(self, pooling: str, corpus: list[str] | None = None) -> "PooledEncoder":
        """The encoder with ``pooling``; all poolings should be asked for before the first sentence is embedded.

        Args:
            pooling: A spelling.
            corpus: Whose tokens ``sif`` counts where the encoder has no counts of its own.
        """
        if pooling not in self._encoders:
            self._encoders[pooling] = self._open(pooling)
            for rows in self._rows.values():
                rows.clear()
        encoder = self._encoders[pooling]
        if corpus is not None and encoder.describe().get("token_counts", "none needed") is None:
            encoder.count_tokens(corpus)
        return PooledEncoder(self, pooling, encoder)

    def embed(self, sentences: Sequence[str], pooling: str, role: Role, progress: bool | None) -> Float32:
        """Embeddings (n, dim) by one pooling; new sentences are embedded by all of them."""
        rows = self._rows[role if "query_prompt" in self.own.describe() else "document"]
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in rows]
        if new:
            found: dict[str, NDArray[np.float32]] = {}
            for encoder, poolings in self._passes():
                found |= encoder.encode_poolings(new, poolings, progress, role)
            rows.update({sentence: {name: x[row] for name, x in found.items()} for row, sentence in enumerate(new)})
        return np.array([rows[sentence][pooling] for sentence in sentences], dtype=np.float32)

    def _passes(self) -> list[tuple[TransformerEncoder, list[str]]]:
        """Which encoder does which poolings: one pass for all, unless ``sif`` has several sets of counts."""
        by_counts: dict[str, list[str]] = {}
        for name, encoder in self._encoders.items():
            by_counts.setdefault(encoder.describe().get("token_counts", ""), []).append(name)
        uncounted = by_counts.pop("", [])
        groups = list(by_counts.values()) or [[]]
        groups[0] = groups[0] + uncounted
        return [(self._encoders[group[0]], group) for group in groups]


class PooledEncoder(AbstractEncoder):
    """One pooling of a ``SharedPass``, as a ``SentenceEncoder``."""

    def __init__(self, shared: SharedPass, pooling: str, encoder: TransformerEncoder) -> None:
        self._shared, self._pooling, self._encoder = shared, pooling, encoder
        self.dim = encoder.dim

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        return self._shared.embed(sentences, self._pooling, role, progress).reshape(-1, self.dim)

    def describe(self) -> dict[str, Any]:
        """The encoder's description with this pooling."""
        return self._encoder.describe()

    def fitted_hashes(self) -> NDArray[np.uint64] | None:
        """The text whose tokens were counted, for ``sif``."""
        return self._encoder.fitted_hashes()
