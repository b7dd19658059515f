"""Scores that people can use: what a cosine means on *your* text.

Whether 0.8 is high depends on what two unrelated sentences get. So a cosine s is compared with those of N random pairs:

    share(s)       = (1 + random pairs with a cosine of s or more) / (1 + N)       never 0: N pairs cannot show that
    percentile(s)  = 100 (1 - share(s))                                            no labels
    threshold(a)   = the cosine of share a: of random pairs, a share a passes      its interval: order statistics
    probability(s) = isotonic or logistic in s                                     with labels

Where queries are given, a random pair is one of a query and a text. All rise with s, so no ranking changes: an encoder
that ranks well may need nothing else. The highest cosines are kept one by one, since thresholds lie there; of the
others every thousandth part.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, binom

from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import Identity, MadeBy
from bertflow.errors import DataError, UsageError
from bertflow.moments import require_finite
from bertflow.records import Size, read_record, write_record
from bertflow.registry import lookup
from bertflow.scoring.labelled import Labelled
from bertflow.scoring.probability import CURVES, Probability
from bertflow.scoring.random_pairs import RandomPairs, Threshold

Float64 = NDArray[np.float64]
SCORES = "scores.json"
"""The file in an encoder's folder."""
TAIL = 1000
"""How many of the highest cosines are kept one by one."""
GRID = 1000
"""Into how many parts the others are divided."""
RATES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
"""False-match rates at which the number of independent pairs is noted."""
ENOUGH = 1000
"""Labelled pairs from which "auto" is isotonic."""
LARGEST = 1.001
"""A cosine that was computed in half precision may be so large."""
FEWEST_LABELS = 20
"""Labelled pairs below which nothing is fitted."""


