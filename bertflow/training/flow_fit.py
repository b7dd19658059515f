"""Fit a flow to embeddings: rows and a preset in, the fitted map and its record out.

    rows -> hold some out -> moments of the others -> affine start -> Glow on its first k coordinates -> train -> choose

For a recipe that keeps the best, the state with the fewest held-out bits is chosen in the end. The start is one of the
candidates, so a fit never returns something worse than its own affine start. The choice can be made at any moment, also
after an interruption.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from bertflow.affine import AffineMap, identity_map
from bertflow.data.corpus import drawn_rows
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, logger
from bertflow.flow.glow import FlowMap, bits_per_dim, build_glow
from bertflow.maps import BandMap, two_bands
from bertflow.moments import Moments
from bertflow.progress import Advance
from bertflow.training.auto import affine_start, kept_directions, plain_moments
from bertflow.training.batches import (
    HELD_OUT_MOST,
    Embeddings,
    ShuffledBatches,
    gathered,
    hold_out,
    moments_of_rows,
    rows_of,
)
from bertflow.training.checkpoints import EMAWeightAveraging
from bertflow.training.divergence import State
from bertflow.training.module import BertFlow, TrainingData
from bertflow.training.recipe import Recipe, resolve
from bertflow.training.record import FitRecord, gaussianity
from bertflow.training.trainer import quiet_trainer, recipe_limits, run_training

SMALL = 2**19
"""Numbers in a batch (rows x dimensions) up to which a second thread does not pay."""


@dataclass(frozen=True)
class FittedFlow:
    """The result of a fit."""

    map: FlowMap | AffineMap | BandMap
    """The flow; its two bands, where the recipe keeps a tail; the identity where the record says that the embeddings
    are left alone."""
    record: FitRecord


def trainer_options(recipe: Recipe, n: int) -> dict[str, Any]:
    """What a recipe asks of a Trainer, for ``n`` rows."""
    units, held_out = hold_out(n, recipe.held_out, 0, recipe.unit)
    batches = len(ShuffledBatches([], units, recipe.batch_size, 0, recipe.unit))
    options = recipe_limits(recipe.epochs, recipe.clip_norm, batches, len(held_out), recipe.steps)
    if torch.backends.mps.is_available():
        options["accelerator"] = "cpu"  # the affine start is float64, which MPS does not have
    return options | ({"callbacks": [EMAWeightAveraging(decay=recipe.ema, use_buffers=False)]} if recipe.ema else {})


class FlowFit:
    """A fit: what is trained, on what, and the result so far.

    Args:
        x: Embeddings (n, dim), n >= 2: in memory, memory-mapped, or an ``EmbeddingStore``.
        recipe: How it is trained.
        seed: Random seed for the held-out rows, the flow's first weights, and the order of the rows.
        sentences: The n sentences that ``x`` was made from, which ``encoder`` encodes on the fly if the recipe says so.
        encoder: Made ``x`` from them.
        plain: Moments of the plain mean pooling; those of ``x`` by default, or where the encoder pools by token
            frequency, of its plain mean (``bertflow.training.batches``).

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
        encoder: TransformerEncoder | None = None,
        plain: Moments | None = None,
    ) -> None:
        on_the_fly = recipe.dropout and sentences is not None and encoder is not None
        if recipe.dropout and not on_the_fly:
            recipe = replace(recipe, dropout=False)
            logger.info("%s uses the encoder's dropout, but these embeddings were made without it.", recipe.preset)
        units, held_out = hold_out(len(x), recipe.held_out, seed, recipe.unit)
        self.x, self.recipe, self.seed = x, recipe, seed
        self.train_rows = rows_of(units, recipe.unit)
        self.held_out = gathered(x, rows_of(held_out, recipe.unit)) if len(held_out) else None
        self.train_moments = moments = moments_of_rows(x, self.train_rows)
        affine, self.gaussian = affine_start(moments, recipe)
        plain = plain or plain_moments(encoder, sentences) or moments
        self.directions = kept_directions(recipe, affine.dim_out, plain)
        glow = build_glow(affine.dim_out, recipe.glow, seed)
        self.module = BertFlow(FlowMap(affine, glow, self.directions.kept), recipe, encoder)
        source = sentences if on_the_fly and sentences is not None else x
        self.data = TrainingData(ShuffledBatches(source, units, recipe.batch_size, seed, recipe.unit), self.held_out)
        self.steps, self.seconds, self.finished = 0, 0.0, False

    @property
    def trains(self) -> bool:
        """Whether there is a point in training: a recipe that keeps the best needs rows to judge by."""
        judged = self.recipe.keep == "last" or self.recipe.held_out == 0 or self.held_out is not None
        return judged and not self.directions.left_alone

    @cached_property
    def moments(self) -> Moments:
        """Moments of all rows, the held-out ones included; only those are read again."""
        rest = np.setdiff1d(np.arange(len(self.x)), self.train_rows)
        others = [moments_of_rows(self.x, rest)] if len(rest) else []
        return Moments.merged([self.train_moments, *others])

    def run(self, trainer: pl.Trainer, resume: str | Path | None = None) -> None:
        """Train; afterwards ``result`` has something to give, however the training ended.

        Args:
            trainer: Made with ``trainer_options``.
            resume: Checkpoint of the same fit to go on from.

        Raises:
            DivergenceError: If the loss is no longer finite.
            KeyboardInterrupt: After Ctrl-C or SIGTERM.
        """
        if not self.trains:
            return
        try:
            with threads_for(math.inf if self.recipe.dropout else self.recipe.batch_size * self.module.flow.rank):
                run_training(trainer, self.module, self.data, resume)
        finally:
            self.steps, self.seconds = trainer.global_step, self.module.clock.time_elapsed()
        last = State("last", self.module.flow.state_dict())
        bits = mean_bits(self._flow(last), self.train_sample())  # the last step is checked as well
        self.finished = bits is not None and math.isfinite(bits)
        self.module.states.finite(trainer, self.module, torch.tensor(bits))

    def result(self) -> FittedFlow:
        """The state that the recipe chooses among those kept, and its record."""
        chosen, held_out, left_alone = self._choose(), self.held_out, self.directions.left_alone
        flow, train = self._flow(chosen), self.train_sample()
        gaussian = self.gaussian if flow.rank == self.gaussian.dim_out else None
        judged: dict[str, Any] = {
            "train_bits": mean_bits(flow, train),
            "train_bits_gaussian": mean_bits(gaussian, train),
            "held_out_bits": mean_bits(flow, held_out),
            "held_out_bits_gaussian": mean_bits(gaussian, held_out),
        }
        if not all(bits is None or math.isfinite(bits) for bits in judged.values()):
            raise DataError(
                "Some rows are so far from all others that their density is not finite. Leave them out, and fit again."
            )
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
            dim_out=flow.dim_in if left_alone else flow.dim_out,
            steps=self.steps,
            seconds=round(self.seconds, 3),
            kept=chosen.name,
            left_alone=left_alone,
            interrupted=self.trains and not self.finished,
            dropout=self.recipe.dropout,
            **judged,
            gaussianity=gaussianity(z),
        )
        if left_alone:
            return FittedFlow(identity_map(flow.dim_in), record)
        return FittedFlow(two_bands(flow, self.recipe.tail) if self.directions.banded else flow, record)

    def train_sample(self) -> Tensor:
        """Training rows, at most as many as are ever held out."""
        return gathered(self.x, self.train_rows[drawn_rows(len(self.train_rows), HELD_OUT_MOST, self.seed)])

    def _choose(self) -> State:
        states = self.module.states
        weights = self.module.flow.state_dict()
        start = states.start or State("start", weights)
        last = State(f"step {self.steps}", weights) if self.finished else states.checked or start
        if self.recipe.keep == "last" or self.held_out is None:
            return last
        return min([start, last] + ([states.best] if states.best else []), key=self._held_out_bits)

    def _held_out_bits(self, state: State) -> float:
        bits = mean_bits(self._flow(state), self.held_out) if state.bits is None else state.bits
        return bits if bits is not None and math.isfinite(bits) else math.inf

    def _flow(self, state: State) -> FlowMap:
        """A new flow with these weights, on the CPU."""
        flow = copy.deepcopy(self.module.flow).cpu()
        flow.load_state_dict(state.weights)
        return flow.eval().requires_grad_(False)


