"""Scores that people can use: what a cosine is worth on *your* text.

Whether 0.8 is much depends on what two unrelated sentences get. So a cosine s is compared with those of N random pairs:

    share(s)       = (1 + random pairs with a cosine of s or more) / (1 + N)       never 0: N pairs cannot show that
    percentile(s)  = 100 (1 - share(s))                                            no labels
    threshold(a)   = the cosine of share a: of random pairs, a share a passes      its interval: order statistics
    probability(s) = isotonic or logistic in s                                     with labels

All rise with s, so no ranking changes: an encoder that ranks well may need nothing but this. The highest cosines are
kept one by one, since thresholds live there; of the others every thousandth part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, binom

from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, UsageError
from bertflow.files import write_json
from bertflow.records import read_record
from bertflow.scoring.labels import Probability
from bertflow.scoring.random_pairs import RandomPairs

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder

Float64 = NDArray[np.float64]
SCORES = "scores.json"
"""The file in an encoder's folder."""
FORMAT = 1
TAIL = 1000
"""How many of the highest cosines are kept one by one."""
GRID = 1000
"""Into how many parts the others are cut."""
RATES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
"""Where it is noted how many independent pairs the random ones are worth."""


@dataclass(frozen=True)
class Threshold:
    """A cosine from which a pair counts as a match.

    Attributes:
        value: The cosine.
        rate: False-match rate: the share of random pairs that pass.
        low: The cosine of exactly this rate lies from here, with confidence ``level``,
        high: to here.
        rate_low: At ``value``, the rate lies from here, with confidence ``level``,
        rate_high: to here.
        independent: How many independent pairs the random ones are worth here.
        level: Confidence.
    """

    value: float
    rate: float
    low: float
    high: float
    rate_low: float
    rate_high: float
    independent: int
    level: float

    def __str__(self) -> str:
        """One line."""
        return (
            f"cosine {self.value:.4f} ({self.level:.0%} interval {self.low:.4f} to {self.high:.4f}) for a false-match "
            f"rate of {self.rate:g} (at this cosine {self.rate_low:.2g} to {self.rate_high:.2g})"
        )


@dataclass(frozen=True)
class ScoresRecord:
    """What ``scores.json`` holds."""

    format: Literal[1]
    method: str
    random_state: int
    n: int
    pairs: int
    cosines: list[float]
    at_least: list[int]
    independent: list[tuple[float, float]]
    probability: Probability | None
    made_by: dict[str, Any]


