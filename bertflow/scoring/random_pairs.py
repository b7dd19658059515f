"""Cosines of random pairs, and how many independent pairs they are worth.

n sentences stand in a random circle; each is paired with those s_1, ..., s_k places further on. Every sentence is in 2k
pairs, no pair occurs twice, none is a sentence with itself: N = n k pairs.

Pairs that share a sentence are not independent: some sentences are like many others. With h = 1 where a cosine is above
a threshold, v its variance, and c the covariance of two pairs that share a sentence, the share of pairs above it has

    variance = (v + 2 (2k - 1) c) / N,     so N pairs are worth  N / (1 + 2 (2k - 1) c / v)  independent ones,

which is never less than n / 2, since c <= v / 2 (Hoeffding 1948).

With queries, pairs are of a query and a text. Of the n of one kind each is in k pairs, of the m <= n of the other in
d = n k / m, and with a covariance for each kind (c and c', c + c' <= v)

    variance = (v + (k - 1) c + (d - 1) c') / N,     so the pairs are worth m independent ones or more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertflow.array_types import Float64, Floats, Hashes, Intp
from bertflow.data.corpus import drawn_rows
from bertflow.errors import DataError, logger
from bertflow.similarity import unit_rows
from bertflow.text_keys import hash_text

PAIRS = 200_000
"""Random pairs that are looked at, if there are as many."""
FEWEST = 50
"""Fewest embeddings whose random pairs are used."""
SAME = 1 - 1e-6
"""Cosine of a text and its copy, up to rounding."""
COPIES = "both embeddings are the same in 1 of {:,.0f} pairs. Leave out copies, and queries that are in the text"


@dataclass(frozen=True)
class RandomPairs:
    """Cosines of random pairs.

    Attributes:
        cosines: (k, n): row s holds those of each embedding of the circle with the one ``shifts[s]`` places further on.
        shifts: (k,), distinct, from 1 to (n - 1) // 2; with queries from 0 to m - 1.
        others: Number m of embeddings of the smaller kind, a circle of its own; 0 without queries.
    """

    cosines: Float64
    shifts: Intp
    others: int = 0

    @classmethod
    def of(cls, x: Floats, seed: int = 0, queries: Floats | None = None) -> "RandomPairs":
        """Random pairs of the rows of ``x`` (n, dim), or of one of them and one of ``queries``.

        Raises:
            DataError: If there are fewer than ``FEWEST`` rows, or one is all zeros.
        """
        for rows, what, more in ((x, "embeddings", "text"), (queries, "queries", "queries")):
            if rows is not None and len(rows) < FEWEST:
                raise DataError(f"Random pairs need at least {FEWEST} {what}, got {len(rows)}. Give more {more}.")
        rng = np.random.default_rng(seed)
        circle = other = unit_rows(x)[rng.permutation(len(x))]
        first, most = 1, (len(x) - 1) // 2
        if queries is not None:
            other, circle = sorted((circle, unit_rows(queries)[rng.permutation(len(queries))]), key=len)
            first, most = 0, len(other)
        n = len(circle)
        shifts = first + rng.permutation(most)[: min(most, -(-PAIRS // n))]
        partners = ((np.arange(n) + shift) % len(other) for shift in shifts)
        cosines = np.stack([np.einsum("nd,nd->n", circle, other[rows]) for rows in partners])
        return cls(cosines, shifts, 0 if queries is None else len(other))

    def __len__(self) -> int:
        """The number of pairs."""
        return self.cosines.size

    def independent(self, rate: float) -> float:
        """How many independent pairs these are worth for the share ``rate`` of the highest cosines.

        Returns:
            From n / 2 to N; with queries, from m.
        """
        k, n = self.cosines.shape
        fewest = self.others or n / 2
        above = (self.cosines >= np.quantile(self.cosines, 1 - rate)).astype(np.int8)
        variance = above.mean() * (1 - above.mean())
        if not variance:
            return fewest
        if self.others:
            partners = (np.arange(n) + self.shifts[:, None]) % self.others
            sums, counts = (np.bincount(partners.ravel(), weights) for weights in (above.ravel(), None))
            covariance = min(_covariance(above.mean(0), k, variance), variance)
            other = min(_covariance(sums / counts, len(self) / self.others, variance), variance - covariance)
            shared = (k - 1) * covariance + (len(self) / self.others - 1) * other
            return max(fewest, len(self) / (1 + shared / variance))
        both = above + np.stack([np.roll(row, shift) for row, shift in zip(above, self.shifts, strict=True)])
        covariance = min(_covariance(both.sum(0) / (2 * k), 2 * k, variance), variance / 2)
        return max(fewest, len(self) / (1 + 2 * (2 * k - 1) * covariance / variance))


def _covariance(shares: Float64, each: float, variance: float) -> float:
    """Covariance of two pairs with a common sentence: the variance of shares of ``each`` pairs is c + (v - c) / each.

    Sentences in only one pair show nothing of it, and need not.
    """
    return 0.0 if each <= 1 else max(0.0, float((shares.var(ddof=1) - variance / each) / (1 - 1 / each)))


@dataclass(frozen=True)
class Threshold:
    """A cosine from which a pair counts as a match.

    Attributes:
        value: The cosine.
        rate: False-match rate: the share of random pairs that pass.
        low: Lower end of the interval of the cosine that has exactly this rate.
        high: Upper end of that interval.
        rate_low: Lower end of the interval of the rate at ``value``.
        rate_high: Upper end of that interval.
        independent: How many independent pairs the random ones are worth here.
        level: Confidence of both intervals.
    """

    value: float
    rate: float
    low: float
    high: float
    rate_low: float
    rate_high: float
    independent: int
    level: float

    @property
    def of_copies(self) -> str:
        """Why no cosine will do, where so many random pairs are copies; empty otherwise."""
        return COPIES.format(1 / self.rate) if self.value >= SAME else ""

    def __str__(self) -> str:
        """One line."""
        return (
            f"cosine {self.value:.4f} ({100 * self.level:.0f} % interval {self.low:.4f} to {self.high:.4f}) for a "
            f"false-match rate of {self.rate:g} (interval of the rate {self.rate_low:.2g} to {self.rate_high:.2g})"
            + (f", which tells nothing: {self.of_copies}" if self.of_copies else "")
        )


def unseen_sample(
    text: Sequence[str], seen: Hashes | None, most: int, seed: int, name: str = "The text", what: str = "sentences"
) -> list[str]:
    """A random sample of the sentences that nothing was fitted on, in the order of the text.

    Args:
        text: Distinct sentences.
        seen: Hashes of the text that the encoder was fitted on; None if unknown.
        most: Size of the sample.
        seed: Random seed.
        name: Name of the text, for messages.
        what: What it holds, for messages.

    Raises:
        DataError: If fewer than ``FEWEST`` are left.
    """
    if seen is None:
        logger.warning("What the encoder was fitted on is not recorded, so %s may hold such sentences.", name)
    known = set(() if seen is None else seen.tolist())
    left = [sentence for sentence in text if hash_text(sentence) not in known]
    if len(left) < FEWEST:
        raise DataError(
            f"{name} should hold at least {FEWEST} {what} that the encoder was not fitted on, but holds {len(left)} "
            f"(of {len(text)}). Give more such {what}{', or leave --queries out' if what == 'queries' else ''}."
        )
    return [left[row] for row in drawn_rows(len(left), most, seed)]
