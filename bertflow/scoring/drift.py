"""Is a batch of texts other text than the one that was fitted on? The evidence, and one line: refit now?

    share outside   texts that are stranger than 99 % of those held out; of ordinary ones 1 % are
    likelihoods     their distribution against that of those held out: Kolmogorov-Smirnov for chance, AUROC for size
    means           squared distance in the coordinates of the density, where held-out text has variances v':
                    D^2 = sum (m - m')^2 / v' - k (1/n + 1/N), the last part being what chance gives
    spectrum        variance of the batch along each coordinate, divided by v'

"Refit now? yes" needs a difference that is both more than chance and large, by the likelihoods or by the means; a test
alone would call everything drift, if only enough text is compared. docs/fix.md has how often it is right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.stats import binomtest

from bertflow.array_types import Floats

LEVEL = 0.01
"""The likelihoods differ by more than chance if their p-value is below this."""
ERRORS = 5.0
"""The means differ by more than chance if they are this many standard errors apart."""
LARGE_AUROC = 0.8
"""AUROC from which a batch is other text, because its texts are stranger, or more ordinary."""
LARGE_DISTANCE = 2.5
"""Standard deviations from which the distance of the mean makes a batch other text."""
STRANGE = 1.0
"""Percentile up to which a sentence is called out of domain; one in a hundred ordinary ones is."""
FAR, SMALLEST = 100, 0.0001
"""Standard errors or deviations from which a number says no more than "far"; p-value below which one says no more."""
FEWEST, MORE = 5, 5
"""Fewest texts whose share out of domain is judged, and how many times the usual share is worth a line."""


@dataclass(frozen=True)
class Excess:
    """Some of ``n``, of which a share of ``usual`` would be ordinary; by default those that are out of domain."""

    some: int
    n: int
    usual: float = STRANGE / 100

    @property
    def share(self) -> float:
        """Their share, in [0, 1]."""
        return self.some / self.n

    @property
    def clear(self) -> bool:
        """Whether they are many more than usual, and more than chance gives."""
        many = self.n >= FEWEST and self.share > MORE * self.usual
        return many and binomtest(self.some, self.n, self.usual, alternative="greater").pvalue < LEVEL


@dataclass(frozen=True)
class Means:
    """The mean and the variances of a batch beside those of the held-out text.

    Attributes:
        distance: Between both means, in standard deviations, without what chance gives; 0 or more.
        standard_errors: Standard errors by which the squared distance exceeds what chance gives.
        spectrum: Variance of the batch along a coordinate, divided by the held-out one: 5 and 95 % of the coordinates.
    """

    distance: float
    standard_errors: float
    spectrum: tuple[float, float]

    def __str__(self) -> str:
        """Half a line."""
        low, high = (f"{end:.2g}" if end < 100 else f"{end:,.0f}" for end in self.spectrum)
        above = f"{self.standard_errors:.0f} standard errors above" if self.standard_errors < FAR else "far above"
        apart = f"{self.distance:.1f}" if self.distance < FAR else f"more than {FAR}"
        return (
            f"means {apart} standard deviations apart ({above} chance), variances {low} to {high} times those of the "
            "held-out text"
        )


@dataclass(frozen=True)
class Coordinates:
    """Mean and variance of held-out text along each of the k coordinates of a density."""

    mean: list[float]
    variance: list[float]

    @classmethod
    def of(cls, z: Floats) -> Self:
        """Mean and variance of rows (N, k)."""
        return cls(z.mean(0, dtype=np.float64).tolist(), z.var(0, dtype=np.float64).tolist())

    def against(self, z: Floats, held_out: int) -> Means:
        """A batch (n, k), n >= 2, beside ``held_out`` rows."""
        kept = np.array(self.variance) > 0  # a coordinate without variance has no standard deviations
        mean, variance = np.array(self.mean)[kept], np.array(self.variance)[kept]
        batch = Coordinates.of(z[:, kept])
        chance, k = 1 / len(z) + 1 / held_out, len(mean)
        squared = float((np.square(np.array(batch.mean) - mean) / variance).sum())
        low, high = np.quantile(np.array(batch.variance) / variance, [0.05, 0.95])
        errors = (squared / chance - k) / (2 * k) ** 0.5
        return Means(max(0.0, squared - k * chance) ** 0.5, errors, (float(low), float(high)))


@dataclass(frozen=True)
class Drift:
    """A batch against the held-out text.

    Attributes:
        n: Sentences of the batch.
        held_out: Sentences that it is compared with.
        p_value: P value of the two-sample Kolmogorov-Smirnov test of log-likelihoods, exact for small samples.
        ks: Its statistic: the largest gap between both distributions, in [0, 1].
        shift: Mean of the batch minus that of the held-out text, in its standard deviations; below 0: strange.
        auroc: How often a sentence of the batch is less likely than one held out; 0.5 means no difference.
        outside: Share of the batch that is out of domain; of ordinary text 0.01 is.
        means: Means and variances; None where only log-likelihoods were given.
    """

    n: int
    held_out: int
    p_value: float
    ks: float
    shift: float
    auroc: float
    outside: float
    means: Means | None = None

    @property
    def drifted(self) -> bool:
        """Whether the difference is more than chance, however small."""
        return self.p_value < LEVEL or (self.means is not None and self.means.standard_errors > ERRORS)

    @property
    def reasons(self) -> Sequence[str]:
        """What is more than chance and large, in words: this is other text than the one that was fitted on."""
        found = []
        if self.p_value < LEVEL and abs(self.auroc - 0.5) >= LARGE_AUROC - 0.5:
            found.append(f"the texts are {'less' if self.auroc > 0.5 else 'more'} ordinary than the held-out ones")
        if self.means and self.means.distance >= LARGE_DISTANCE and self.means.standard_errors > ERRORS:
            found.append("the mean of the texts is far away")
        return found

    @property
    def refit(self) -> bool:
        """Whether there are any such reasons."""
        return bool(self.reasons)

    def evidence(self) -> Mapping[str, float]:
        """The numbers behind ``refit``, by name."""
        means = {} if self.means is None else {"mean_distance": self.means.distance}
        return {"outside": self.outside, "auroc": self.auroc, "p_value": self.p_value, **means}

    def __str__(self) -> str:
        """One line."""
        small = "no, the drift is small" if self.drifted else "no, there is no drift to be seen"
        large = f"yes, {', and '.join(self.reasons)}"
        chance = f"p = {self.p_value:.2g}" if self.p_value >= SMALLEST else f"p < {SMALLEST:.4f}"
        return (
            f"Refit now? {large if self.refit else small}: {100 * self.outside:.1f} % of {self.n:,} texts are out of "
            f"domain ({STRANGE:g} % of ordinary ones are); in {100 * self.auroc:.0f} % of pairs a text is less "
            f"ordinary than one of {self.held_out:,} held out (Kolmogorov-Smirnov {self.ks:.3f}, {chance})"
            f"{f'; {self.means}' if self.means else ''}."
        )
