"""Cosines of random pairs, and how many independent pairs they are worth.

n sentences stand in a random circle; each is paired with those s_1, ..., s_k places further on. Every sentence is in 2k
pairs, no pair occurs twice, none is a sentence with itself: N = n k pairs.

Pairs that share a sentence are not independent: some sentences are like many others. With h = 1 where a cosine is above
a threshold, v its variance, and c the covariance of two pairs that share a sentence, the share of pairs above it has

    variance = (v + 2 (2k - 1) c) / N,     so N pairs are worth  N / (1 + 2 (2k - 1) c / v)  independent ones,

which is never less than n / 2, since c <= v / 2 (Hoeffding 1948).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError
from bertflow.similarity import unit_rows
from bertflow.text_keys import hash_text

logger = logging.getLogger("bertflow")

Float64 = NDArray[np.float64]
PAIRS = 200_000
"""Random pairs that are looked at, if there are as many."""
FEWEST = 50
"""Embeddings below which random pairs say too little."""


@dataclass(frozen=True)
class RandomPairs:
    """Cosines of random pairs.

    Attributes:
        cosines: (k, n): row s holds those of each embedding of the circle with the one ``shifts[s]`` places further on.
        shifts: (k,), distinct, from 1 to (n - 1) // 2.
    """

    cosines: Float64
    shifts: NDArray[np.intp]

    @classmethod
    def of(cls, x: NDArray[np.floating], seed: int = 0) -> "RandomPairs":
        """Random pairs of the rows of ``x`` (n, dim).

        Raises:
            DataError: If there are fewer than ``FEWEST`` rows, or one is all zeros.
        """
        n = len(x)
        if n < FEWEST:
            raise DataError(f"Random pairs need at least {FEWEST} embeddings, got {n}. Give more text.")
        rng = np.random.default_rng(seed)
        circle = unit_rows(x)[rng.permutation(n)]
        most = (n - 1) // 2
        shifts = 1 + rng.permutation(most)[: min(most, -(-PAIRS // n))]
        cosines = np.stack([np.einsum("nd,nd->n", circle, np.roll(circle, -shift, axis=0)) for shift in shifts])
        return cls(cosines, shifts)

    def __len__(self) -> int:
        """The number of pairs."""
        return self.cosines.size

    def independent(self, rate: float) -> float:
        """How many independent pairs these are worth for the share ``rate`` of the highest cosines.

        Returns:
            From n / 2 to N.
        """
        k, n = self.cosines.shape
        above = (self.cosines >= np.quantile(self.cosines, 1 - rate)).astype(np.int8)
        variance = above.mean() * (1 - above.mean())
        if not variance:
            return n / 2
        both = above + np.stack([np.roll(row, shift) for row, shift in zip(above, self.shifts, strict=True)])
        share = both.sum(0) / (2 * k)
        # The variance of a sentence's share is c + (v - c) / 2k.
        covariance = (share.var(ddof=1) - variance / (2 * k)) / (1 - 1 / (2 * k))
        covariance = min(max(covariance, 0.0), variance / 2)
        return max(n / 2, len(self) / (1 + 2 * (2 * k - 1) * covariance / variance))


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

    def __str__(self) -> str:
        """One line."""
        return (
            f"cosine {self.value:.4f} ({self.level:.0%} interval {self.low:.4f} to {self.high:.4f}) for a false-match "
            f"rate of {self.rate:g} (at this cosine {self.rate_low:.2g} to {self.rate_high:.2g})"
        )


def unseen_sample(
    text: Sequence[str], seen: NDArray[np.uint64] | None, most: int, seed: int, name: str = "The text"
) -> list[str]:
    """A random sample of the sentences that nothing was fitted on, in the order of the text.

    Args:
        text: Distinct sentences.
        seen: Hashes of the text that the encoder was fitted on; None if unknown.
        most: Size of the sample.
        seed: Random seed.
        name: Name of the text, for messages.

    Raises:
        DataError: If fewer than ``FEWEST`` are left.
    """
    if seen is None:
        logger.warning("What the encoder was fitted on is not recorded, so %s may hold such sentences.", name)
    known = set() if seen is None else set(seen.tolist())
    left = [sentence for sentence in text if hash_text(sentence) not in known]
    if len(left) < FEWEST:
        raise DataError(
            f"{name} should hold at least {FEWEST} sentences that the encoder was not fitted on, but holds "
            f"{len(left)} (of {len(text)}). Give other text."
        )
    chosen = np.random.default_rng(seed).permutation(len(left))[:most]
    return [left[row] for row in np.sort(chosen)]
