"""The geometry of an encoder, and what is likely to help where no pair proves it.

    raw      the participation ratio of the plain mean is at most ``CALIBRATED``, random pairs have cosines far from
             zero, and nothing says that the encoder was made for sentences
    tuned    anything else

That is the rule of the preset ``default-1`` with two guards. On text of one narrow kind a tuned layer has a small ratio
as well (captions: 43 to 60, code: 56), but a sentence-transformers folder with its own pooling is tuned in any case,
and all that calibration helped had cosines far from zero. Docstrings in place of the user's text do not help: there the
tuned layer has 42 and the embedding layer 36.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bertflow.advise.reading import VectorEncoder
from bertflow.calibration.spelling import SystemSpec, parse_systems
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.pooling import Pooling, parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.evaluation.systems import SharedPass
from bertflow.moments import Moments
from bertflow.progress import unsaid
from bertflow.scoring.random_pairs import RandomPairs
from bertflow.training.rows import CALIBRATED, LOOKED_AT, STEEP, effective_rank, participation_ratio

CENTERED = 0.2
"""Median cosine of random pairs up to which a cosine can be read as it is: 0.08 on docstrings by the tuned encoder at
hand, 0.28 and more by poolings that were not tuned."""
FIRST_LAST = "sif(1,-1)+whitening"
"""Reads the first and the last block, as BERT-flow does: only where the layers may be chosen."""
UNCUT = (FIRST_LAST, "sif+whitening", "whitening")
RECIPES: Mapping[str, tuple[str, ...]] = {
    "similarity": ("soft-sif+whitening({k})", "whitening({k})"),
    "search": ("sif+two-band(1)", "two-band(1)"),
    "both": ("soft-sif+two-band(0.5)", "two-band(0.5)"),
}
"""By purpose, what is best where the spectrum is spread, k a quarter of the width; where it is steep, ``UNCUT``."""
SHORT = ("sif+whitening(128)", "whitening(128)", "sif+whitening(64)", "whitening(64)", "sif+abtt(3)", "abtt(3)")
"""What comes next, where there are too few sentences, or the tokens are not at hand."""


@dataclass(frozen=True)
class Geometry:
    """The shape of a cloud of embeddings of text that nothing was fitted on.

    Attributes:
        n: Number of embeddings.
        dim: Their width.
        mean: Mean cosine of random pairs; 0 is isotropic, 1 is one direction.
        p5: 5 % of random pairs have a lower cosine.
        median: Half of the random pairs have a lower cosine.
        p95: 95 % of random pairs have a lower cosine.
        participation: Number of directions over which the variance is spread (participation ratio), from 1 to dim.
        norm: Mean length of an embedding.
        norm_deviation: Standard deviation of the length.
    """

    n: int
    dim: int
    mean: float
    p5: float
    median: float
    p95: float
    participation: float
    norm: float
    norm_deviation: float

    @classmethod
    def of(cls, x: NDArray[np.floating], seed: int) -> "Geometry":
        """The geometry of the rows of ``x`` (n, dim).

        Raises:
            DataError: If all embeddings are equal.
        """
        if not np.ptp(x, axis=0).any():
            raise DataError(
                f"All {len(x):,} embeddings are equal, so they tell nothing apart. Is this the right model?"
            )
        cosines, norms = RandomPairs.of(x, seed).cosines, np.linalg.norm(x.astype(np.float64), axis=1)
        p5, median, p95 = np.quantile(cosines, [0.05, 0.5, 0.95]).tolist()
        n, dim, mean, spread = *x.shape, float(cosines.mean()), participation_ratio(Moments.of(x))
        return cls(n, dim, mean, p5, median, p95, spread, float(norms.mean()), float(norms.std()))

    @property
    def centered(self) -> bool:
        """Whether random pairs have cosines near zero."""
        return self.median <= CENTERED

    def __str__(self) -> str:
        """One line."""
        return (
            f"random pairs have cosine {self.median:.2f} (90 % of them {self.p5:.2f} to {self.p95:.2f}); the variance "
            f"is spread over {self.participation:.0f} of {self.dim} directions; length {self.norm:.3g} +- "
            f"{self.norm_deviation:.2g}"
        )


@dataclass(frozen=True)
class Shape:
    """What the geometry of the plain mean of an encoder's layers says, and the encoder itself.

    Attributes:
        dim: Width.
        spread: Participation ratio, from 1 to ``dim``.
        rank: Effective rank, from 1 to ``dim``.
        made: What says that it was made for sentences already, or that this cannot be known; empty for nothing.
    """

    dim: int
    spread: float
    rank: float
    made: str = ""

    @classmethod
    def of(cls, source: SharedPass, fitted: Sequence[str]) -> "Shape":
        """The shape of an encoder on the sentences of a text."""
        plain = source.pooled(plain_pooling(source))
        moments = Moments.of(plain.encode(fitted[:LOOKED_AT]))
        return cls(plain.dim, participation_ratio(moments), effective_rank(moments), made_for_sentences(source.own))

    @property
    def raw(self) -> bool:
        """Whether it is that of the layers that calibration helped."""
        return not self.made and self.spread <= CALIBRATED

    @property
    def steep(self) -> bool:
        """Whether few directions hold the variance, so that the others are wanted."""
        return self.rank <= STEEP

    def __str__(self) -> str:
        """The number behind it."""
        made = f"; {self.made}" if self.made else ""
        return (
            f"The variance is spread over {self.spread:.0f} of {self.dim} directions (participation ratio; above "
            f"{CALIBRATED:g} only in layers that were tuned for sentences){made}."
        )


def made_for_sentences(encoder: SentenceEncoder) -> str:
    """What says so, whatever the geometry; empty for nothing."""
    if isinstance(encoder, VectorEncoder):
        return "how the encoder of the vectors was made is not known"
    if not isinstance(encoder, TransformerEncoder):
        return ""
    if encoder.supervision is not None:
        return "the encoder was fine-tuned on labelled pairs"
    try:
        with unsaid():  # what there is to say of the folder was said when it was opened
            own = parse_pooling(encoder._folder.own_pooling())
    except DataError:  # it has a module that we do not run: so the pooling was named, and is another one
        return ""
    if encoder._folder.modules and own == encoder._pooling:
        return "the encoder is a sentence-transformers model with the pooling that it was made for"
    return ""


def plain_pooling(source: SharedPass) -> str:
    """The plain mean of the layers that the encoder's own pooling reads; its own where it reads no tokens."""
    if source.recipe is None:
        return source.own_pooling
    own = parse_pooling(source.own_pooling)
    return source.own_pooling if own.tokens == "pooler" else str(replace(own, tokens="mean"))


def layers_are_open(source: SharedPass, pooling: str | None) -> bool:
    """Whether the layers may be chosen: nobody named a ``pooling``, and it is the mean of the last one."""
    return source.recipe is not None and pooling is None and parse_pooling(source.own_pooling) == Pooling()


def recipes(purpose: str, dim: int, free: bool) -> dict[bool, list[SystemSpec]]:
    """By whether few directions hold the variance, what is likely best, in this order.

    Args:
        purpose: What the encoder is used for: a row of ``RECIPES``.
        dim: Width of the embeddings.
        free: Whether the layers may be chosen.
    """
    spread = [spelling.format(k=max(1, dim // 4)) for spelling in RECIPES[purpose]]
    steep = [spelling for spelling in UNCUT if free or spelling != FIRST_LAST]
    return {True: parse_systems(",".join((*steep, *SHORT))), False: parse_systems(",".join((*spread, *SHORT)))}
