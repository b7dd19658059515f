"""Fine-tune an encoder on pairs, or on sentences paired with themselves: the stage that comes before a calibrator.

    sentences of both sides -- one encoder, dropout on --> u, v -- objective --> loss;   the encoder's weights move

u and v are the embeddings of both sides, in float32 whatever the encoder runs in. A step is a function of (seed, epoch,
batch) after any number of interruptions, and on any number of ranks, except that each rank draws its own dropout.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from transformers import get_linear_schedule_with_warmup

from bertflow.encoder.batching import Batch
from bertflow.encoder.device import sent
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.objectives import OBJECTIVES, Judged, Sides
from bertflow.training.checkpoints import Clock
from bertflow.training.divergence import finite_loss, is_due
from bertflow.training.module import Borrowed, planned_steps, require_precision, scheduled


@dataclass(frozen=True)
class PairBatch:
    """Some pairs, tokenized and padded; the sides apart, since one is often longer.

    Attributes:
        sides: The first sentences, the second ones and, where there are any, the negatives.
        texts: A number for each text, by side (2, n), or (3, n): equal numbers, equal texts by key.
        targets: Classes or scores (n,); None where there are none.
    """

    sides: Sequence[Batch]
    texts: Tensor
    targets: Tensor | None

    def __len__(self) -> int:
        """How many pairs there are."""
        return self.texts.shape[1]

    def to(self, device: torch.device) -> "PairBatch":
        """This batch on a device."""
        targets = None if self.targets is None else sent(self.targets, device)
        return PairBatch([side.to(device) for side in self.sides], sent(self.texts, device), targets)


PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
"""Precisions of Lightning that keep the weights in float32: bfloat16 loses a step of 2e-5."""
FLOAT32_WEIGHTS = (PRECISIONS, "Weights are trained in float32", "mixed ones compute in half precision")
"""What ``require_precision`` is told of them."""
SOME_TEXT = "a sentence"


class Siamese(pl.LightningModule):
    """An encoder in training, which embeds both sides, and the objective that compares them.

    Args:
        encoder: Its model is trained in place.
        recipe: How it is trained.
        classes: Number of classes.
        run: What identifies this run; a checkpoint of another run is refused.
    """

    def __init__(
        self, encoder: TransformerEncoder, recipe: FinetuneRecipe, classes: int, run: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.recipe, self.run = recipe, dict(run)
        self.clock = Clock()
        self._borrowed = Borrowed(encoder)
        self.model = encoder.model.requires_grad_(True)
        freeze_unread(encoder)
        objective = OBJECTIVES[recipe.objective]
        self.objective, self.needs_dropout = objective(encoder.dim, recipe, classes), objective.targets == "text"
        if recipe.gradient_checkpointing:
            # Its name differs between versions of transformers 5.
            newer = getattr(self.model, "activation_checkpointing_enable", None)
            (newer or self.model.gradient_checkpointing_enable)({"use_reentrant": False})
        self.train()  # Lightning leaves the mode as it finds it

    def forward(self, batch: PairBatch) -> Sides:
        """Both sides' embeddings, each (n, dim)."""
        encoder = self._borrowed.encoder
        assert encoder is not None
        u, v, *w = (encoder.embed_batch(side).float() for side in batch.sides)
        first, second, *third = batch.texts
        return Sides(u, v, first, second, batch.targets, *w, *third)

    def judged(self, batch: PairBatch, gathered: bool) -> Judged:
        """The loss of one batch; ``gathered`` where other ranks hold other pairs of it."""
        sides = self(batch)
        # Cosines scaled by 20 need more than half precision.
        with torch.autocast(self.device.type, enabled=False):
            shared = gathered and self.trainer.world_size > 1
            rank, gather = (self.global_rank, self._gather) if shared else (0, lambda rows: rows)
            judged: Judged = self.objective(sides, rank, gather)
        return judged

    def judged_held_out(self, batch: PairBatch) -> Judged:
        """The loss of one held-out batch; with dropout, by a fixed seed, only where it makes the sides differ."""
        before = self.training
        self.train(self.needs_dropout)
        if self.needs_dropout:
            torch.manual_seed(_seed(self.run["seed"], int(batch.sides[0].rows[0])))
        try:
            return self.judged(batch, gathered=False)
        finally:
            self.train(before)

    def _gather(self, rows: Tensor) -> Tensor:
        every = self.all_gather(rows, sync_grads=rows.is_floating_point())
        assert isinstance(every, Tensor)
        return every.reshape(-1, *rows.shape[1:])

    def setup(self, stage: str) -> None:
        """Refuse a precision that would round the weights."""
        require_precision(self.trainer.precision, *FLOAT32_WEIGHTS)

    def on_train_batch_start(self, batch: PairBatch, batch_idx: int) -> None:
        """Dropout is a function of (seed, epoch, batch, rank), so that a resumed run is the same run."""
        rows = (int(side.rows[0]) for side in batch.sides[:2])
        torch.manual_seed(_seed(self.run["seed"], self.current_epoch, *rows))

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        """The loss of one batch, logged when the Trainer will write it.

        Raises:
            DivergenceError: If it is no longer finite.
        """
        judged = self.judged(batch, gathered=True)
        if is_due(self.trainer):
            advice = f"Lower finetune.learning_rate (it was {self.recipe.learning_rate:g}), or use another precision."
            finite_loss(self.trainer, judged["loss"], advice)
            rates = {one["rate"]: one["lr"] for one in self.trainer.optimizers[0].param_groups if "rate" in one}
            self.log_dict({f"train/{name}": value for name, value in (judged | rates).items()}, batch_size=len(batch))
        return judged["loss"]

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        """Mean loss of the held-out pairs, and the share of them that are right."""
        judged = self.judged_held_out(batch)
        self.log_dict({f"val/{name}": value for name, value in judged.items()}, batch_size=len(batch), prog_bar=True)

    def configure_callbacks(self) -> list[pl.Callback]:
        """The clock."""
        return [self.clock]

    def learners(self) -> Iterable[nn.Parameter]:
        """What the optimizer moves, as far as it needs gradients."""
        return self.parameters()

    def configure_optimizers(self) -> Any:
        """AdamW, the decay on matrices alone; the learning rate rises, then falls to zero.

        Raises:
            UsageError: If the Trainer has no end.
        """
        total = planned_steps(self.trainer)
        if math.isinf(total):
            raise UsageError("The learning rate falls to zero at the end. Set trainer.max_epochs or trainer.max_steps.")
        trained, own = [p for p in self.learners() if p.requires_grad], self.recipe.head_learning_rate
        head = {id(p) for p in self.objective.parameters()} if own else set()
        groups = [
            {
                "params": [p for p in trained if (p.ndim > 1) == matrix and (id(p) in head) == of_head],
                "weight_decay": self.recipe.weight_decay if matrix else 0.0,
                "lr": own if of_head else self.recipe.learning_rate,
                "rate": "head_learning_rate" if of_head else "learning_rate",
            }
            for of_head in (False, True)
            for matrix in (True, False)
        ]
        # One kernel for all parameters: six times as fast on a CPU. Lightning does not clip its gradients where mixed.
        fused = "mixed" not in str(self.trainer.precision)
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]], fused=fused)
        warmup = math.ceil(total * self.recipe.warmup)
        return scheduled(get_linear_schedule_with_warmup(optimizer, warmup, int(total)))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint records its run."""
        checkpoint["bertflow_run"] = self.run

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to go on from a checkpoint of another run.

        Raises:
            UsageError: If encoder, pairs, seed or recipe differ; the message names the first.
        """
        theirs = checkpoint.get("bertflow_run", {})
        for name, value in self.run.items():
            if theirs.get(name) != value:
                raise UsageError(
                    f"The checkpoint is of a run with {name} {theirs.get(name)}, this one has {value}. "
                    "Resume with the options of the run that was interrupted, or begin a new one."
                )


def _seed(*key: int) -> int:
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def set_dropout(encoder: TransformerEncoder, p: float | None) -> None:
    """Give each dropout layer the probability ``p``; None leaves them as they are.

    Raises:
        UsageError: If the encoder has no dropout then.
    """
    for layer in encoder.model.modules():
        if p is not None and isinstance(layer, nn.Dropout):
            layer.p = p
    one, other = (encoder.embed([SOME_TEXT], dropout=True) for _ in range(2))
    if torch.equal(one, other):
        raise UsageError(
            "A sentence should get a different embedding each time, by dropout, but this encoder has no "
            f"dropout. {'Give finetune.dropout, as 0.1.' if p is None else 'Choose one that has dropout layers.'}"
        )


def freeze_unread(encoder: TransformerEncoder) -> None:
    """Freeze the parameters that the pooling never reads: they would only decay, and DDP waits for their gradients."""
    parameters = list(encoder.model.parameters())
    with torch.enable_grad():
        batch = encoder.padded(encoder.tokenized([SOME_TEXT]), np.array([0])).to(encoder.device)
        gradients = torch.autograd.grad(encoder.embed_batch(batch).sum(), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)
