"""The shape of a cloud of embeddings, as far as a verdict needs it: cosines of random pairs, spread, norms."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError
from bertflow.moments import Moments
from bertflow.scoring.random_pairs import RandomPairs
from bertflow.training.reduction import participation_ratio


@dataclass(frozen=True)
class Geometry:
    """Of n embeddings of text that nothing was fitted on.

    Attributes:
        n: Embeddings.
        dim: Their width.
        mean: Mean cosine of random pairs; 0 is isotropic, 1 is one direction.
        p5: 5 % of random pairs have a lower cosine.
        median: Half of them.
        p95: 95 %.
        participation: Over how many directions the variance is spread (participation ratio), from 1 to dim.
        norm: Mean length.
        norm_deviation: Its standard deviation.
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
        """Measure the rows of ``x`` (n, dim).

        Raises:
            DataError: If all embeddings are one.
        """
        if not np.ptp(x, axis=0).any():
            raise DataError(
                f"All {len(x):,} embeddings are equal, so they tell nothing apart. Is this the right model?"
            )
        cosines, norms = RandomPairs.of(x, seed).cosines, np.linalg.norm(x.astype(np.float64), axis=1)
        p5, median, p95 = np.quantile(cosines, [0.05, 0.5, 0.95])
        return cls(
            n=len(x),
            dim=x.shape[1],
            mean=float(cosines.mean()),
            p5=float(p5),
            median=float(median),
            p95=float(p95),
            participation=participation_ratio(Moments.of(x)),
            norm=float(norms.mean()),
            norm_deviation=float(norms.std()),
        )

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """One line."""
        return (
            f"random pairs have cosine {self.median:.2f} (90 % of them {self.p5:.2f} to {self.p95:.2f}); the variance "
            f"is spread over {self.participation:.0f} of {self.dim} directions; length {self.norm:.3g} +- "
            f"{self.norm_deviation:.2g}"
        )
