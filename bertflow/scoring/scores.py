"""Scores that people can use: what a cosine means on *your* text.

Whether 0.8 is high depends on what two unrelated sentences get. So a cosine s is compared with those of N random pairs:

    share(s)       = (1 + random pairs with a cosine of s or more) / (1 + N)       never 0: N pairs cannot show that
    percentile(s)  = 100 (1 - share(s))                                            no labels
    threshold(a)   = the cosine of share a: of random pairs, a share a passes      its interval: order statistics
    probability(s) = isotonic or logistic in s                                     with labels

Where queries are given, a random pair is one of a query and a text. All rise with s, so no ranking changes. The highest
cosines are kept one by one, since thresholds lie there; of the others every thousandth part.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from bertflow.array_types import Float64, Int64
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder, encode_as
from bertflow.encoder.identity import Identity, MadeBy
from bertflow.errors import DataError, UsageError
from bertflow.moments import require_finite
from bertflow.records import Size, read_record, write_record
from bertflow.registry import lookup
from bertflow.scoring.labeled import CURVES, Labeled, Probability, Share
from bertflow.scoring.random_pairs import RandomPairs, Threshold

SCORES = "scores.json"
"""The file in an encoder's folder."""
TAIL = 1000
"""How many of the highest cosines are kept one by one."""
GRID = 1000
"""Number of parts into which the others are divided."""
RATES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
"""False-match rates at which the number of independent pairs is noted."""
ENOUGH = 1000
"""Labeled pairs from which "auto" is isotonic."""
LARGEST = 1.001
"""Largest cosine, since one in half precision may be above 1."""
FEWEST_LABELS = 20
"""Fewest labeled pairs to fit to."""
KEPT = ("n", "pairs", "queries", "cosines", "at_least", "independent", "probability", "labeled")
"""What a ``ScoresRecord`` and a ``ScoreCalibrator`` both hold, there with an underscore behind it."""


@dataclass(frozen=True)
class ScoresRecord:
    """The form of ``scores.json``; the names are those of ``ScoreCalibrator``."""

    format: Literal[1]
    method: str
    random_state: int
    made_by: MadeBy
    kind: Literal["text-text", "query-text"]
    n: Size
    pairs: Size
    queries: int
    cosines: list[float]
    at_least: list[int]
    independent: list[tuple[float, float]]
    probability: Probability | None
    labeled: Labeled | None

    def __post_init__(self) -> None:
        rises = all(np.diff(self.cosines) > 0) and all(np.diff([*self.at_least, 0]) < 0)
        fits = self.at_least[:1] == [self.pairs] and len(self.cosines) == len(self.at_least)
        rates = [0 < rate < 1 for rate, _ in self.independent]
        fits = fits and (self.kind == "query-text") == (self.queries > 0)
        if not (rises and fits and rates and all(rates)):
            raise DataError("its cosines and their counts do not belong together. Fit the scores again.")