@dataclass(frozen=True)
class ScoresRecord:
    """The form of ``scores.json``; the names are those of ``ScoreCalibrator``."""

    format: Literal[1]
    method: str
    random_state: int
    n: Size
    pairs: Size
    cosines: list[float]
    at_least: list[int]
    independent: list[tuple[float, float]]
    made_by: MadeBy
    probability: Probability | None
    labelled: Labelled | None
    kind: Literal["text-text", "query-text"]
    queries: int

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
        labelled_: The cosines that it was fitted to, by label; None without labels.
        n_: Number of embeddings that the random pairs are made of.
        queries_: Number of queries, if the random pairs are of a query and a text; else 0.
        pairs_: Number of random pairs.
        made_by_: Identity of the encoder.
    """

    _held: ScoresRecord

    def __init__(self, method: str = "auto", random_state: int = 0) -> None:
        self.method, self.random_state = method, random_state
        self.probability_: Probability | None = None
        self.labelled_: Labelled | None = None
        self.made_by_, self.n_, self.pairs_, self.queries_ = Identity(), 0, 0, 0

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
        cosines, at_least = _knots(pairs.cosines.ravel())
        self._hold(
            ScoresRecord(
                format=1,
                method=self.method,
                random_state=self.random_state,
                n=len(x),
                pairs=len(pairs),
                cosines=cosines.tolist(),
                at_least=at_least.tolist(),
                independent=[(rate, pairs.independent(rate)) for rate in RATES if rate * len(pairs) >= 1],
                made_by=Identity().as_dict(),
                probability=self.probability_,
                labelled=self.labelled_,
                kind="text-text" if asked is None else "query-text",
                queries=0 if asked is None else len(asked),
            )
        )
        return self

    def _hold(self, record: ScoresRecord) -> None:
        self._held, self.n_, self.pairs_, self.queries_ = record, record.n, record.pairs, record.queries
        self.made_by_, self.probability_ = Identity.from_record(record.made_by), record.probability
        self.labelled_ = record.labelled

    def fit_sentences(
        self,
        encoder: SentenceEncoder,
        sentences: Sequence[str],
        queries: Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Fit to distinct ``sentences``, and ``queries``, as ``encoder``, raw or calibrated, embeds them; it is kept.

        Without ``queries`` a random pair is one of two sentences, with them one of a query and a sentence.
        """
        x = encoder.encode(list(dict.fromkeys(sentences)), progress=progress)
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
    def kind(self) -> str:
        """What a random pair is: "text-text", or "query-text"."""
        return self._held.kind

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
        self.labelled_ = Labelled.of(s, y)
        return self

    def share(self, cosines: ArrayLike) -> Float64:
        """Share of random pairs with such a cosine or a higher one, in (0, 1]."""
        self._require_fitted()
        s = finite(cosines)
        return (1 + np.interp(s, self._held.cosines, self._held.at_least, right=0.0)) / (1 + self.pairs_)

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
        return self.probability_.curve(finite(cosines))

    def threshold(self, rate: float = 0.001, level: float = 0.95) -> Threshold:
        """The cosine from which the share ``rate`` of random pairs passes, with its interval.

        The interval is that of order statistics: how many of m independent pairs lie above the true threshold is
        binomial, so it lies between two of them.

        Raises:
            UsageError: If the rate is out of range, or the text is too small for it.
        """
        self._require_fitted()
        if not 0 < rate < 1 or not 0 < level < 1:
            raise UsageError(f"A rate and a level lie between 0 and 1, got {rate} and {level}.")
        m = self.independent(rate)
        fewest, most = (int(binom.ppf(q, m, rate)) for q in ((1 - level) / 2, (1 + level) / 2))
        if not fewest:
            raise UsageError(
                f"A false-match rate of {rate:g} needs some {_needed(level) / rate:,.0f} independent pairs, and the "
                f"{self.drawn} are worth {m:,}. Ask for {self._smallest(level):.2g} or more, "
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
        rates, worth = zip(*sorted(self._held.independent), strict=True)
        return int(np.interp(np.log(rate), np.log(rates), worth))

    def _smallest(self, level: float) -> float:
        """The smallest false-match rate, to two digits, that the text is large enough for."""
        rates = np.geomspace(1 / (1 + self.pairs_), 0.99, 500)
        return next(rate for rate in rates if rate * self.independent(rate) > 1.05 * _needed(level))

    def _cosine_at(self, share: float) -> float:
        count = share * (1 + self.pairs_) - 1
        return float(np.interp(count, self._held.at_least[::-1], self._held.cosines[::-1]))

    def _require_fitted(self) -> None:
        if not self.pairs_:
            raise UsageError("This ScoreCalibrator is not fitted. Call fit or fit_sentences first.")

    def save(self, folder: str | Path) -> None:
        """Write ``scores.json`` into an encoder's folder, whole or not at all."""
        self._require_fitted()
        made_by, probability, labelled = self.made_by_.as_dict(), self.probability_, self.labelled_
        record = replace(self._held, made_by=made_by, probability=probability, labelled=labelled)
        write_record(Path(folder) / SCORES, asdict(record))

    @classmethod
    def load(cls, folder: str | Path, encoder: SentenceEncoder | None, force: bool = False) -> Self:
        """Read what ``save`` wrote.

        Args:
            folder: Folder of the encoder.
            encoder: Encoder whose cosines will be asked about; None checks nothing, for cosines from elsewhere.
            force: Accept an encoder that differs in what ``bertflow.encoder.identity.RULES`` refuses.

        Raises:
            DataError: If the file is missing or damaged, or the encoder, its pooling or its calibrator is another one.
        """
        path = Path(folder) / SCORES
        record = read_record(path, ScoresRecord, "score calibrator", "Fit the scores again.")
        scores = cls(record.method, record.random_state)
        scores._hold(record)
        require_same_encoder(scores.made_by_, encoder, path, "fit the scores again", force)
        return scores


def require_same_encoder(
    made_by: Identity, encoder: SentenceEncoder | None, path: Path, again: str, force: bool
) -> None:
    """Refuse an encoder that a file was not fitted on; None checks nothing."""
    if encoder is not None:
        do = f"Use the encoder that it was fitted on, {again}, or give force=True."
        made_by.require(encoder.identity, f"{path} was fitted on embeddings by", do, force)


def _knots(cosines: Float64) -> tuple[Float64, NDArray[np.int64]]:
    """Distinct cosines, rising, and how many of all are as high or higher, falling."""
    values, counts = np.unique(cosines, return_counts=True)
    at_least = len(cosines) - np.cumsum(counts) + counts
    tail = at_least <= TAIL
    wanted = np.linspace(0, len(cosines), GRID + 1)
    grid = np.unique(np.searchsorted(-at_least, -wanted).clip(max=len(values) - 1))
    kept = np.union1d(np.flatnonzero(tail), grid)
    return values[kept], at_least[kept]


def finite(values: ArrayLike, what: str = "Cosines") -> Float64:
    """Numbers (n,), or one.

    Raises:
        DataError: For the first that is not finite, with its row.
    """
    s = np.asarray(values, dtype=np.float64)
    if len(odd := np.flatnonzero(~np.isfinite(s))):
        raise DataError(f"{what} must be finite, but row {odd[0]} holds {s.flat[odd[0]]}. Leave it out.")
    return s


def _needed(level: float) -> float:
    """How many random pairs must be expected above a threshold, for it to have an upper end."""
    return float(-np.log((1 - level) / 2))
