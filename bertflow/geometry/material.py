"""What a report on the geometry is made of: embeddings of the same sentences by several systems, and more.

Everything but the embeddings may be missing; what is missing has a reason, which the report prints.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bertflow.geometry.cloud import Cloud, Float64
from bertflow.geometry.contextuality import LayerGeometry
from bertflow.geometry.frequency import Bin, log_frequencies
from bertflow.geometry.latent import Latent
from bertflow.geometry.masked_words import DotProductParts


@dataclass(frozen=True)
class PairCosines:
    """Pairs of sentences, by every system.

    Attributes:
        name: What the pairs are.
        cosines: Of all pairs (p,), by system.
        alike: Which pairs count as paraphrases (p,).
        rule: How that was decided, in words.
        edits: Edit distance of each pair in words (p,).
        gold: Human scores (p,), or None.
    """

    name: str
    cosines: Mapping[str, Float64]
    alike: NDArray[np.bool_]
    rule: str
    edits: NDArray[np.int64]
    gold: Float64 | None = None


@dataclass(frozen=True)
class Scores:
    """How good the systems are on the pairs: value, lower and upper end of the 95 % interval, by system."""

    metric: str
    rows: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True)
class Material:
    """All that the sections of a report are made from.

    Attributes:
        sentences: What was embedded.
        embeddings: Rows (n, dim) by system, the first one "before"; row i is sentence i.
        counts: How often words occur.
        counted: Where the counts come from, in words.
        pairs: Pairs of sentences.
        scores: How good the systems are on them.
        words: The word embeddings by frequency rank.
        layers: Contextuality of each layer.
        masked: What the dot products of a masked language model are made of.
        latents: Of the systems that claim that theirs is Gaussian.
        history: Bits per dimension by what they were measured on: (steps, bits).
        reasons: Why a part is missing, by the name of its attribute.
    """

    sentences: tuple[str, ...]
    embeddings: Mapping[str, NDArray[np.floating]]
    counts: Mapping[str, int]
    counted: str
    pairs: PairCosines | None = None
    scores: Scores | None = None
    words: tuple[Bin, ...] | None = None
    layers: tuple[LayerGeometry, ...] | None = None
    masked: DotProductParts | None = None
    latents: Mapping[str, Latent] | None = None
    history: Mapping[str, tuple[Float64, Float64]] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def clouds(self) -> dict[str, Cloud]:
        """A cloud for each system."""
        return {name: Cloud(x) for name, x in self.embeddings.items()}

    @cached_property
    def log_frequency(self) -> Float64:
        """Mean log frequency of the words of each sentence (n,)."""
        return log_frequencies(self.sentences, self.counts)
