"""The flow as a calibrator: ``fit_flow`` behind scikit-learn's interface.

Lightning is imported when a flow is fitted, not when a fitted one is loaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch

from bertflow.affine import AffineMap, whitening_map
from bertflow.array_types import Floats
from bertflow.calibration.base import AbstractDensity
from bertflow.calibration.parameters import whole_number
from bertflow.calibration.saving import Provenance
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import UsageError
from bertflow.maps import FittedMap, UnitMap
from bertflow.moments import Moments
from bertflow.progress import watched
from bertflow.training import Purpose
from bertflow.training.recipe import Recipe, preset_for, recipe_changes, resolve

if TYPE_CHECKING:
    from bertflow.flow.glow import FlowMap
    from bertflow.training.flow_fit import FittedFlow


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
            length for search and all, which have no inverse. For similarity, embeddings that look calibrated already
            are not changed, and it says so (``facts_["left_alone"]``). Bare embeddings are taken for a mean pooling;
            ``fit_sentences`` looks at the encoder's own.
        random_state: An integer: the same one gives the same map on the same machine.
        changes: Other fields of the preset's recipe, as ``{"epochs": 2, "glow": {"hidden": 64}}``.
        trainer: Options of Lightning's Trainer, as ``{"max_steps": 100, "accelerator": "cpu"}``.
        purpose: What the embeddings are for: similarity, search or all, instead of a preset; similarity by default.

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
            moments: Moments of all rows, the held-out ones included.
            provenance: Which text, by which encoder.
        """
        changes = recipe_changes(recipe)
        n_components = changes.pop("n_components", "auto")
        calibrator = cls(recipe.preset, n_components, fitted.record.seed, changes or None)
        calibrator.n_features_in_ = moments.dim
        calibrator.moments_, calibrator.provenance_, calibrator.facts_ = moments, provenance, asdict(fitted.record)
        calibrator.map_ = calibrator.with_gap(fitted.map, moments.gap)
        return calibrator

    @property
    def recipe(self) -> Recipe:
        """The preset with what differs from it."""
        kept = {} if self.n_components == "auto" else {"n_components": self.n_components}
        return resolve(preset_for(self.preset, self.purpose), {**(self.changes or {}), **kept})

    def _parameters(self) -> list[Any]:
        for name, value in (("changes", self.changes), ("trainer", self.trainer)):
            if not (value is None or isinstance(value, Mapping)):
                raise UsageError(f"FlowCalibrator({name}=...) takes a mapping of options to values, got {value!r}.")
        return [self.recipe, _seed(self.random_state), self.trainer]

    def _fit_map(self, x: Floats, encoder: SentenceEncoder | None, sentences: Sequence[str]) -> FittedMap:
        if 1 in (x.shape[1], self.n_components):
            # A single coordinate has no other to move it: what is left of a flow is its start.
            return whitening_map(self.moments_, 1)
        from bertflow.training.auto import plain_moments
        from bertflow.training.flow_fit import fit_flow

        fitted = fit_flow(x, self.recipe, _seed(self.random_state), self.trainer, plain_moments(encoder, sentences))
        self.facts_ = asdict(fitted.record)
        return fitted.map

    def sample(self, n: int = 1, random_state: int = 0) -> Floats:
        """``n`` raw embeddings (n, dim_in) drawn from the density, of unit length if those of the fit were."""
        whole_number("sample(n)", n, 1, "rows")
        density, generator = self._density(), torch.Generator().manual_seed(_seed(random_state))
        rank = density.dim_out if isinstance(density, AffineMap) else density.rank
        drawn = torch.randn(int(n), rank, generator=generator).numpy()
        return self._mapped((UnitMap(density) if self.moments_.unit else density).inverse, drawn)

    def _density(self) -> "AffineMap | FlowMap":
        density = super()._density()
        return whitening_map(self.moments_) if isinstance(density, AffineMap) else density


def flow_on_rows(
    x: Any, recipe: Recipe, seed: int, moments: Moments, provenance: Provenance | None, progress: bool | None
) -> FlowCalibrator:
    """The calibrator of a flow that is fitted here to the rows ``x``; with a bar, by default where one is watched."""
    from bertflow.training.flow_fit import fit_flow

    trainer = {"enable_progress_bar": watched() if progress is None else progress}
    return FlowCalibrator.of(fit_flow(x, recipe, seed, trainer), recipe, moments, provenance)


def _seed(random_state: Any) -> int:
    whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if whole and 0 <= random_state < 2**63:
        return int(random_state)
    raise UsageError(f"random_state must be a whole number of 0 or more, below 2**63, got {random_state!r}.")
