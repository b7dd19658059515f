"""Fit a flow to embeddings: rows and a preset in, the fitted map and its record out.

    rows -> hold some out -> moments of the others -> affine start -> Glow on its first k coordinates -> train -> choose

What is chosen in the end is, for a recipe that keeps the best, the state with the fewest held-out bits. The start is
one of them, so a fit never returns something worse than its own affine start. The choice can be made at any moment,
also after an interruption.
"""

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EMAWeightAveraging
from torch import Tensor

from bertflow.affine import AffineMap, identity_map
from bertflow.flow.glow import bits_per_dim, build_glow
from bertflow.flow.map import FlowMap
from bertflow.training.batches import Embeddings, rows_of, seeded_order
from bertflow.training.data import HELD_OUT_MOST, TrainingData, hold_out
from bertflow.training.gaussianity import gaussianity
from bertflow.training.keeping import DivergenceError, State
from bertflow.training.module import BertFlow
from bertflow.training.presets import Recipe, resolve
from bertflow.training.quiet import known_warnings, quiet
from bertflow.training.record import FitRecord
from bertflow.training.reduction import (
    effective_rank,
    kept_directions,
    participation_ratio,
    plain_spread,
    reason_to_leave,
)
from bertflow.training.start import affine_start, gathered, moments_of_rows
from bertflow.training.threads import threads_for

if TYPE_CHECKING:
    from bertflow.encoder.transformer import TransformerEncoder

logger = logging.getLogger("bertflow")


@dataclass(frozen=True)
class FittedFlow:
    """What came out of a fit."""

    map: FlowMap | AffineMap
    """The flow; the identity where the record says that the embeddings are left alone."""
    record: FitRecord


LIMITS = ("max_epochs", "max_steps", "max_time")
"""Options of a Trainer that end a training."""


