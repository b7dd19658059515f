"""The geometry of an encoder, and what is likely to help where no pair proves it.

    raw      the participation ratio of the plain mean is at most ``CALIBRATED``, random pairs have cosines far from
             zero, and nothing says that the encoder was made for sentences
    tuned    anything else

That is the rule of ``bertflow.training.auto`` with two guards. On text of one narrow kind a tuned layer has a small
ratio as well (captions: 43 to 60, code: 56), but a sentence-transformers folder with its own pooling is tuned in any
case, and all that calibration helped had cosines far from zero. Docstrings in place of the user's text do not help:
there the tuned layer has 42 and the embedding layer 36.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertflow.advise.bare_vectors import VectorEncoder
from bertflow.array_types import Floats
from bertflow.calibration.spelling import SystemSpec, parse_system, parse_systems
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.locating import own_pooling
from bertflow.encoder.pooling import TEMPLATED, Pooling, parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.evaluation.systems import SharedPass
from bertflow.geometry.sections import CENTERED
from bertflow.maps import head_of
from bertflow.moments import Moments
from bertflow.progress import unsaid
from bertflow.scoring.random_pairs import RandomPairs
from bertflow.training.auto import CALIBRATED, LOOKED_AT, STEEP, effective_rank, participation_ratio
from bertflow.training.recipe import PRESETS
from bertflow.training.recipe import PURPOSES as PRESET_OF

PURPOSES: Mapping[str, str] = {
    "similarity": "pairs that mean the same",
    "search": "the one right text for a query, in the words of such texts",
    "topic": "texts of the same kind",
    "all": "all of them: what helps one may not harm another",
}
"""What an encoder is used for."""
TOKENS: Mapping[str, str] = {"similarity": "soft-sif", "search": "sif", "topic": ""}
"""Pooling of each purpose, which goes with its map; for all uses it is that of ``FEW``."""
STEEP_TOKENS = {**TOKENS, "similarity": "sif"}
"""Pooling of each purpose where few directions hold the variance."""
MAPS: Mapping[str, str] = {"search": "ridge(16)", "topic": "ridge(50)", "all": "ridge(50)"}
"""Map of each purpose where many directions hold the variance, for which few sentences are enough; for similarity it is
that of the preset without its flow. On broad text ridge(1) harmed 2 of 54 searches, ridge(16) none and gained as much;
ridge(50) hardly ever cost neighbors of the same kind (benchmarks/EXPLORED.md)."""
STEEP_MAPS: Mapping[str, str] = {"search": "ridge(4)", "topic": "ridge(4)"}
"""Map of each purpose where few directions hold the variance; without a row "ridge(1)", whitening that shrinks."""
CROPPED = ("search", "all")
"""Purposes in which queries are moved by the gap between crops and documents, where many directions hold the variance;
where few do, it gained nothing (benchmarks/EXPLORED.md)."""
SAFE: Mapping[str, str] = {
    "spread": "soft-sif+background(0.25)+crops,background(0.25)",
    "steep": "soft-sif+background(0.25),background(0.25)",
    "one token": "background(0.5)+crops",
}
"""Candidates where something speaks against the likely map, for all purposes: if many directions hold the variance of
other text as well, if few do, and where one token is kept. The first that nothing speaks against is used."""
CHANGED: Mapping[str, str] = {
    "search": "-3 to +11 points in search (0 to +35 with a mean in place of one token)",
    "topic": "0 to +28 points in finding texts of the same kind",
    "similarity": "0 to +17 points in Spearman's correlation with scores",
    "all": "-3 to +22 points in search and 0 to +28 in finding texts of the same kind",
}
"""Effect of the safe candidates on other narrow texts, at worst and at best (benchmarks/harm.md, EXPLORED.md)."""
ENOUGH: Mapping[bool, int] = {False: 300, True: 150}
"""Different words in 5,000 (``bertflow.breadth.richness``) that these need; for search alone, or with one token, fewer
are enough, and for topic any. Below it they cost pairs of other text, or search among copies, 1 to 4 points
(benchmarks/EXPLORED.md)."""
WEIGHTS, FAINT = "faint-sif", 60
"""Candidate where there are fewer words, and the words below which it cost search up to 5 points where queries name the
thing (benchmarks/EXPLORED.md)."""
OF_WEIGHTS = "-3 to +7 points in search"
"""Effect of that candidate on texts of few words, at worst and at best (benchmarks/EXPLORED.md)."""
COSTS: Mapping[str, str] = {
    "similarity": "up to 12 points in finding texts of the same kind (P@10)",
    "search": "up to 10 points in finding texts of the same kind (P@10)",
    "topic": "up to 28 points in search (P@10)",
}
"""Cost of what is written for a purpose to another one, at worst; without a row there is none (benchmarks/harm.md,
EXPLORED.md)."""
ONE_TOKEN_COST = "up to 18 points in finding texts of the same kind (P@10), since a mean takes the place of one token"
"""Cost of search where the own pooling of the encoder reads one token."""
ONE_TOKEN = ("cls", "pooler", "last-token", *TEMPLATED)
"""Token reductions that read one token."""
FIRST_LAST = "(1,-1)"
"""The first and the last block, as BERT-flow reads them: only if the spectrum is steep and layers may be chosen."""
SHORT = [f"{tokens}{form}" for form in ("whitening(128)", "whitening(64)", "abtt(3)") for tokens in ("sif+", "")]
"""What comes next for similarity, where there are too few sentences, or the tokens are not at hand."""
FEW = 1000
"""Fewest sentences whose counts of tokens are trusted for all uses, with soft-sif; below it is faint-sif. Of 250 to 800
one-line summaries, soft-sif cost 2 to 4 points of neighbors of the same kind, and faint-sif at most 1
(benchmarks/harm.md)."""
WIDEST = 2000
"""Most dimensions that the index of pgvector takes (HNSW, of 32-bit vectors)."""
PART = 4
"""Largest part of the directions that holds the variance of vectors that look raw, if their encoder is not known. It is
one number for wide vectors, and says nothing of narrow ones."""


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
    def of(cls, x: Floats, seed: int) -> "Geometry":
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
            f"is spread over {self.participation:.0f} of {self.dim} directions; embeddings have "
            f"norm {self.norm:.3g} +- {self.norm_deviation:.2g}"
        )


@dataclass(frozen=True)
class Shape:
    """What the geometry of the plain mean of an encoder's layers says, and the encoder itself.

    Attributes:
        dim: Width.
        spread: Participation ratio, from 1 to ``dim``.
        rank: Effective rank, from 1 to ``dim``.
        made: What says that it was made for sentences already; empty for nothing.
        bare: Whether there are only vectors, and how their encoder was made cannot be known.
    """

    dim: int
    spread: float
    rank: float
    made: str = ""
    bare: bool = False

    @classmethod
    def of(cls, source: SharedPass, fitted: Sequence[str]) -> "Shape":
        """The shape of an encoder on the sentences of a text."""
        plain = source.pooled(plain_pooling(source))
        moments = Moments.of(plain.encode(fitted[:LOOKED_AT]))
        bare = isinstance(source.own, VectorEncoder)
        made = made_for_sentences(source.own)
        return cls(plain.dim, participation_ratio(moments), effective_rank(moments), made, bare)

    @property
    def raw(self) -> bool:
        """Whether the shape is that of layers that calibration helped."""
        return not self.made and self.spread <= self._most

    @property
    def _most(self) -> float:
        """Largest participation ratio of such layers."""
        return min(CALIBRATED, self.dim / PART) if self.bare else CALIBRATED

    @property
    def steep(self) -> bool:
        """Whether few directions hold the variance, so that the others are wanted."""
        return self.rank <= STEEP

    def __str__(self) -> str:
        """The number behind it."""
        tuned = f"; without a map, only layers tuned for sentences use more than {self._most:g}"
        said = f"The embeddings use {self.spread:.0f} of {self.dim} directions (participation ratio"
        return f"{said}); {self.made}." if self.made else f"{said}{tuned})."


def made_for_sentences(encoder: SentenceEncoder) -> str:
    """What says that it was made for sentences, whatever the geometry; empty for nothing."""
    if not isinstance(encoder, TransformerEncoder):
        return ""
    if encoder.supervision is not None:
        return "the encoder was fine-tuned on labeled pairs"
    try:
        with unsaid():  # what there is to say of the folder was said when it was opened
            own = parse_pooling(own_pooling(encoder.spec.folder))
    except DataError:  # it has a module that we do not run: so the pooling was named, and is another one
        return ""
    if encoder.spec.folder.modules and own == encoder.pooling:
        return "the encoder is a sentence-transformers model with the pooling that it was made for"
    return ""


def plain_pooling(source: SharedPass) -> str:
    """The plain mean of the layers that the encoder's own pooling reads; its own where it reads no tokens."""
    if source.recipe is None:
        return source.own_pooling
    own = parse_pooling(source.own_pooling)
    return source.own_pooling if own.tokens == "pooler" else str(replace(own, tokens="mean"))


