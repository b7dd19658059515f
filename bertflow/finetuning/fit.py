"""A fine-tuning from beginning to end: pairs and a recipe in, an encoder that knows what it was taught out.

encoder + pairs -> hold some out -> train -> judge on those -> save
"""

import math
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from bertflow.data.pairs import Pairs
from bertflow.encoder.supervision import Supervision, save_tuned
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.finetuning.data import HeldOut, PairData
from bertflow.finetuning.objectives import OBJECTIVES
from bertflow.finetuning.recipe import FinetuneRecipe
from bertflow.finetuning.siamese import Siamese, named
from bertflow.registry import lookup
from bertflow.text_keys import digest
from bertflow.training.checkpoints import DivergenceError
from bertflow.training.trainer import quiet_trainer, run_training


class SiameseFit:
    """A fine-tuning: what is trained, on what, and what has come out of it so far.

    Args:
        encoder: Is trained in place: afterwards, open what ``save`` wrote.
        pairs: What it learns from.
        recipe: How.
        seed: Of the head, the order of the pairs, dropout, and which pairs are held out.

    Raises:
        UnknownNameError: If there is no such objective.
        UsageError: If the pairs do not carry what the objective needs, or are fewer than one batch.
    """

    def __init__(self, encoder: TransformerEncoder, pairs: Pairs, recipe: FinetuneRecipe, seed: int = 0) -> None:
        require_targets(pairs, recipe)
        description = encoder.describe()
        if description.get("token_counts", "") is None:
            encoder.count_tokens(list(dict.fromkeys((*pairs.first, *pairs.second))))
        self.encoder, self.pairs, self.recipe, self.seed = encoder, pairs, recipe, seed
        self.data = PairData(pairs, encoder, recipe.batch_size, recipe.held_out, seed)
        if len(self.data.units) < recipe.batch_size:
            raise UsageError(
                f"A step takes finetune.batch_size {recipe.batch_size} pairs, but there are {len(self.data.units)} to "
                "train on. Give more pairs, or lower it."
            )
        self.start = {"from": description["encoder"], "weights": description["weights"]}
        run = {**self.start, "pairs": pairs.digest(), "seed": seed, **asdict(recipe)}
        torch.manual_seed(seed)
        self.module = Siamese(encoder, recipe, len(pairs.classes), run)
        self.steps, self.seconds = 0, 0.0
        self.held_out: dict[str, float] = {}

    def trainer_options(self) -> dict[str, Any]:
        """What the recipe asks of a Trainer; whoever makes one may override any of it."""
        epochs, batches = self.recipe.epochs, len(self.data.units) // self.recipe.batch_size
        return {
            "max_epochs": math.ceil(epochs),
            "max_steps": -1 if float(epochs).is_integer() else max(1, int(batches * epochs)),
            "gradient_clip_val": self.recipe.clip_norm or None,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": min(50, batches),
            **({} if len(self.data.held_out) else {"limit_val_batches": 0}),
        }

    def callbacks(self, folder: Path) -> list[pl.Callback]:
        """What the recipe adds to a Trainer: it writes ``folder/last.ckpt`` every so many steps."""
        every = self.recipe.checkpoint_every
        return [ModelCheckpoint(folder, filename="last", every_n_train_steps=every, enable_version_counter=False)]

    def run(self, trainer: pl.Trainer, resume: str | Path | None = None) -> None:
        """Train; from a checkpoint, if one is given.

        Raises:
            DivergenceError: If the loss or a weight is no longer finite.
            UsageError: If the checkpoint is of another run.
            KeyboardInterrupt: After Ctrl-C or SIGTERM.
        """
        self.module.begun = time.perf_counter()
        try:
            run_training(trainer, self.module, self.data, resume)
        finally:
            self.steps = trainer.global_step
            self.seconds = self.module.seconds
        self.module.eval().to(self.encoder.device)
        if not all(bool(parameter.isfinite().all()) for parameter in self.module.parameters()):
            raise DivergenceError(
                f"The weights should stay finite, but after {self.steps} steps some are not. "
                f"Lower finetune.learning_rate (it was {self.recipe.learning_rate:g})."
            )
        self.held_out = self._judged_held_out()

    @torch.no_grad()
    def _judged_held_out(self) -> dict[str, float]:
        """Mean loss of the held-out pairs and the share of them that came out right, in float32."""
        totals: dict[str, float] = {}
        for rows in HeldOut(self.data.held_out):
            batch = self.data.batch(rows.numpy()).to(self.encoder.device)
            for name, value in named("held_out", self.module.judged(batch, gathered=False)).items():
                totals[name] = totals.get(name, 0.0) + float(value) * len(batch) / len(self.data.held_out)
        return {name.replace("/", "_"): total for name, total in totals.items()}

    def record(self) -> dict[str, Any]:
        """What there is to say about it, ready for JSON."""
        return {
            "objective": self.recipe.objective,
            "pairs": len(self.data.units),
            "pairs_held_out": len(self.data.held_out),
            "pairs_dropped": self.pairs.dropped,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "peak_memory_mb": peak_memory_mb(),
            **{name: round(value, 4) for name, value in self.held_out.items()},
        }

    def save(self, folder: str | Path) -> None:
        """Write the fine-tuned encoder, which knows what it was taught; ``TransformerEncoder(folder)`` opens it."""
        tuned = {
            **self.start,
            "objective": self.recipe.objective,
            "pairs": len(self.pairs),
            "steps": self.steps,
            "text_keys": digest(self.data.text_hashes),
        }
        save_tuned(self.encoder, folder, Supervision(self.pairs.tasks, tuned, self.data.text_hashes))


def require_targets(pairs: Pairs, recipe: FinetuneRecipe) -> None:
    """Refuse pairs that do not carry what the objective learns.

    Raises:
        UsageError: If they carry something else.
    """
    wanted = lookup("objective", OBJECTIVES, recipe.objective).targets
    got = "none" if pairs.target is None else "classes" if pairs.classes else "scores"
    if wanted not in ("none", got):
        raise UsageError(f"The objective {recipe.objective} learns from {wanted}, but the pairs carry {got}.")


def peak_memory_mb() -> int:
    """The most memory this process held so far, in units of 10^6 bytes; on a GPU that of the GPU."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return round(torch.cuda.max_memory_allocated() / 1e6)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round((peak if sys.platform == "darwin" else peak * 1024) / 1e6)


def finetune(
    encoder: TransformerEncoder,
    pairs: Pairs,
    recipe: FinetuneRecipe | None = None,
    seed: int = 0,
    trainer: Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    **changes: Any,
) -> SiameseFit:
    """Fine-tune an encoder, quietly.

    Args:
        encoder: Is trained in place.
        pairs: What it learns from: ``load_pairs``, ``load_graded``, ``load_related``.
        recipe: How; the paper's by default.
        seed: Of everything random.
        trainer: Options of Lightning's Trainer, as ``{"max_steps": 100}``; they come before the recipe's.
        resume: A checkpoint to go on from.
        **changes: Fields of the recipe that differ, as ``objective="regression"``.

    Returns:
        The finished fit: ``save(folder)`` writes the encoder.
    """
    fit = SiameseFit(encoder, pairs, replace(recipe or FinetuneRecipe(), **changes), seed)
    fit.run(quiet_trainer(fit.trainer_options(), trainer), resume)
    return fit
