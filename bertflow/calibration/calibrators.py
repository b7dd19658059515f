"""The calibrators: Center, Standardize, AllButTheTop, Whitening, Ridge, TwoBand, and the flow.

The closed forms are functions of the moments (``bertflow.affine``, ``bertflow.bands``), so each can also be fitted
batch by batch. The flow is ``fit_flow`` behind scikit-learn's interface; Lightning is imported when a flow is fitted,
not when a fitted one is loaded.
"""

import math
import numbers
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from bertflow.affine import AffineMap, all_but_the_top_map, center_map, ridge_map, standardize_map, whitening_map
from bertflow.bands import BandMap, UnitMap, of_unit_rows, two_bands, unit
from bertflow.calibration.base import AbstractCalibrator, Provenance
from bertflow.errors import UsageError
from bertflow.moments import Moments
from bertflow.training.purpose import Purpose
from bertflow.training.recipe import Recipe, preset_for, recipe_changes, resolve

if TYPE_CHECKING:
    from bertflow.calibration.maps import FittedMap, RowMap
    from bertflow.flow.glow import FlowMap
    from bertflow.training.fitting import FittedFlow


_DENSITIES: "WeakKeyDictionary[AbstractDensity, tuple[tuple[Any, Any], Any]]" = WeakKeyDictionary()
"""What each was fitted to, and its density: the eigenvectors behind it take longer than a text."""


class AbstractDensity(AbstractCalibrator):
    """A calibrator that is a density: it can say how likely a row is."""

    @abstractmethod
    def _density(self) -> "AffineMap | FlowMap":
        """The map that turns the density into a standard normal one."""

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


class AbstractClosedForm(AbstractCalibrator):
    """A calibrator that is a function of the first two moments alone."""

    @abstractmethod
    def _closed_form(self) -> AffineMap | BandMap:
        """The map, read off ``moments_``, and where known ``provenance_``."""

    def _fit_map(self, *_: Any, **__: Any) -> AffineMap | BandMap:
        return self._closed_form()

    def fit_moments(self, moments: Moments, provenance: Provenance | None = None) -> Self:
        """Fit to moments that were gathered elsewhere: streamed, merged over machines, or those of a calibrator."""
        if not isinstance(moments, Moments):
            raise UsageError(f"fit_moments takes Moments, got {type(moments).__name__}. For embeddings use fit(x).")
        self._require_parameters()
        self.moments_, self.provenance_, self.facts_ = moments, provenance, {}
        self.n_features_in_ = moments.dim
        self._keep(self._closed_form())
        return self

    def partial_fit(self, X: ArrayLike, y: None = None) -> Self:
        """Add rows (n, dim_in) to what was seen; the map is read off the moments when it is next used."""
        self.require_encoder(None)
        first = not hasattr(self, "moments_")
        seen = Moments.of(self._validated(X, reset=first))
        self.moments_ = seen if first else self.moments_.merge(seen)
        self.provenance_, self.facts_ = None, {}
        self.__dict__.pop("map_", None)
        return self

    @property
    def map(self) -> "RowMap":
        """The fitted row-wise torch module, (n, dim_in) -> (n, dim_out)."""
        if hasattr(self, "moments_") and not hasattr(self, "map_"):
            self._keep(self._closed_form())
        return super().map


class AbstractLinearCalibrator(AbstractClosedForm):
    """A closed form that is affine."""

    @abstractmethod
    def _affine(self) -> AffineMap:
        """The map, read off ``moments_``."""

    def _closed_form(self) -> AffineMap:
        return self._affine()


class Center(AbstractLinearCalibrator):
    """Subtract the mean."""

    divides = False

    def _affine(self) -> AffineMap:
        return center_map(self.moments_)


class Standardize(AbstractDensity, AbstractLinearCalibrator):
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

    divides = False

    def __init__(self, k: int = 3) -> None:
        self.k = k

    def _require_parameters(self) -> None:
        require_count("AllButTheTop(k=...)", self.k, least=0)

    def _affine(self) -> AffineMap:
        return all_but_the_top_map(self.moments_, self.k)