class ScoreCalibrator:
    """Cosines -> percentiles among random pairs of some text; with labels, probabilities.

    Args:
        method: How probabilities are fitted: "isotonic", "logistic" or "auto", which is isotonic from 1,000 pairs.
        random_state: Random seed for the random pairs.

    Attributes:
        probability_: The fitted ``Probability``; None without labels.
        labeled_: The cosines that it was fitted to, by label; None without labels.
        n_: Number of embeddings that the random pairs are made of.
        queries_: Number of queries, if the random pairs are of a query and a text; else 0.
        pairs_: Number of random pairs.
        made_by_: Identity of the encoder.
    """

    def __init__(self, method: str = "auto", random_state: int = 0) -> None:
        self.method, self.random_state = method, random_state
        self.probability_: Probability | None = None
        self.labeled_: Labeled | None = None
        self.made_by_, self.n_, self.pairs_, self.queries_ = Identity(), 0, 0, 0
        self.cosines_, self.at_least_ = list[float](), list[int]()
        self.independent_: list[tuple[float, float]] = []

    def fit(self, X: ArrayLike, y: None = None, queries: ArrayLike | None = None) -> Self:
        """Fit to embeddings (n, dim) of the text, calibrated as they will be when they are scored; n >= 50.

        The text should hold no sentence twice, and none that a calibrator was fitted on. With embeddings of
        ``queries``, at least 50 as well, a random pair is one of a query and a text.

        Raises:
            DataError: For too few embeddings, one that is not finite, or one that is all zeros.
        """
        x, asked = np.asarray(X), None if queries is None else np.asarray(queries)
        for rows in (x,) if asked is None else (x, asked):
            if rows.ndim != 2 or rows.shape[1:] != x.shape[1:]:
                width = "dim" if rows is x else x.shape[1]
                raise DataError(
                    f"Scores need embeddings (n, {width}), got shape {rows.shape}. Give a row for each sentence."
                )
            require_finite(rows)
        pairs = RandomPairs.of(x, self.random_state, asked)
        self.n_, self.pairs_, self.queries_ = len(x), len(pairs), 0 if asked is None else len(asked)
        self.cosines_, self.at_least_ = (knots.tolist() for knots in _knots(pairs.cosines.ravel()))
        self.independent_ = [(rate, pairs.independent(rate)) for rate in RATES if rate * len(pairs) >= 1]
        return self

    def fit_sentences(
        self,
        encoder: SentenceEncoder,
        sentences: Sequence[str],
        queries: Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Fit to distinct ``sentences``, and ``queries``, as ``encoder``, raw or calibrated, embeds them."""
        x = encode_as(encoder, None if queries is None else "document", list(dict.fromkeys(sentences)), progress)
        asked = None if queries is None else encoder.encode_query(list(dict.fromkeys(queries)), progress=progress)
        self.fit(x, queries=asked)
        self.made_by_ = encoder.identity
        return self

    def asked(self, pairs: Pairs) -> Pairs:
        """Pairs to score: their first texts are queries where those of the random pairs are."""
        return replace(pairs, kind="retrieval") if self.queries_ else pairs

    def judged(self, pairs: Pairs) -> Iterable[str]:
        """The distinct texts of pairs that are of the text of the random pairs, and no queries."""
        return dict.fromkeys(pairs.second if self.queries_ else (*pairs.first, *pairs.second))

    @property
    def kind(self) -> Literal["text-text", "query-text"]:
        """What a random pair is."""
        return "query-text" if self.queries_ else "text-text"

    @property
    def drawn(self) -> str:
        """What the random pairs are, in words."""
        if self.queries_:
            return f"random query-text pairs of {self.queries_:,} queries and {self.n_:,} sentences"
        return f"random pairs of {self.n_:,} sentences"

    def fit_labels(self, cosines: ArrayLike, labels: ArrayLike) -> Self:
        """Learn probabilities from pairs: their cosines (n,), and 1 where a pair is a match, else 0.

        Raises:
            UnknownNameError: For an unknown method.
            DataError: For fewer than 20 pairs, only one label, or matches that have no higher cosines.
        """
        s, y = finite(cosines), np.asarray(labels)
        if len(odd := np.flatnonzero(np.abs(s) > LARGEST)):
            raise DataError(f"Cosines lie between -1 and 1, but row {odd[0]} holds {s[odd[0]]:g}. Leave it out.")
        if s.shape != y.shape or s.ndim != 1 or len(s) < FEWEST_LABELS:
            raise DataError(
                f"A probability needs at least {FEWEST_LABELS} cosines and as many labels, got shapes {s.shape} and "
                f"{y.shape}. Label more pairs."
            )
        if set(np.unique(y).tolist()) != {0, 1}:
            raise DataError(f"Labels should be 0 and 1, both of them, got {np.unique(y).tolist()}. Repair the labels.")
        if s[y == 1].mean() <= s[y == 0].mean():
            raise DataError(
                f"Matches should have higher cosines, but their mean is {s[y == 1].mean():.3f} and that of the others "
                f"{s[y == 0].mean():.3f}. Are the labels the wrong way round? Otherwise cosines say nothing here."
            )
        y = y.astype(np.int64)
        by_size = "isotonic" if len(s) >= ENOUGH else "logistic"
        method = by_size if self.method == "auto" else self.method
        self.probability_ = Probability(method, lookup("method", CURVES, method).fit(s, y), len(y), int(y.sum()))
        self.labeled_ = Labeled.of(s, y)
        return self

    def share(self, cosines: ArrayLike) -> Float64:
        """Share of random pairs with such a cosine or a higher one, in (0, 1]."""
        self._require_fitted()
        return (1 + np.interp(finite(cosines), self.cosines_, self.at_least_, right=0.0)) / (1 + self.pairs_)

    def percentile(self, cosines: ArrayLike) -> Float64:
        """Percent of random pairs with a lower cosine, in [0, 100)."""
        return 100 * (1 - self.share(cosines))

    def probability(self, cosines: ArrayLike) -> Float64:
        """Probability of a match, among pairs as they were labeled.

        Raises:
            UsageError: Without labels.
        """
        if self.probability_ is None:
            raise UsageError("Probabilities need labels, and none were given. Call fit_labels, or use percentile.")
        return self.probability_.curve(finite(cosines))

    def threshold(self, rate: float = 0.001, level: float = 0.95) -> Threshold:
        """The cosine from which the share ``rate`` of random pairs passes, with its interval.

        How many of m independent pairs lie above the true threshold is binomial, so it lies between two of them.

        Raises:
            UsageError: If the rate is out of range, or the text is too small for it.
        """
        self._require_fitted()
        if not 0 < rate < 1 or not 0 < level < 1:
            raise UsageError(f"A rate and a level lie between 0 and 1, got {rate} and {level}.")
        m, tail = self.independent(rate), (1 - level) / 2
        fewest, most = (int(binom.ppf(q, m, rate)) for q in (tail, 1 - tail))
        if not fewest:
            needed = float(-np.log(tail))  # pairs expected above it, so that it has an upper end
            rates = np.geomspace(1 / (1 + self.pairs_), 0.99, 500)
            smallest = next(one for one in rates if one * self.independent(one) > 1.05 * needed)
            raise UsageError(
                f"A false-match rate of {rate:g} needs some {needed / rate:,.0f} independent pairs, and the "
                f"{self.drawn} are worth {m:,}. Ask for {smallest:.2g} or more, or give more text."
            )
        low, high = self._cosine_at((most + 1) / m), self._cosine_at(fewest / m)
        passed = Share.of(rate * m, m, level)
        return Threshold(self._cosine_at(rate), rate, low, high, passed.low, passed.high, m, level)

    def strict_threshold(self) -> Threshold:
        """The threshold at a false-match rate of 0.001, or of 0.01 where the text is too small for that."""
        try:
            return self.threshold()
        except UsageError:
            return self.threshold(0.01)

    def independent(self, rate: float) -> int:
        """How many independent pairs the random ones are worth where thresholds of this rate lie."""
        rates, worth = zip(*sorted(self.independent_), strict=True)
        return int(np.interp(np.log(rate), np.log(rates), worth))

    def _cosine_at(self, share: float) -> float:
        count = share * (1 + self.pairs_) - 1
        return float(np.interp(count, self.at_least_[::-1], self.cosines_[::-1]))

    def _require_fitted(self) -> None:
        if not self.pairs_:
            raise UsageError("This ScoreCalibrator is not fitted. Call fit or fit_sentences first.")

    def save(self, folder: str | Path) -> None:
        """Write ``scores.json`` into an encoder's folder, whole or not at all."""
        kept = {name: getattr(self, f"{name}_") for name in KEPT}
        record = ScoresRecord(1, self.method, self.random_state, self.made_by_.as_dict(), self.kind, **kept)
        write_record(Path(folder) / SCORES, asdict(record))

    @classmethod
    def load(cls, folder: str | Path, encoder: SentenceEncoder | None, force: bool = False) -> Self:
        """Read what ``save`` wrote, for the encoder whose cosines will be asked about; None checks nothing.

        ``force`` accepts an encoder that differs in what ``bertflow.encoder.identity.RULES`` refuses.

        Raises:
            DataError: If the file is missing or damaged, or the encoder, its pooling or its calibrator is another one.
        """
        path = Path(folder) / SCORES
        record = read_record(path, ScoresRecord, "score calibrator", "Fit the scores again.")
        scores = cls(record.method, record.random_state)
        scores.made_by_ = Identity.from_record(record.made_by)
        for name in KEPT:
            setattr(scores, f"{name}_", getattr(record, name))
        if encoder is not None:
            do = "Use the encoder that it was fitted on, fit the scores again, or pass force=True in Python."
            scores.made_by_.require(encoder.identity, f"{path} was fitted on embeddings by", do, force)
        return scores


def _knots(cosines: Float64) -> tuple[Float64, Int64]:
    """Distinct cosines, rising, and how many of all are as high or higher, falling."""
    values, counts = np.unique(cosines, return_counts=True)
    at_least = len(cosines) - np.cumsum(counts) + counts
    tail = at_least <= TAIL
    wanted = np.linspace(0, len(cosines), GRID + 1)
    grid = np.unique(np.searchsorted(-at_least, -wanted).clip(max=len(values) - 1))
    kept = np.union1d(np.flatnonzero(tail), grid)
    return values[kept], at_least[kept]


def finite(values: ArrayLike, what: str = "Cosines") -> Float64:
    """Numbers (n,), or one; refuses the first that is not finite, with its row."""
    s = np.asarray(values, dtype=np.float64)
    if len(odd := np.flatnonzero(~np.isfinite(s))):
        raise DataError(f"{what} must be finite, but row {odd[0]} holds {s.flat[odd[0]]}. Leave it out.")
    return s