def with_limits(recipe: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's options of a Trainer, then the user's; one limit of the user's replaces all of the recipe's."""
    if any(name in given for name in LIMITS):
        recipe = {name: value for name, value in recipe.items() if name not in LIMITS}
    return {**recipe, **given}


class FlowFit:
    """A fit: what is trained, on what, and what has come out of it so far.

    Args:
        x: Embeddings (n, dim), n >= 2: in memory, memory-mapped, or an ``EmbeddingStore``.
        recipe: How.
        seed: Of the held-out rows, the flow's first weights, and the order of the rows.
        sentences: The n sentences that ``x`` was made of, which ``encoder`` encodes on the fly if the recipe says so.
        encoder: Made ``x`` of them.
        spread: Participation ratio of the plain mean pooling; that of ``x`` by default, or where the encoder pools by
            token frequency, of its plain mean (``bertflow.training.reduction``).

    Raises:
        DataError: For a NaN, an infinity, fewer than two rows, rows that are all equal, or more directions wanted than
            there are.
        UsageError: If the flow would have fewer than two dimensions.
    """

    def __init__(
        self,
        x: Embeddings,
        recipe: Recipe,
        seed: int = 0,
        sentences: Sequence[str] | None = None,
        encoder: "TransformerEncoder | None" = None,
        spread: float | None = None,
    ) -> None:
        on_the_fly = recipe.dropout and sentences is not None and encoder is not None
        if recipe.dropout and not on_the_fly:
            recipe = replace(recipe, dropout=False)
            logger.info("%s wants the encoder's dropout on; embeddings made beforehand have none.", recipe.preset)
        units, held_out = hold_out(len(x), recipe.held_out, seed, recipe.unit)
        self.x, self.recipe, self.seed = x, recipe, seed
        self.train_rows = rows_of(units, recipe.unit)
        self.held_out = gathered(x, rows_of(held_out, recipe.unit)) if len(held_out) else None
        moments = moments_of_rows(x, self.train_rows)
        affine, self.gaussian = affine_start(moments, recipe)
        spread = spread or plain_spread(encoder, sentences) or participation_ratio(moments)
        self.left_alone = reason_to_leave(recipe, spread)
        glow = build_glow(affine.dim_out, recipe.glow, seed)
        kept = kept_directions(recipe, affine.dim_out, effective_rank(moments))
        self.module = BertFlow(FlowMap(affine, glow, kept), recipe, encoder)
        rows = sentences if on_the_fly and sentences is not None else x
        self.data = TrainingData(rows, units, self.held_out, recipe.batch_size, seed, recipe.unit)
        self.steps, self.seconds, self.finished = 0, 0.0, False

    @property
    def trains(self) -> bool:
        """Whether there is a point in training: a recipe that keeps the best needs rows to judge by."""
        if self.left_alone:
            return False
        return self.recipe.keep == "last" or self.recipe.held_out == 0 or self.held_out is not None

    def trainer_options(self) -> dict[str, Any]:
        """What the recipe asks of a Trainer; whoever makes one may override any of it."""
        epochs, batches = self.recipe.epochs, len(self.data.train_dataloader())
        steps = min(max(1, int(batches * epochs)), self.recipe.steps or math.inf)
        return {
            "max_epochs": math.ceil(epochs),
            "max_steps": -1 if steps == batches * math.ceil(epochs) else steps,
            "gradient_clip_val": self.recipe.clip_norm or None,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": min(50, batches),
            **({"limit_val_batches": 0} if self.held_out is None else {}),
        }

    def callbacks(self) -> list[pl.Callback]:
        """What the recipe adds to a Trainer."""
        # Buffers are permutations; their averages are not.
        return [EMAWeightAveraging(decay=self.recipe.ema, use_buffers=False)] if self.recipe.ema else []

    def run(self, trainer: pl.Trainer, resume: str | None = None) -> None:
        """Train; ``result`` has something to give in any case.

        Args:
            trainer: Made with ``trainer_options`` and ``callbacks``.
            resume: Checkpoint of the same fit to go on from.

        Raises:
            DivergenceError: If the loss is no longer finite.
            KeyboardInterrupt: After Ctrl-C or SIGTERM.
        """
        if self.left_alone:
            logger.warning("%s.", self.left_alone)
            return
        if not self.trains:
            logger.warning("%d rows are too few to hold some out and judge a flow by: its start is kept.", len(self.x))
            return
        try:
            with known_warnings(), threads_for(self._numbers_a_step()):
                trainer.fit(self.module, datamodule=self.data, ckpt_path=resume, weights_only=True if resume else None)
            self.finished = True
        except SystemExit:
            # Lightning ends the process when it is interrupted; that is for our caller to do.
            if not trainer.interrupted:
                raise
            raise KeyboardInterrupt from None
        finally:
            self.steps, self.seconds = trainer.global_step, self.module.states.seconds
        require_finite_end(self)

    def _numbers_a_step(self) -> float:
        """Rows x dimensions of a batch; no end of them where the encoder is in the loop."""
        return math.inf if self.recipe.dropout else self.recipe.batch_size * self.module.flow.rank

    def result(self) -> FittedFlow:
        """The state that the recipe chooses among those there are, and what there is to say about it."""
        chosen = self._choose()
        flow, train = self._flow(chosen), self.train_sample()
        held_out, comparable = self.held_out, flow.rank == self.gaussian.dim_out
        with torch.no_grad():
            z = flow.latent(train if held_out is None else held_out)[0].numpy()
        record = FitRecord(
            preset=self.recipe.preset,
            seed=self.seed,
            n_train=len(self.train_rows),
            n_held_out=0 if held_out is None else len(held_out),
            dim_in=flow.dim_in,
            rank=self.gaussian.dim_out,
            n_null=flow.dim_in - self.gaussian.dim_out,
            dim_out=flow.dim_in if self.left_alone else flow.dim_out,
            steps=self.steps,
            seconds=round(self.seconds, 3),
            kept=chosen.name,
            left_alone=self.left_alone,
            interrupted=self.trains and not self.finished,
            dropout=self.recipe.dropout,
            train_bits=mean_bits(flow, train),
            train_bits_gaussian=mean_bits(self.gaussian, train) if comparable else None,
            held_out_bits=None if held_out is None else mean_bits(flow, held_out),
            held_out_bits_gaussian=mean_bits(self.gaussian, held_out) if comparable and held_out is not None else None,
            gaussianity=gaussianity(z),
        )
        if self.finished and chosen.name == "start":
            logger.warning("No step of the flow had fewer held-out bits than its start, so the start is kept.")
        return FittedFlow(identity_map(flow.dim_in) if self.left_alone else flow, record)

    def train_sample(self) -> Tensor:
        """Training rows, at most as many as are ever held out."""
        chosen = np.sort(seeded_order(len(self.train_rows), self.seed)[:HELD_OUT_MOST])
        return gathered(self.x, self.train_rows[chosen])

    def _choose(self) -> State:
        states = self.module.states
        weights = self.module.flow.state_dict()
        start = states.start or State("start", weights)
        last = State(f"step {self.steps}", weights) if self.finished else states.checked or start
        if self.recipe.keep == "last" or self.held_out is None:
            return last
        return min([start, last] + ([states.best] if states.best else []), key=self._held_out_bits)

    def _held_out_bits(self, state: State) -> float:
        assert self.held_out is not None
        bits = mean_bits(self._flow(state), self.held_out) if state.bits is None else state.bits
        return bits if math.isfinite(bits) else math.inf

    def _flow(self, state: State) -> FlowMap:
        """A flow of its own with these weights, on the CPU."""
        flow = copy.deepcopy(self.module.flow).cpu()
        flow.load_state_dict(state.weights)
        return flow.eval().requires_grad_(False)


@torch.no_grad()
def mean_bits(density: FlowMap | AffineMap, x: Tensor) -> float:
    """Mean bits per dimension of the rows ``x`` under a density."""
    dim = density.rank if isinstance(density, FlowMap) else density.dim_out
    return float(bits_per_dim(density.log_prob(x), dim).double().mean())


def require_finite_end(fit: FlowFit) -> None:
    """The last step of a fit is looked at as well.

    Raises:
        DivergenceError: If the flow that came out gives no finite likelihood.
    """
    states, last = fit.module.states, State("last", fit.module.flow.state_dict())
    if not math.isfinite(mean_bits(fit._flow(last), fit.train_sample())):
        fit.finished = False
        raise DivergenceError(states.message(fit.module, fit.steps, math.nan))


def fit_flow(
    x: Embeddings,
    preset: str | Recipe = "default",
    n_components: int | Literal["auto", "all"] | None = None,
    random_state: int = 0,
    held_out: float | None = None,
    changes: Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
    spread: float | None = None,
) -> FittedFlow:
    """Fit a flow to embeddings, quietly.

    Args:
        x: Embeddings (n, dim), n >= 2: in memory, memory-mapped, or an ``EmbeddingStore``.
        preset: A row of ``PRESETS``, or a recipe of one's own.
        n_components: Directions to keep, "all" or "auto"; as in the preset by default.
        random_state: Of the held-out rows, the flow's first weights, and the order of the rows.
        held_out: Share of the rows that judge the fit; as in the preset by default.
        changes: Other fields of the recipe, as ``{"epochs": 2, "glow": {"hidden": 64}}``.
        trainer: Options of Lightning's Trainer, as ``{"max_steps": 100}``; they come before the recipe's.
        spread: Participation ratio of the plain mean pooling, which decides whether "auto" leaves the embeddings alone;
            that of ``x`` by default.

    Raises:
        DataError: For rows that no flow can be fitted to; the message says why.
        DivergenceError: If the loss is no longer finite.
        UsageError: For an option that cannot be used.

    Source: Li et al. 2020, arXiv:2011.05864, section 3; the recipe is ours, see ``bertflow.training.presets``.
    """
    given = {"n_components": n_components, "held_out": held_out}
    recipe = resolve(preset, {**(changes or {}), **{name: value for name, value in given.items() if value is not None}})
    fit = FlowFit(x, recipe, random_state, spread=spread)
    options: dict[str, Any] = {
        "accelerator": "auto",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **with_limits(fit.trainer_options(), trainer or {}),
    }
    options["callbacks"] = [*fit.callbacks(), *(options.get("callbacks") or [])]
    with quiet():
        fit.run(pl.Trainer(**options))
    return fit.result()