def layers_are_open(source: SharedPass, pooling: str | None) -> bool:
    """Whether the layers may be chosen: no ``pooling`` was named, and it is the mean of the last one."""
    return source.recipe is not None and pooling is None and parse_pooling(source.own_pooling) == Pooling()


def linear_form(purpose: str, dim: int, steep: bool) -> str:
    """The closed form for a purpose, fitted in seconds: for similarity that of the preset without its flow.

    Args:
        purpose: What the encoder is used for.
        dim: Width of the embeddings.
        steep: Whether few directions hold the variance: then all are kept, or as many as an index takes.
    """
    if dim > WIDEST and (steep or purpose in ("search", "topic")):
        return f"whitening({WIDEST})"
    if steep or purpose in MAPS:
        return STEEP_MAPS.get(purpose, "ridge(1)") if steep else MAPS[purpose]
    tail = PRESETS[PRESET_OF[purpose]].tail
    return f"two-band({tail:g})" if tail else f"whitening({head_of(dim)})"


def reads_one_token(source: SharedPass) -> bool:
    """Whether the encoder's own pooling reads one token, as [CLS].

    A mean in its place finds the right text better, and cost neighbors of the same kind up to 17 points
    (benchmarks/harm.md): so only a purpose that is named changes it.
    """
    return source.recipe is not None and parse_pooling(source.own_pooling).tokens in ONE_TOKEN


