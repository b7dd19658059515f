"""What a fit reports: how it went, and how near z comes to a standard normal distribution."""

from dataclasses import dataclass

import numpy as np

from bertflow.array_types import Floats
from bertflow.errors import how_many

ENOUGH_TEXT = 1000
"""Fewest sentences for which a flow is clearly better than whitening."""
EVEN = 2e-3
"""Difference in bits per dimension below which two densities are equally good."""


@dataclass(frozen=True)
class Gaussianity:
    """Departures of n rows of z from N(0, I); every number is 0 for a perfect fit and infinitely many rows.

    Attributes:
        n: Number of rows.
        norm_ks: Largest gap between the distribution of the squared lengths and chi-square (Kolmogorov-Smirnov). At 0
            they agree.
        mean: Root mean square of the means of the coordinates. A Gaussian has 0.
        variance: Root mean square of the variances less 1. At 0 all coordinates have the right width.
        skewness: Root mean square skewness of the coordinates. At 0 they are symmetric, as a Gaussian is.
        kurtosis: Root mean square excess kurtosis of the coordinates. Above 0 some values lie far out.
        covariance: Root mean square covariance of two coordinates. At 0 none goes with another.
        sampling: What means and covariances are for this many rows of a Gaussian. Less cannot be told from 0.
    """

    n: int
    norm_ks: float
    mean: float
    variance: float
    skewness: float
    kurtosis: float
    covariance: float
    sampling: float


def gaussianity(z: Floats) -> Gaussianity:
    """Measure the rows z (n, dim), n >= 2."""
    from scipy import stats  # takes half a second

    z = np.asarray(z, dtype=np.float64)
    n, dim = z.shape
    covariance = np.cov(z, rowvar=False, bias=True).reshape(dim, dim)
    standard = (z - z.mean(0)) / np.sqrt(np.diag(covariance).clip(min=np.finfo(np.float64).tiny))
    return Gaussianity(
        n=n,
        norm_ks=float(stats.kstest(np.square(z).sum(1), stats.chi2(dim).cdf).statistic),
        mean=_rms(z.mean(0)),
        variance=_rms(np.diag(covariance) - 1),
        skewness=_rms((standard**3).mean(0)),
        kurtosis=_rms((standard**4).mean(0) - 3),
        covariance=_rms(covariance[~np.eye(dim, dtype=bool)]),
        sampling=float(1 / np.sqrt(n)),
    )


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.square(values).mean())) if values.size else 0.0


@dataclass(frozen=True)
class FitRecord:
    """How a flow was fitted, and how well. Bits are per dimension of the density; lower is better.

    Attributes:
        preset: Row of ``PRESETS``.
        seed: Random seed for the held-out rows, the first weights and the order of the rows.
        n_train: Rows trained on.
        n_held_out: Rows that judged the fit.
        dim_in: Width of the embeddings.
        rank: Number of directions that are not null.
        n_null: Number of null directions.
        dim_out: Directions that the calibrated embedding keeps.
        steps: Steps of the optimizer.
        seconds: Duration of the training.
        kept: The chosen state: "start", or "step 96".
        left_alone: Why the embeddings are left as they are, in words; None where they are not. Then the bits and
            ``gaussianity`` are those of the start, the Gaussian.
        interrupted: Whether the fit was stopped before its end.
        dropout: Whether the encoder was in the loop, with its dropout on.
        train_bits: Bits of (a sample of) the training rows.
        train_bits_gaussian: The same under the Gaussian of full covariance; None where the flow keeps null directions,
            since densities on different dimensions do not compare.
        held_out_bits: Bits of the held-out rows; None where there are none.
        held_out_bits_gaussian: The same under the Gaussian.
        gaussianity: Gaussianity of z, on the held-out rows; on the training rows where there are none.
    """

    preset: str
    seed: int
    n_train: int
    n_held_out: int
    dim_in: int
    rank: int
    n_null: int
    dim_out: int
    steps: int
    seconds: float
    kept: str
    left_alone: str | None
    interrupted: bool
    dropout: bool
    train_bits: float
    train_bits_gaussian: float | None
    held_out_bits: float | None
    held_out_bits_gaussian: float | None
    gaussianity: Gaussianity

    @property
    def untrained(self) -> str:
        """Why the flow is as it was before the training, in a line; empty where it is not."""
        if self.left_alone or self.kept != "start" or self.interrupted:
            return f"{self.left_alone}." if self.left_alone else ""
        few = f"{self.n_train:,} rows are too few to train a flow (give {ENOUGH_TEXT:,} or more)"
        why = (
            "Training did not improve the flow on held-out rows (more epochs or more text may help)"
            if self.steps
            else few
        )
        return f"{why}, so what is kept is a linear map, such as whitening."

    def summary(self) -> str:
        """One line."""
        if self.untrained:
            return self.untrained
        name, bits, gaussian = "training", self.train_bits, self.train_bits_gaussian
        if self.held_out_bits is not None:
            name, bits, gaussian = "held-out", self.held_out_bits, self.held_out_bits_gaussian
        if gaussian is None:
            return f"The flow needs {bits:.4f} bits per dimension on {name} text."
        word = "as well as" if abs(bits - gaussian) < EVEN else "better than" if bits < gaussian else "worse than"
        numbers = f"{bits:.4f} bits per dimension, whitening {gaussian:.4f} (lower is better)"
        return f"The flow fits {name} text {word} whitening: {numbers}."

    def to_markdown(self) -> str:
        """A short report."""
        if self.left_alone:
            return f"# Fit of a flow\n\nPreset `{self.preset}`, {self.n_train:,} rows, {self.left_alone}.\n"
        table = "\n".join(f"| {' | '.join(row)} |" for row in self._judged())
        z = self.gaussianity
        return f"""# Fit of a flow

Preset `{self.preset}`, seed {self.seed}: {how_many(self.steps, "steps")} in {self.seconds:.0f} s; kept: {self.kept}\
{" (interrupted)" if self.interrupted else ""}.
{self.dim_in} dimensions, {self.n_null} of them null; the calibrated embedding has {self.dim_out}.

| rows | n | bits per dimension, flow | full-covariance Gaussian |
|---|---|---|---|
{table}

Departure of z from N(0, I) on {z.n:,} rows; 0 is none, and chance alone gives the first two about {z.sampling:.3f}:

| means | covariances | variances | skewness | excess kurtosis | norms (Kolmogorov-Smirnov) |
|---|---|---|---|---|---|
| {z.mean:.3f} | {z.covariance:.3f} | {z.variance:.3f} | {z.skewness:.3f} | {z.kurtosis:.3f} | {z.norm_ks:.3f} |

A better density is not a better similarity: held-out bits do not rank calibrators by Spearman. Evaluate.
"""

    def _judged(self) -> list[tuple[str, ...]]:
        """Name and number of the training rows and of the held-out rows, and their bits by flow and by Gaussian."""
        rows = (
            ("training", self.n_train, self.train_bits, self.train_bits_gaussian),
            ("held out", self.n_held_out, self.held_out_bits, self.held_out_bits_gaussian),
        )
        return [(name, f"{n:,}", *("-" if each is None else f"{each:.4f}" for each in bits)) for name, n, *bits in rows]
