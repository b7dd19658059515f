"""A fine-tuning from beginning to end: from pairs and a recipe to an encoder that records what it was taught.

    encoder + pairs -> hold some out -> train -> judge on those -> save

Each sentence is tokenized once, a batch is two padded sides. The order of the pairs depends on (seed, epoch) alone, and
a batch counts its pairs over all ranks (``bertflow.training.batches``): a run takes the same steps on any number of
ranks, and goes on in the middle of an epoch where it was interrupted.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from bertflow.array_types import Int64
from bertflow.data.pairs import Pairs
from bertflow.encoder.device import unplanned_attention
from bertflow.encoder.seen_text import Supervision, save_tuned
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError, how_many
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.joint import Joint
from bertflow.finetuning.objectives import OBJECTIVES
from bertflow.finetuning.siamese import PairBatch, Siamese, set_dropout
from bertflow.progress import peak_memory
from bertflow.registry import lookup
from bertflow.store.text import distinct_rows
from bertflow.text_keys import digest, hash_text, hash_texts
from bertflow.training.batches import InOrder, ShuffledBatches, seeded_order
from bertflow.training.divergence import DivergenceError
from bertflow.training.module import TrainingData
from bertflow.training.trainer import quiet_trainer, recipe_limits, run_training

JUDGED_AT_ONCE = 64
"""Held-out pairs of one batch."""


class PairData(TrainingData):
    """Pairs to train on, and some that judge the result.

    Args:
        pairs: All of them.
        encoder: Tokenizes the sentences.
        recipe: Says how many pairs are one step, and how many are held out.
        seed: Random seed for the held-out pairs and for the order of the others.
    """

    def __init__(self, pairs: Pairs, encoder: TransformerEncoder, recipe: FinetuneRecipe, seed: int) -> None:
        order, held = seeded_order(len(pairs), seed), recipe.held_out_of(len(pairs))
        batches = ShuffledBatches(torch.arange(len(pairs)), np.sort(order[held:]), recipe.batch_size, seed)
        super().__init__(batches, torch.from_numpy(np.sort(order[:held])), JUDGED_AT_ONCE)
        distinct, rows = distinct_rows((*pairs.first, *pairs.second, *pairs.negatives))
        self._encoder, self._text, self._sides = encoder, encoder.tokenized(distinct), rows.reshape(-1, len(pairs))
        self._keys = np.array([hash_text(sentence) for sentence in distinct], dtype=np.uint64).view(np.int64)
        self._targets = None if pairs.target is None else torch.from_numpy(pairs.target)
        self.text_hashes = hash_texts(distinct)

    def on_before_batch_transfer(self, batch: Tensor, dataloader_idx: int) -> PairBatch:
        """The pairs at some rows, padded."""
        return self.batch(batch.numpy())

    def batch(self, index: Int64) -> PairBatch:
        """The pairs at ``index``, padded, on the CPU."""
        rows = self._sides[:, index]
        sides = [self._encoder.padded(self._text, side) for side in rows]
        targets = None if self._targets is None else self._targets[torch.from_numpy(index)]
        return PairBatch(sides, torch.from_numpy(self._keys[rows]), targets)


def siamese_options(recipe: FinetuneRecipe, n: int) -> dict[str, Any]:
    """What a recipe asks of a Trainer, for ``n`` pairs."""
    held_out = recipe.held_out_of(n)
    steps = (n - held_out) // recipe.batch_size
    limits = recipe_limits(recipe.epochs, recipe.clip_norm, steps, held_out)
    return limits | {"log_every_n_steps": min(50, max(1, int(steps * recipe.epochs) // 10))}


class SiameseFit:
    """A fine-tuning: what is trained, on what, and the result so far.

    Args:
        encoder: Trained in place: afterwards, open what ``save`` wrote.
        pairs: What it learns from.
        recipe: How it is trained.
        seed: Random seed for the head, the order of the pairs, dropout, and the held-out pairs.

    Raises:
        UnknownNameError: If there is no such objective.
        UsageError: If the pairs do not carry what the objective needs, or are fewer than one batch, or the encoder's
            weights are in half precision, or it has no dropout where that is needed.
    """

    def __init__(self, encoder: TransformerEncoder, pairs: Pairs, recipe: FinetuneRecipe, seed: int = 0) -> None:
        wanted = lookup("objective", OBJECTIVES, recipe.objective).targets
        got = "none" if pairs.target is None else "classes" if pairs.classes else "scores"
        if wanted not in ("none", "text", got):
            raise UsageError(f"The objective {recipe.objective} learns from {wanted}, but the pairs have {got}.")
        if pairs.negatives and (wanted != "none" or recipe.joint):
            raise UsageError(
                "Negatives are for the objective in-batch-negatives, without joint. Leave their column out."
            )
        if wanted == "text" and pairs.first != pairs.second:
            raise UsageError(f"The objective {recipe.objective} pairs each sentence with itself. Give sentences alone.")
        if (left := len(pairs) - recipe.held_out_of(len(pairs))) < recipe.batch_size:
            raise UsageError(
                f"A step needs {recipe.batch_size} pairs (finetune.batch_size), got {left} to train on. Give more "
                "pairs, or lower it."
            )
        description = encoder.describe()
        if description["dtype"] != "float32":
            raise UsageError(
                f"Weights are trained in float32, but the encoder is in {description['dtype']}. Open it with "
                "the dtype float32; the Trainer's precision bf16-mixed computes in half precision."
            )
        encoder.count_missing((*pairs.first, *pairs.second, *pairs.negatives))
        if wanted == "text" or recipe.dropout is not None:
            set_dropout(encoder, recipe.dropout)
        self.encoder, self.pairs, self.recipe, self.seed = encoder, pairs, recipe, seed
        self.data = PairData(pairs, encoder, recipe, seed)
        self.n_train, self.n_held_out = len(self.data.batches.units), len(self.data.held_out)
        self.start = {"from": description["encoder"], "weights": description["weights"]}
        run = {**self.start, "pairs": pairs.digest(), "seed": seed, **asdict(recipe)}
        torch.manual_seed(seed)
        self.module = (Joint if recipe.joint else Siamese)(encoder, recipe, len(pairs.classes), run)
        self.steps, self.seconds = 0, 0.0
        self.held_out: dict[str, float] = {}

    def run(self, trainer: pl.Trainer, resume: str | Path | None = None) -> None:
        """Train; from a checkpoint, if one is given.

        Raises:
            DivergenceError: If the loss or a weight is no longer finite.
            UsageError: If the checkpoint is of another run, or a step cannot be shared out evenly over the ranks.
            KeyboardInterrupt: After Ctrl-C or SIGTERM.
        """
        self.recipe.require_even(trainer.world_size)
        try:
            with unplanned_attention():
                run_training(trainer, self.module, self.data, resume)
        finally:
            self.steps, self.seconds = trainer.global_step, self.module.clock.time_elapsed()
        self.module.eval().to(self.encoder.device)
        if not all(bool(parameter.isfinite().all()) for parameter in self.module.parameters()):
            raise DivergenceError(
                f"The weights should stay finite, but after {how_many(self.steps, 'steps')} some are not. "
                f"Lower finetune.learning_rate (it was {self.recipe.learning_rate:g})."
            )
        self.held_out = self._judged_held_out()

    @torch.no_grad()
    def _judged_held_out(self) -> dict[str, float]:
        """Mean loss of the held-out pairs and the share of them that came out right, in float32."""
        totals: dict[str, float] = defaultdict(float)
        for rows in InOrder(self.data.held_out, JUDGED_AT_ONCE):
            batch = self.data.batch(rows.numpy()).to(self.encoder.device)
            for name, value in self.module.judged_held_out(batch).items():
                totals[f"held_out_{name}"] += float(value) * len(batch) / self.n_held_out
        return dict(totals)

    def record(self) -> dict[str, Any]:
        """Steps, time, most memory held (of the GPU if one was used; None if unknown) and results, ready for JSON."""
        of_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        return {
            "objective": self.recipe.objective,
            "pairs": self.n_train,
            "pairs_held_out": self.n_held_out,
            "pairs_dropped": self.pairs.dropped,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "peak_memory_mb": round((of_gpu or peak_memory() or 0) / 1e6) or None,
            **{name: round(value, 4) for name, value in self.held_out.items()},
        }

    def save(self, folder: str | Path, without_text_hashes: bool = False) -> None:
        """Write the fine-tuned encoder, which records what it was taught; ``bertflow.load(folder)`` opens it.

        Args:
            folder: Where to.
            without_text_hashes: Whether to leave out the hashes of all text that it was fitted on.
        """
        if without_text_hashes:
            self.encoder.forget_text()
        tuned = {
            **self.start,
            "objective": self.recipe.objective,
            "pairs": len(self.pairs),
            "steps": self.steps,
            "text_keys": digest(self.data.text_hashes),
        }
        hashes = None if without_text_hashes else self.data.text_hashes
        labels = () if self.module.needs_dropout else self.pairs.tasks
        save_tuned(self.encoder, folder, Supervision(labels, tuned, hashes))


def fit_siamese(
    encoder: TransformerEncoder,
    pairs: Pairs,
    recipe: FinetuneRecipe | None = None,
    seed: int = 0,
    trainer: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    **changes: Any,
) -> SiameseFit:
    """Fine-tune an encoder, without a run folder and quietly.

    Args:
        encoder: Trained in place.
        pairs: What it learns from: ``load_pairs``, ``load_graded``, ``load_related``.
        recipe: How it is trained; as in the paper by default.
        seed: Random seed for everything that is random.
        trainer: Options of Lightning's Trainer, as ``{"max_steps": 100}``; they override the recipe's.
        resume: A checkpoint to go on from.
        **changes: Fields of the recipe that differ, as ``objective="regression"``.

    Returns:
        The finished fit: ``save(folder)`` writes the encoder.
    """
    recipe = replace(recipe or FinetuneRecipe(), **changes)
    fit = SiameseFit(encoder, pairs, recipe, seed)
    fit.run(quiet_trainer(siamese_options(recipe, len(pairs)), trainer), resume)
    return fit
