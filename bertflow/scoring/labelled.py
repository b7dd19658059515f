"""A threshold from labelled pairs: from which cosine on a pair is a match, for a wanted precision or recall.

    precision(t) = matches of cosine t or more / all pairs of cosine t or more     chosen: the lowest t that reaches it
    recall(t)    = matches of cosine t or more / all matches                       chosen: the highest t that reaches it

Two intervals: of the cosine, from resamples of the pairs, in each of which it is chosen again; and of precision and
recall at the cosine that was chosen, which are binomial. Precision holds for pairs as they were labelled: where matches
are rarer it is lower. A false-match rate says nothing of pairs that resemble each other: it is one of random pairs.

Source: Clopper & Pearson 1934 for the binomial intervals.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from bertflow.errors import UsageError

Float64 = NDArray[np.float64]
REDRAWN = 1000
"""Resamples of the labelled pairs."""


def require_target(wanted: str, target: float, labelled: bool = True) -> None:
    """Refuse a precision or recall that no threshold can have, or that nothing is known of without labelled pairs.

    Raises:
        UsageError: If it is out of range, or there are no labels.
    """
    if not 0 < target <= 1:
        raise UsageError(f"A {wanted} lies above 0 and is at most 1, got {target:g}.")
    if not labelled:
        raise UsageError(f"A {wanted} needs labelled pairs. Add --labels FILE, with --fit_on TEXT.")


@dataclass(frozen=True)
class Share:
    """A share of some pairs, with its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, part: int, whole: int, level: float) -> "Share":
        """``part`` of ``whole``, by Clopper and Pearson; of nothing it is unknown, from 0 to 1."""
        if not whole:
            return cls(float("nan"), 0.0, 1.0)
        low = beta.ppf((1 - level) / 2, part, whole - part + 1) if part else 0.0
        high = beta.ppf((1 + level) / 2, part + 1, whole - part) if part < whole else 1.0
        return cls(part / whole, float(low), float(high))

    def __str__(self) -> str:
        """As "0.904 (0.871 to 0.931)"."""
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Passing:
    """The labelled pairs that pass at a cosine.

    Attributes:
        matches: How many of them are matches.
        others: How many of them are not.
        precision: Share of matches among those that pass.
        recall: Share of the matches that pass.
        passed_others: Share of the other pairs that pass.
    """

    matches: int
    others: int
    precision: Share
    recall: Share
    passed_others: Share

    def __str__(self) -> str:
        """One line."""
        return f"precision {self.precision}, recall {self.recall}"


@dataclass(frozen=True)
class LabelledThreshold:
    """A cosine from which a pair counts as a match.

    Attributes:
        value: The cosine.
        low: Lower end of its interval.
        high: Upper end.
        wanted: "precision" or "recall".
        target: What was wanted of it.
        passing: The labelled pairs that pass at the cosine, with precision and recall.
        level: Confidence of the intervals.
    """

    value: float
    low: float
    high: float
    wanted: str
    target: float
    passing: Passing
    level: float

    def __str__(self) -> str:
        """One line."""
        return (
            f"cosine {self.value:.4f} ({self.level:.0%} interval {self.low:.4f} to {self.high:.4f}) for a "
            f"{self.wanted} of {self.target:g} (on the labelled pairs {self.passing})"
        )


@dataclass(frozen=True)
class Labelled:
    """Cosines of labelled pairs, the highest first.

    Attributes:
        matches: Of those labelled 1.
        others: Of those labelled 0.
    """

    matches: tuple[float, ...]
    others: tuple[float, ...]

    @classmethod
    def of(cls, cosines: Float64, labels: NDArray[np.int64]) -> "Labelled":
        """The pairs by their label."""
        matches, others = (tuple(np.sort(cosines[labels == label])[::-1].tolist()) for label in (1, 0))
        return cls(matches, others)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.matches) + len(self.others)

    def passing(self, cosine: float, level: float = 0.95) -> Passing:
        """Which pairs have this cosine or a higher one."""
        passed, others = (int((np.array(side) >= cosine).sum()) for side in (self.matches, self.others))
        return Passing(
            passed,
            others,
            Share.of(passed, passed + others, level),
            Share.of(passed, len(self.matches), level),
            Share.of(others, len(self.others), level),
        )

    def threshold(self, wanted: str, target: float, seed: int = 0, level: float = 0.95) -> LabelledThreshold:
        """The cosine from which pairs have a precision or recall.

        Args:
            wanted: "precision" or "recall".
            target: What is wanted of it, in (0, 1].
            seed: Random seed for the resamples.
            level: Confidence of the intervals.

        Raises:
            UsageError: If it is out of range, or no cosine reaches it.
        """
        require_target(wanted, target)
        cosines = np.concatenate([self.matches, self.others])
        order = np.argsort(-cosines, kind="stable")
        cosines, labels = cosines[order], (order < len(self.matches)).astype(np.float64)
        last = np.append(cosines[1:] < cosines[:-1], True)  # of those that are equal
        n, rng = len(cosines), np.random.default_rng(seed)

        def chosen(weights: Float64) -> float | None:
            passed, matches = np.cumsum(weights)[last], np.cumsum(weights * labels)[last]
            whole = np.maximum(passed, 1) if wanted == "precision" else max(matches[-1], 1)
            reached = np.flatnonzero(matches / whole >= target)
            if not len(reached):
                return None
            return float(cosines[last][reached[-1 if wanted == "precision" else 0]])

        value = chosen(np.ones(n))
        if value is None:
            best = max((self.passing(cosine) for cosine in cosines[last]), key=lambda one: one.precision.value)
            raise UsageError(
                f"No cosine has a precision of {target:g} on the {n:,} labelled pairs: the highest is "
                f"{best.precision}. Ask for less."
            )
        drawn = (chosen(np.bincount(rng.integers(0, n, n), minlength=n).astype(float)) for _ in range(REDRAWN))
        found = [float(cosines[0]) if one is None else one for one in drawn]
        low, high = (float(end) for end in np.quantile(found, ((1 - level) / 2, (1 + level) / 2)))
        return LabelledThreshold(value, low, high, wanted, target, self.passing(value, level), level)