def recipes(purpose: str, dim: int, steep: bool, free: bool, one_token: bool = False, n: int = FEW) -> list[SystemSpec]:
    """Recipes for a purpose: the first that can be fitted is used.

    Args:
        purpose: What the encoder is used for.
        dim: Width of the embeddings.
        steep: Whether few directions hold the variance.
        free: Whether the layers may be chosen.
        one_token: Whether the encoder's own pooling reads one token.
        n: Number of sentences.
    """
    kept, trusted = one_token and purpose == "all", "soft-sif" if n >= FEW else "faint-sif"
    form, gentle = linear_form(purpose, dim, steep or kept), MAPS.get(purpose)
    tokens = "" if kept else (STEEP_TOKENS if steep else TOKENS).get(purpose, trusted)
    layers = [FIRST_LAST, ""] if steep and free else [""]
    pooled = [f"{tokens}{places}+{form}" for places in layers if tokens]
    few = ([f"{tokens}+{gentle}"] if tokens else []) + [gentle] if gentle else SHORT
    cropped = ["+crops"] if purpose in CROPPED and not (steep or kept) else []
    rows = dict.fromkeys((*pooled, form, *few))
    return [parse_system(row + end) for end in (*cropped, "") for row in rows]


def fallbacks(purpose: str, words: float, steep: bool, one_token: bool = False) -> list[SystemSpec]:
    """What takes the place of a recipe that something speaks against: the first that can be fitted, in this order.

    Where few directions hold the variance, a mean in the place of one token costs search.

    Args:
        purpose: What the encoder is used for.
        words: Different words of the text in 5,000.
        steep: Whether few directions hold the variance of other text as well.
        one_token: Whether the encoder's own pooling reads one token.
    """
    kept = one_token and (steep or purpose != "search")
    enough = purpose == "topic" or words >= ENOUGH[kept or purpose == "search"]
    safe = SAFE["one token" if kept else "steep" if steep else "spread"]
    return parse_systems(",".join([safe] * enough + [WEIGHTS] * (words >= FAINT and not kept)))