class Whitening(AbstractDensity, AbstractLinearCalibrator):
    """Zero mean, identity covariance: directions of largest variance first, null directions left out.

    ``score_samples`` is the Gaussian with full covariance, whatever ``n_components``: reduction keeps the density.

    Args:
        n_components: How many directions to keep; None keeps the rank.

    Source: Su et al. 2021, arXiv:2103.15316, algorithm 1.
    """

    def __init__(self, n_components: int | None = None) -> None:
        self.n_components = n_components

    def _require_parameters(self) -> None:
        if self.n_components is not None:
            require_count("Whitening(n_components=...)", self.n_components, least=1)

    def _affine(self) -> AffineMap:
        return whitening_map(self.moments_, self.n_components)

    def _density(self) -> AffineMap:
        return whitening_map(self.moments_)


class Ridge(AbstractDensity, AbstractLinearCalibrator):
    """Whitening that lifts directions of small variance less: ``z = (x - m) V (lambda + r median(lambda))^(-1/2)``.

    Here m is the mean; the columns of V are the directions, and lambda their variances. Null directions are left out.
    ``score_samples`` is the Gaussian whose covariance is that of the rows plus r median variances in every kept
    direction, a density of its own, and wider than that of ``Whitening``.

    Args:
        r: The ridge, in medians of the variances: 0 is whitening.

    Source: benchmarks/EXPLORED.md, our own work; the covariance: Friedman 1989, "Regularized discriminant analysis".
    """

    def __init__(self, r: float = 1.0) -> None:
        self.r = r

    def _require_parameters(self) -> None:
        _require_share("Ridge(r=...)", self.r)

    def _affine(self) -> AffineMap:
        return ridge_map(self.moments_, self.r)

    _density = _affine


class TwoBand(AbstractClosedForm):
    """Whitening, in two bands of unit length: ``z = [u(y_1..k), sqrt(c) u(y_k+1..)]``, with ``u(y) = y / |y|``.

    Here y are the whitened coordinates by falling variance, and k is a quarter of them, at least 1. The cosine of two
    rows is ``(cos_head + c cos_tail) / (1 + c)``: the many directions of small variance count as much as ``c`` says. It
    is not affine, has no inverse (the lengths are lost) and no density. A band that is zero, as for a row that is the
    mean, stays zero.

    Args:
        c: Weight of the second band; 0 takes it out, 1 makes both equal.

    Source: our own measurements, benchmarks/EXPLORED.md.
    """

    def __init__(self, c: float = 0.5) -> None:
        self.c = c

    def _require_parameters(self) -> None:
        _require_share("TwoBand(c=...)", self.c)

    def _closed_form(self) -> BandMap:
        return two_bands(whitening_map(self.moments_), self.c)


def _require_share(parameter: str, value: object) -> None:
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= float(value) < math.inf:
        raise UsageError(f"{parameter} takes a number of 0 or more, got {value!r}.")


