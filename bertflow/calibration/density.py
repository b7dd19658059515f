"""Calibrators that are densities: how likely a row is, in nats."""

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertflow.affine import AffineMap
from bertflow.calibration.base import AbstractCalibrator
from bertflow.maps import BandMap, of_unit_rows, unit

if TYPE_CHECKING:
    from bertflow.flow.glow import FlowMap

_DENSITIES: "WeakKeyDictionary[AbstractDensity, tuple[tuple[Any, Any], Any]]" = WeakKeyDictionary()
"""What each was fitted to, and its density: the eigenvectors behind it take longer than a text."""


class AbstractDensity(AbstractCalibrator):
    """A calibrator that is a density: it can say how likely a row is."""

    def _density(self) -> "AffineMap | FlowMap":
        """The map that turns the density into a standard normal one: by default the fitted map, without its bands."""
        module = of_unit_rows(self.map)
        return module.inner if isinstance(module, BandMap) else module

    def score_samples(self, X: ArrayLike) -> NDArray[np.floating]:
        """Log density of each row (n,), in nats, within the span of the directions that are not null.

        Where the rows of the fit had unit length, it is the density in the space around the sphere, at the row of unit
        length: right to compare rows, but not a density on the sphere.
        """
        x = self._validated(X, reset=False)
        fitted = self.map, self.moments_  # not fitted is said here
        kept = _DENSITIES.get(self)
        if kept is None or any(one is not other for one, other in zip(kept[0], fitted, strict=True)):
            kept = _DENSITIES[self] = fitted, self._density()
        return self._mapped(lambda rows: kept[1].log_prob(unit(rows) if self.moments_.unit else rows), x)

    def score(self, X: ArrayLike, y: None = None) -> float:
        """Mean log density of the rows, in nats."""
        densities = self.score_samples(X).astype(np.float64)
        return float((densities / len(densities)).sum())  # a sum of huge ones may overflow
