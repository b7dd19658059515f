"""A fine-tuning from beginning to end: pairs and a recipe in, an encoder that records what it was taught out.

    encoder + pairs -> hold some out -> train -> judge on those -> save

Each sentence is tokenized once, a batch is two padded sides. The order of the pairs depends on (seed, epoch) alone, and
a batch counts its pairs over all ranks (``bertflow.training.batches``): a run takes the same steps on any number of
ranks, and goes on in the middle of an epoch where it was interrupted.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from bertflow.data.pairs import Pairs
from bertflow.encoder.learned import Supervision, save_tuned
from bertflow.encoder.model import Batch
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.finetuning.recipe import FinetuneRecipe
from bertflow.finetuning.siamese import OBJECTIVES, Siamese, named
from bertflow.progress import peak_memory
from bertflow.registry import lookup
from bertflow.text_keys import digest, hash_text, hash_texts
from bertflow.training.batches import ShuffledBatches, seeded_order
from bertflow.training.checkpoints import DivergenceError
from bertflow.training.trainer import quiet_trainer, recipe_limits, run_training

JUDGED_AT_ONCE = 64
"""Held-out pairs of one batch."""


@dataclass(frozen=True)
class PairBatch:
    """Some pairs, tokenized and padded; the sides apart, since one is often longer.

    Attributes:
        first: The first sentences.
        second: The second ones.
        texts: A number for each text, by side (2, n): equal numbers, equal texts by key.
        targets: Classes or scores (n,); None where there are none.
    """

    first: Batch
    second: Batch
    texts: Tensor
    targets: Tensor | None

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.first.rows)

    def to(self, device: torch.device) -> "PairBatch":
        """The same batch on a device."""
        targets = None if self.targets is None else self.targets.to(device)
        return PairBatch(self.first.to(device), self.second.to(device), self.texts.to(device), targets)


class PairData(pl.LightningDataModule):
    """Pairs to train on, and some that judge the result.

    Args:
        pairs: All of them.
        encoder: Tokenizes the sentences.
        batch_size: Pairs of one step, over all ranks.
        held_out: Share of the pairs that is not trained on.
        seed: Random seed of the held-out pairs and of the order of the others.
    """

    def __init__(self, pairs: Pairs, encoder: TransformerEncoder, batch_size: int, held_out: float, seed: int) -> None:
        super().__init__()
        distinct = list(dict.fromkeys((*pairs.first, *pairs.second)))
        row_of = {sentence: row for row, sentence in enumerate(distinct)}
        self._encoder, self._text = encoder, encoder.tokenized(distinct)
        self._sides = [np.array([row_of[text] for text in side]) for side in (pairs.first, pairs.second)]
        self._keys = np.array([hash_text(sentence) for sentence in distinct], dtype=np.uint64).view(np.int64)
        self._targets = None if pairs.target is None else torch.from_numpy(pairs.target)
        order, held = seeded_order(len(pairs), seed), round(len(pairs) * held_out)
        self.held_out, self.units = np.sort(order[:held]), np.sort(order[held:])
        self.batch_size, self.seed = batch_size, seed
        self.text_hashes = hash_texts(distinct)

    def train_dataloader(self) -> ShuffledBatches:
        """This rank's share of one epoch, as rows of the pairs.

        Raises:
            UsageError: If a step cannot be shared out evenly over the ranks.
        """
        rank, world = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        if self.batch_size % world:
            raise UsageError(
                f"finetune.batch_size counts the pairs of all {world} ranks and must be a multiple of that, got "
                f"{self.batch_size}."
            )
        return ShuffledBatches(
            torch.arange(len(self._sides[0])), self.units, self.batch_size, self.seed, rank=rank, world=world
        )

    def val_dataloader(self) -> "HeldOut | list[HeldOut]":
        """All held-out pairs, on every rank; no loader at all where there are none."""
        return HeldOut(self.held_out) if len(self.held_out) else []

    def on_before_batch_transfer(self, batch: Tensor, dataloader_idx: int) -> PairBatch:
        """The pairs at some rows, padded."""
        return self.batch(batch.numpy())

    def transfer_batch_to_device(self, batch: PairBatch, device: torch.device, dataloader_idx: int) -> PairBatch:
        """Lightning does not move frozen records by itself."""
        return batch.to(device)

    def batch(self, index: NDArray[np.int64]) -> PairBatch:
        """The pairs at ``index``, padded, on the CPU."""
        rows = [side[index] for side in self._sides]
        first, second = (self._encoder.padded(self._text, side) for side in rows)
        targets = None if self._targets is None else self._targets[torch.from_numpy(index)]
        return PairBatch(first, second, torch.from_numpy(self._keys[np.stack(rows)]), targets)


class HeldOut:
    """Rows of held-out pairs, ``JUDGED_AT_ONCE`` at a time."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return -(-len(self.rows) // JUDGED_AT_ONCE)

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, len(self.rows), JUDGED_AT_ONCE):
            yield torch.from_numpy(self.rows[start : start + JUDGED_AT_ONCE])


def siamese_options(recipe: FinetuneRecipe, n: int) -> dict[str, Any]:
    """What a recipe asks of a Trainer, for ``n`` pairs."""
    held_out = round(n * recipe.held_out)
    return recipe_limits(recipe.epochs, recipe.clip_norm, (n - held_out) // recipe.batch_size, held_out)


def siamese_callbacks(recipe: FinetuneRecipe, folder: Path) -> list[pl.Callback]:
    """What a recipe adds to a Trainer: ``folder/last.ckpt`` every so many steps."""
    every = recipe.checkpoint_every
    return [ModelCheckpoint(folder, filename="last", every_n_train_steps=every, enable_version_counter=False)]


class SiameseFit:
    """A fine-tuning: what is trained, on what, and the result so far.

    Args:
        encoder: Trained in place: afterwards, open what ``save`` wrote.
        pairs: What it learns from.
        recipe: How it is trained.
        seed: Random seed of the head, the order of the pairs, dropout, and the held-out pairs.

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
            self.steps, self.seconds = trainer.global_step, self.module.seconds
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
        """Steps, time, memory and results, ready for JSON."""
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
        """Write the fine-tuned encoder, which records what it was taught; ``bertflow.load(folder)`` opens it."""
        tuned = {
            **self.start,
            "objective": self.recipe.objective,
            "pairs": len(self.pairs),
            "steps": self.steps,
            "text_keys": digest(self.data.text_hashes),
        }
        save_tuned(self.encoder, folder, Supervision(self.pairs.tasks, tuned, self.data.text_hashes))


def require_targets(pairs: Pairs, recipe: FinetuneRecipe) -> None:
    """Refuse pairs that do not carry what the objective learns from.

    Raises:
        UsageError: If they carry something else; the message names both.
    """
    wanted = lookup("objective", OBJECTIVES, recipe.objective).targets
    got = "none" if pairs.target is None else "classes" if pairs.classes else "scores"
    if wanted not in ("none", got):
        raise UsageError(f"The objective {recipe.objective} learns from {wanted}, but the pairs carry {got}.")


def peak_memory_mb() -> int | None:
    """Most memory that this process has held, in 10^6 bytes, of the GPU if one was used; None where it is unknown."""
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    peak = peak or peak_memory() or 0
    return round(peak / 1e6) or None


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
        seed: Random seed of everything random.
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