def require_count(parameter: str, value: object, least: int, of: str = "directions") -> None:
    """Refuse what is not a whole number of at least ``least``."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise UsageError(f"{parameter} takes a whole number of {of}, {least} or more, got {value!r}.")


class FlowCalibrator(AbstractDensity):
    """Maps embeddings to an isotropic Gaussian by an invertible flow, fitted by maximum likelihood.

    The density is one of the raw embeddings, within the span of the directions that are not null, also where the
    calibrated embedding keeps only the first ``n_components`` coordinates of z.

    Args:
        preset: A row of ``bertflow.training.recipe.PRESETS``; "default" is the one for the purpose. A saved calibrator
            says which one that was. Bare embeddings have no dropout: to fit with the encoder in the loop, as "paper-tf"
            does, use train.py.
        n_components: Directions to keep, largest variance first: a number, "all", or "auto", which leaves it to the
            preset: all of a steep spectrum; of one that is spread, a quarter for similarity, and two bands of unit
            length for search and both, which have no inverse. For similarity, embeddings that look calibrated already
            are not changed, and it says so (``facts_["left_alone"]``). Bare embeddings are taken for a mean pooling;
            ``fit_sentences`` looks at the encoder's own.
        random_state: An integer: the same one gives the same map on the same machine.
        changes: Other fields of the preset's recipe, as ``{"epochs": 2, "glow": {"hidden": 64}}``.
        trainer: Options of Lightning's Trainer, as ``{"max_steps": 100, "accelerator": "cpu"}``.
        purpose: What the embeddings are for: similarity, search or both, instead of a preset; similarity by default.

    Attributes:
        facts_: The record of the fit (``bertflow.training.record.FitRecord``) as a dictionary.

    Source: Li et al. 2020, arXiv:2011.05864.
    """

    def __init__(
        self,
        preset: str = "default",
        n_components: int | Literal["auto", "all"] = "auto",
        random_state: int = 0,
        changes: Mapping[str, Any] | None = None,
        trainer: Mapping[str, Any] | None = None,
        purpose: Purpose | None = None,
    ) -> None:
        self.preset = preset
        self.n_components = n_components
        self.random_state = random_state
        self.changes = changes
        self.trainer = trainer
        self.purpose = purpose

    def recorded(self) -> dict[str, Any]:
        """The parameters as they are recorded: with the version of the preset, which says the purpose."""
        return {name: value for name, value in self.get_params().items() if name != "purpose"} | {
            "preset": preset_for(self.preset, self.purpose)
        }

    @classmethod
    def of(cls, fitted: "FittedFlow", recipe: Recipe, moments: Moments, provenance: Provenance | None) -> Self:
        """The calibrator of a flow that was fitted elsewhere.

        Args:
            fitted: The flow and its record.
            recipe: How it was fitted.
            moments: Of all rows, the held-out ones included.
            provenance: Which text, by which encoder.
        """
        changes = recipe_changes(recipe)
        n_components = changes.pop("n_components", "auto")
        calibrator = cls(recipe.preset, n_components, fitted.record.seed, changes or None)
        calibrator.n_features_in_ = moments.dim
        calibrator.moments_, calibrator.provenance_, calibrator.facts_ = moments, provenance, asdict(fitted.record)
        calibrator._keep(fitted.map)
        return calibrator

    @property
    def recipe(self) -> Recipe:
        """The preset with what differs from it."""
        kept = {} if self.n_components == "auto" else {"n_components": self.n_components}
        return resolve(preset_for(self.preset, self.purpose), {**(self.changes or {}), **kept})

    def _require_parameters(self) -> None:
        for name, value in (("changes", self.changes), ("trainer", self.trainer)):
            if not (value is None or isinstance(value, Mapping)):
                raise UsageError(f"FlowCalibrator({name}=...) takes a mapping of options to values, got {value!r}.")
        _seed(self.random_state)
        self.recipe  # noqa: B018 - checks each of its fields

    def _fit_map(self, x: NDArray[np.floating], *made_by: Any) -> "FittedMap":
        if 1 in (x.shape[1], self.n_components):
            # A single coordinate has no other to move it: what is left of a flow is its start.
            return whitening_map(self.moments_, 1)
        from bertflow.training.fitting import fit_flow
        from bertflow.training.rows import plain_moments

        fitted = fit_flow(x, self.recipe, _seed(self.random_state), self.trainer, plain_moments(*made_by))
        self.facts_ = asdict(fitted.record)
        return fitted.map

    def sample(self, n: int = 1, random_state: int = 0) -> NDArray[np.floating]:
        """``n`` raw embeddings (n, dim_in) drawn from the density, of unit length if those of the fit were."""
        if not isinstance(n, numbers.Integral) or isinstance(n, bool) or n < 1:
            raise UsageError(f"sample(n) draws a whole number of rows, 1 or more, got {n!r}.")
        density, generator = self._density(), torch.Generator().manual_seed(_seed(random_state))
        rank = density.dim_out if isinstance(density, AffineMap) else density.rank
        drawn = torch.randn(int(n), rank, generator=generator).numpy()
        return self._mapped((UnitMap(density) if self.moments_.unit else density).inverse, drawn)

    def _density(self) -> "AffineMap | FlowMap":
        module = of_unit_rows(self.map)
        module = module.inner if isinstance(module, BandMap) else module
        return whitening_map(self.moments_) if isinstance(module, AffineMap) else module


def _seed(random_state: Any) -> int:
    whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if whole and 0 <= random_state < 2**63:
        return int(random_state)
    raise UsageError(f"random_state must be a whole number of 0 or more, below 2**63, got {random_state!r}.")