@torch.no_grad()
def mean_bits(density: FlowMap | AffineMap | None, x: Tensor | None) -> float | None:
    """Mean bits per dimension of the rows ``x`` under a density, summed in float64; None where one of them is."""
    if density is None or x is None:
        return None
    dim = density.rank if isinstance(density, FlowMap) else density.dim_out
    return float(bits_per_dim(density.log_prob(x.double()), dim).double().mean())


def fit_flow(
    x: Embeddings,
    preset: str | Recipe = "default",
    random_state: int = 0,
    trainer: Mapping[str, Any] | None = None,
    plain: Moments | None = None,
    sentences: Sequence[str] | None = None,
    encoder: TransformerEncoder | None = None,
    advance: Advance | None = None,
    **changes: Any,
) -> FittedFlow:
    """Fit a flow to embeddings, quietly.

    Args:
        x: Embeddings (n, dim), n >= 2: in memory, memory-mapped, or an ``EmbeddingStore``.
        preset: A row of ``PRESETS``, or a recipe.
        random_state: Random seed for the held-out rows, the flow's first weights, and the order of the rows.
        trainer: Options of Lightning's Trainer, as ``{"max_steps": 100}``; they override the recipe's.
        plain: Moments of the plain mean pooling, which decide what "auto" does; those of ``x`` by default.
        sentences: Sentences, as for ``FlowFit``.
        encoder: The encoder, as for ``FlowFit``.
        advance: Is told how many more steps are done, if it is given.
        **changes: Fields of the recipe that differ, as ``n_components="all", glow={"hidden": 64}``.

    Raises:
        DataError: For rows that no flow can be fitted to; the message gives the reason.
        DivergenceError: If the loss is no longer finite.
        UsageError: For an option that cannot be used.

    Source: Li et al. 2020, arXiv:2011.05864, section 3; the recipe is ours, see ``bertflow.training.recipe``.
    """
    fit = FlowFit(x, resolve(preset, changes), random_state, sentences, encoder, plain)
    if fit.recipe.dropout:
        pl.seed_everything(random_state, verbose=False)
    fit.run(quiet_trainer(trainer_options(fit.recipe, len(x)), trainer, advance))
    fitted = fit.result()
    if fitted.record.untrained:
        logger.warning(fitted.record.untrained)
    return fitted


@contextmanager
def threads_for(numbers: float) -> Iterator[None]:
    """One thread for steps on at most ``SMALL`` numbers (infinitely many: the encoder is in the loop); then as before.

    A step of a flow is hundreds of operators of a few microseconds each, and threads that meet after each of them cost
    more than they save: on two cores, a step of the default flow took as long as with one thread where they spin while
    they wait, and twice as long where they sleep (``OMP_WAIT_POLICY=passive``); a step of the paper's, 1.3 and 5 times
    as long.
    """
    before = torch.get_num_threads()
    if numbers <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
