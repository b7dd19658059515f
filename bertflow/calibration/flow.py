"""The flow as a calibrator: ``fit_flow`` behind scikit-learn's ``fit``, ``transform`` and ``score_samples``.

Lightning is imported when a flow is fitted, not when a fitted one is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bertflow.affine import AffineMap, whitening_map
from bertflow.calibration.base import AbstractCalibrator, Provenance
from bertflow.errors import UsageError
from bertflow.flow.map import FlowMap
from bertflow.moments import Moments
from bertflow.training.presets import Recipe, recipe_changes

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.training.fitting import FittedFlow


class FlowCalibrator(AbstractCalibrator):
    """Maps embeddings to an isotropic Gaussian by an invertible flow, fitted by maximum likelihood.

    The density is one of the raw embeddings, within the span of the directions that are not null, also where the
    calibrated embedding keeps only the first ``n_components`` coordinates of z.

    Args:
        preset: A row of ``bertflow.training.presets.PRESETS``. Bare embeddings have no dropout: to fit with the encoder
            in the loop, as "paper-tf" does, use train.py.
        n_components: Directions to keep, largest variance first: a number, "all" (better for search than for
            similarity), or "auto", which leaves it to the preset; "default" then keeps all of a steep spectrum, 96 of
            one that is spread, or changes nothing where the embeddings look calibrated already, and says so
            (``facts_["left_alone"]``). Bare embeddings are taken for a mean pooling; ``fit_sentences`` looks at the
            encoder's own.
        random_state: An integer: the same one gives the same map on the same machine.
        changes: Other fields of the preset's recipe, as ``{"epochs": 2, "glow": {"hidden": 64}}``.
        trainer: Options of Lightning's Trainer, as ``{"max_steps": 100, "accelerator": "cpu"}``.

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
    ) -> None:
        self.preset = preset
        self.n_components = n_components
        self.random_state = random_state
        self.changes = changes
        self.trainer = trainer

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
        calibrator.moments_, calibrator.map_ = moments, fitted.map
        calibrator.provenance_, calibrator.facts_ = provenance, fitted.record.to_dict()
        return calibrator

    def _fit_map(
        self,
        x: NDArray[np.floating],
        encoder: "SentenceEncoder | None" = None,
        sentences: Sequence[str] | None = None,
    ) -> AffineMap | FlowMap:
        if 1 in (x.shape[1], self.n_components):
            # A single coordinate has no other to move it: what is left of a flow is its start.
            return whitening_map(self.moments_, 1)
        from bertflow.training.fitting import fit_flow
        from bertflow.training.reduction import plain_spread

        fitted = fit_flow(
            x,
            self.preset,
            n_components=None if self.n_components == "auto" else self.n_components,
            random_state=_seed(self.random_state),
            changes=self.changes,
            trainer=self.trainer,
            spread=plain_spread(encoder, sentences),
        )
        self.facts_ = fitted.record.to_dict()
        return fitted.map

    def score_samples(self, X: ArrayLike) -> NDArray[np.floating]:
        """Log density of each row (n,), in nats, within the span of the directions that are not null."""
        x = self._validated(X, reset=False)
        return self._mapped(self._density().log_prob, x)

    def score(self, X: ArrayLike, y: None = None) -> float:
        """Mean log density of the rows, in nats."""
        return float(self.score_samples(X).mean())

    def sample(self, n: int = 1, random_state: int = 0) -> NDArray[np.floating]:
        """``n`` raw embeddings (n, dim_in) drawn from the density."""
        density, generator = self._density(), torch.Generator().manual_seed(_seed(random_state))
        rank = density.rank if isinstance(density, FlowMap) else density.dim_out
        with torch.inference_mode():
            return density.inverse(torch.randn(n, rank, generator=generator)).numpy()

    def _density(self) -> FlowMap | AffineMap:
        return self.map if isinstance(self.map, FlowMap) else whitening_map(self.moments_)

    def _mapped(self, function: Callable[[Tensor], Tensor], x: NDArray[np.floating]) -> NDArray[np.floating]:
        # The flow is float32; what comes in as float64 goes out as float64.
        return super()._mapped(function, x).astype(x.dtype, copy=False)


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state)
    raise UsageError(f"random_state must be a whole number of 0 or more, got {random_state!r}.")
