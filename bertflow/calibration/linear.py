"""The closed-form calibrators: Center, Standardize, AllButTheTop, Whitening.

Each is one function of the moments (``bertflow.affine``), so each can also be fitted batch by batch.
"""

import numbers
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertflow.affine import AffineMap, all_but_the_top_map, center_map, standardize_map, whitening_map
from bertflow.calibration.base import AbstractCalibrator
from bertflow.errors import UsageError
from bertflow.moments import Moments

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder


class AbstractLinearCalibrator(AbstractCalibrator):
    """A calibrator that is a function of the first two moments alone."""

    @abstractmethod
    def _affine(self) -> AffineMap:
        """The map, read off ``moments_``."""

    def _fit_map(
        self,
        x: NDArray[np.floating],
        encoder: "SentenceEncoder | None" = None,
        sentences: Sequence[str] | None = None,
    ) -> AffineMap:
        return self._affine()

    def fit_moments(self, moments: Moments) -> Self:
        """Fit to moments that were gathered elsewhere: streamed, or merged over machines."""
        self.moments_, self.provenance_, self.facts_ = moments, None, {}
        self.n_features_in_ = moments.dim
        self.map_ = self._affine()
        return self

    def partial_fit(self, X: ArrayLike, y: None = None) -> Self:
        """Add rows (n, dim_in) to what was seen; the map is read off the moments when it is next used."""
        first = not hasattr(self, "moments_")
        seen = Moments.of(self._validated(X, reset=first))
        self.moments_ = seen if first else self.moments_.merge(seen)
        self.provenance_, self.facts_ = None, {}
        self.__dict__.pop("map_", None)
        return self

    @property
    def map(self) -> AffineMap:
        """The fitted row-wise torch module, (n, dim_in) -> (n, dim_out)."""
        if hasattr(self, "moments_") and not hasattr(self, "map_"):
            self.map_ = self._affine()
        return cast(AffineMap, super().map)


class Center(AbstractLinearCalibrator):
    """Subtract the mean."""

    def _affine(self) -> AffineMap:
        return center_map(self.moments_)


class AbstractGaussian(AbstractLinearCalibrator):
    """A linear calibrator whose moments are a density: it can say how likely a row is."""

    @abstractmethod
    def _density(self) -> AffineMap:
        """The map that turns the density into a standard normal one."""

    def score_samples(self, X: ArrayLike) -> NDArray[np.floating]:
        """Log density of each row (n,), in nats, within the span of the directions that are not null."""
        x = self._validated(X, reset=False)
        self.map  # noqa: B018 - not fitted is said here, before the moments are missed
        return self._mapped(self._density().log_prob, x)

    def score(self, X: ArrayLike, y: None = None) -> float:
        """Mean log density of the rows, in nats."""
        return float(self.score_samples(X).mean())


class Standardize(AbstractGaussian):
    """Mean zero and variance one in every coordinate; ``score_samples`` is the Gaussian with diagonal covariance.

    Source: "SN" of Li et al. 2020, arXiv:2011.05864, table 5.
    """

    def _affine(self) -> AffineMap:
        return standardize_map(self.moments_)

    _density = _affine


class AllButTheTop(AbstractLinearCalibrator):
    """Center, then take out the ``k`` directions of largest variance; they do not come back with the inverse.

    Args:
        k: How many directions to take out.

    Source: Mu & Viswanath 2018, arXiv:1702.01417; "NATSV" of Li et al. 2020, arXiv:2011.05864, table 5.
    """

    def __init__(self, k: int = 3) -> None:
        self.k = k

    def _affine(self) -> AffineMap:
        _require_number("AllButTheTop(k=...)", self.k)
        return all_but_the_top_map(self.moments_, self.k)


class Whitening(AbstractGaussian):
    """Zero mean, identity covariance: directions of largest variance first, null directions left out.

    ``score_samples`` is the Gaussian with full covariance, whatever ``n_components``: reduction keeps the density.

    Args:
        n_components: How many directions to keep; None keeps the rank.

    Source: Su et al. 2021, arXiv:2103.15316, algorithm 1.
    """

    def __init__(self, n_components: int | None = None) -> None:
        self.n_components = n_components

    def _affine(self) -> AffineMap:
        if self.n_components is not None:
            _require_number("Whitening(n_components=...)", self.n_components)
        return whitening_map(self.moments_, self.n_components)

    def _density(self) -> AffineMap:
        return whitening_map(self.moments_)


def _require_number(parameter: str, value: object) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise UsageError(f"{parameter} takes a whole number of directions, got {value!r}.")