class ScoreCalibrator:
    """Cosines -> percentiles among random pairs of some text; with labels, probabilities.

    Args:
        method: How labels make a probability: "isotonic", "logistic" or "auto", which is isotonic from 1,000 pairs.
        random_state: Of the random pairs.

    Attributes:
        probability_: The fitted ``Probability``; None without labels.
        n_: Embeddings that the random pairs are made of.
        pairs_: Random pairs.
    """

    _cosines: Float64
    _at_least: Float64
    _independent: Mapping[float, float]

    def __init__(self, method: str = "auto", random_state: int = 0) -> None:
        self.method = method
        self.random_state = random_state
        self.probability_: Probability | None = None
        self.made_by_ = Identity()
        self.n_ = self.pairs_ = 0

    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Fit to embeddings (n, dim) of the text, calibrated as they will be when they are scored; n >= 50.

        The text should hold no sentence twice, and none that a calibrator was fitted on.

        Raises:
            DataError: For too few embeddings, one that is not finite, or one that is all zeros.
        """
        x = np.asarray(X)
        if x.ndim != 2 or not np.isfinite(x).all():
            raise DataError(f"Scores need embeddings (n, dim), finite, got shape {x.shape}. Were they made in float32?")
        pairs = RandomPairs.of(x, self.random_state)
        self.n_, self.pairs_, self.made_by_ = len(x), len(pairs), Identity()
        self._cosines, self._at_least = _knots(pairs.cosines.ravel())
        rates = [rate for rate in RATES if rate * len(pairs) >= 1]
        self._independent = dict(zip(rates, pairs.independent_at(rates), strict=True))
        return self

    def fit_sentences(self, encoder: "SentenceEncoder", sentences: Sequence[str], progress: bool = False) -> Self:
        """Fit to the distinct ``sentences`` as ``encoder``, raw or calibrated, embeds them; it is remembered."""
        self.fit(encoder.encode(list(dict.fromkeys(sentences)), progress=progress))
        self.made_by_ = encoder.identity
        return self

    def fit_labels(self, cosines: ArrayLike, labels: ArrayLike) -> Self:
        """Learn probabilities from pairs: their cosines (n,), and 1 where a pair is a match, else 0.

        Raises:
            DataError: For fewer than 20 pairs, only one label, or matches that have no higher cosines.
        """
        self.probability_ = Probability.fit(np.asarray(cosines), np.asarray(labels), self.method)
        return self

    def share(self, cosines: ArrayLike) -> Float64:
        """Share of random pairs with such a cosine or a higher one, in (0, 1]."""
        self._require_fitted()
        s = _finite(cosines)
        return (1 + np.interp(s, self._cosines, self._at_least, right=0.0)) / (1 + self.pairs_)

    def percentile(self, cosines: ArrayLike) -> Float64:
        """Percent of random pairs with a lower cosine, in [0, 100)."""
        return 100 * (1 - self.share(cosines))

    def probability(self, cosines: ArrayLike) -> Float64:
        """Probability of a match, among pairs as they were labelled.

        Raises:
            UsageError: Without labels.
        """
        if self.probability_ is None:
            raise UsageError("Probabilities need labels, and none were given. Call fit_labels, or use percentile.")
        return self.probability_.curve(_finite(cosines))

    def threshold(self, rate: float = 0.001, level: float = 0.95) -> Threshold:
        """The cosine from which the share ``rate`` of random pairs passes, with its interval.

        The interval is that of order statistics: how many of m independent pairs lie above the true threshold is
        binomial, so two of them hold it between them.

        Raises:
            UsageError: If the rate is out of range, or the text too small for it: then nothing can be said.
        """
        self._require_fitted()
        if not 0 < rate < 1 or not 0 < level < 1:
            raise UsageError(f"A rate and a level lie between 0 and 1, got {rate} and {level}.")
        m = self.independent(rate)
        fewest, most = (int(binom.ppf(q, m, rate)) for q in ((1 - level) / 2, (1 + level) / 2))
        if not fewest:
            raise UsageError(
                f"A false-match rate of {rate:g} needs some {_needed(level) / rate:,.0f} independent pairs, and the "
                f"random pairs of {self.n_:,} sentences are worth {m:,}. Ask for {self._smallest(level):.2g} or more, "
                "or give more text."
            )
        value = self._cosine_at(rate)
        passed = rate * m
        return Threshold(
            value=value,
            rate=rate,
            low=self._cosine_at((most + 1) / m),
            high=self._cosine_at(fewest / m),
            rate_low=float(beta.ppf((1 - level) / 2, passed, m - passed + 1)),
            rate_high=float(beta.ppf((1 + level) / 2, passed + 1, m - passed)),
            independent=m,
            level=level,
        )

    def independent(self, rate: float) -> int:
        """How many independent pairs the random ones are worth where thresholds of this rate lie."""
        noted = sorted(self._independent)
        return int(np.interp(np.log(rate), np.log(noted), [self._independent[one] for one in noted]))

    def _smallest(self, level: float) -> float:
        """The smallest false-match rate, to two digits, that the text is large enough for."""
        rates = np.geomspace(1 / (1 + self.pairs_), 0.99, 500)
        return next(rate for rate in rates if rate * self.independent(rate) > 1.05 * _needed(level))

    def _cosine_at(self, share: float) -> float:
        count = share * (1 + self.pairs_) - 1
        return float(np.interp(count, self._at_least[::-1], self._cosines[::-1]))

    def _require_fitted(self) -> None:
        if not self.pairs_:
            raise UsageError("This ScoreCalibrator is not fitted. Call fit or fit_sentences first.")

    def save(self, folder: str | Path) -> None:
        """Write ``scores.json`` into an encoder's folder, whole or not at all."""
        self._require_fitted()
        record = {
            "format": FORMAT,
            "method": self.method,
            "random_state": self.random_state,
            "n": self.n_,
            "pairs": self.pairs_,
            "cosines": self._cosines.tolist(),
            "at_least": self._at_least.astype(np.int64).tolist(),
            "independent": [[rate, value] for rate, value in self._independent.items()],
            "probability": self.probability_.as_dict() if self.probability_ else None,
            "made_by": self.made_by_.as_dict(),
        }
        write_json(Path(folder) / SCORES, record)

    @classmethod
    def load(cls, folder: str | Path, encoder: "SentenceEncoder | None", force: bool = False) -> Self:
        """Read what ``save`` wrote.

        Args:
            folder: Of the encoder.
            encoder: Whose cosines will be asked about; None where they come from elsewhere, and nothing is checked.
            force: Accept an encoder that differs in what ``bertflow.encoder.identity.RULES`` refuses.

        Raises:
            DataError: If the file is missing or damaged, or the encoder, its pooling or its calibrator is another one.
        """
        path = Path(folder) / SCORES
        record = read_record(path, ScoresRecord, "score calibrator", "Fit the scores again.")
        scores = cls(record.method, record.random_state)
        scores.n_, scores.pairs_ = record.n, record.pairs
        scores._cosines = np.array(record.cosines, dtype=np.float64)
        scores._at_least = np.array(record.at_least, dtype=np.float64)
        scores._independent = dict(record.independent)
        scores.probability_ = record.probability
        scores.made_by_ = Identity.from_record(record.made_by)
        if encoder is not None:
            scores.made_by_.require(
                encoder.identity,
                f"{path} was fitted on embeddings by",
                "Use the encoder that it was fitted on, fit the scores again, or give force=True.",
                force,
            )
        return scores


def _knots(cosines: Float64) -> tuple[Float64, Float64]:
    """Distinct cosines, rising, and how many of all are as high or higher, falling."""
    values, counts = np.unique(cosines, return_counts=True)
    at_least = len(cosines) - np.cumsum(counts) + counts
    tail = at_least <= TAIL
    wanted = np.linspace(0, len(cosines), GRID + 1)
    grid = np.unique(np.searchsorted(-at_least, -wanted).clip(max=len(values) - 1))
    kept = np.union1d(np.flatnonzero(tail), grid)
    return values[kept], at_least[kept].astype(np.float64)


def _finite(cosines: ArrayLike) -> Float64:
    s = np.asarray(cosines, dtype=np.float64)
    if not np.isfinite(s).all():
        raise DataError("Cosines must be finite, but one is not. Look for an embedding of zeros, or of NaN.")
    return s


def _needed(level: float) -> float:
    """How many random pairs must be expected above a threshold, for it to have an upper end."""
    return float(-np.log((1 - level) / 2))
