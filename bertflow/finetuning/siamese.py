"""Fine-tune an encoder on pairs: the supervised stage that comes before a calibrator.

    sentences of both sides -- one encoder, dropout on --> u, v -- objective --> loss;   the encoder's weights move

The result is a model folder like any other: ``finetune`` first, then ``train`` on what came out.

Why not sentence-transformers' trainer: it trains its own modules, so a pooling by inner layers or by token frequency
would have to be written again for it; it resumes by skipping batches it has drawn; and it brings accelerate and a
second set of trainer options. Here every row of the pooling table trains, a step is a function of (seed, epoch, batch)
however many ranks there are and however often a run was interrupted, and ``--trainer.*`` means what it means in
``train``. Who prefers the other one can fine-tune there: its folders open here.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import Precision
from pytorch_lightning.utilities.enums import GradClipAlgorithmType
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.finetuning.data import PairBatch
from bertflow.finetuning.objectives import OBJECTIVES, Judged, Sides
from bertflow.finetuning.recipe import FinetuneRecipe
from bertflow.registry import lookup
from bertflow.training.checkpoints import DivergenceError, is_due
from bertflow.training.module import Borrowed, planned_steps

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
"""Of Lightning's, those that keep the weights in float32."""


class Siamese(pl.LightningModule):
    """An encoder in training, which embeds both sides, and the objective that compares them.

    Args:
        encoder: Its model is trained in place.
        recipe: How.
        classes: How many classes there are to tell apart.
        run: What tells this run from others; a checkpoint of another run is refused.
    """

    def __init__(
        self, encoder: TransformerEncoder, recipe: FinetuneRecipe, classes: int, run: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.recipe, self.run = recipe, dict(run)
        self.seconds_before, self.begun = 0.0, time.perf_counter()
        self._borrowed = Borrowed(encoder)
        self.model = encoder.model.requires_grad_(True)
        freeze_unread(encoder)
        self.objective = lookup("objective", OBJECTIVES, recipe.objective).build(encoder.dim, recipe, classes)
        if recipe.gradient_checkpointing:
            # transformers 5 renamed it on the way.
            newer = getattr(self.model, "activation_checkpointing_enable", None)
            (newer or self.model.gradient_checkpointing_enable)({"use_reentrant": False})
        self.train()  # Lightning leaves the mode as it finds it

    @property
    def seconds(self) -> float:
        """How long the training took so far, with what it took before it was resumed."""
        return self.seconds_before + time.perf_counter() - self.begun

    def forward(self, batch: PairBatch) -> Sides:
        """Both sides' embeddings, each (n, dim)."""
        encoder = self._borrowed.encoder
        assert encoder is not None
        u, v = encoder.embed_batch(batch.first), encoder.embed_batch(batch.second)
        return Sides(u.float(), v.float(), batch.texts[0], batch.texts[1], batch.targets)

    def judged(self, batch: PairBatch, gathered: bool) -> Judged:
        """The loss of one batch; ``gathered`` where other ranks hold other pairs of it."""
        sides = self(batch)
        # Cosines that are scaled by 20 are not for half precision.
        with torch.autocast(self.device.type, enabled=False):
            if gathered and self.trainer.world_size > 1:
                judged: Judged = self.objective(sides, self.global_rank, self._gather)
            else:
                judged = self.objective(sides, 0, lambda rows: rows)
        return judged

    def _gather(self, rows: Tensor) -> Tensor:
        every = self.all_gather(rows, sync_grads=rows.is_floating_point())
        assert isinstance(every, Tensor)
        return every.reshape(-1, *rows.shape[1:])

    def setup(self, stage: str) -> None:
        """Refuse a precision that would round the weights."""
        require_float32_weights(self.trainer.precision)

    def on_train_batch_start(self, batch: PairBatch, batch_idx: int) -> None:
        """Dropout is a function of (seed, epoch, batch, rank), so that a resumed run is the same run."""
        key = (self.run["seed"], self.current_epoch, int(batch.first.rows[0]), int(batch.second.rows[0]))
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        """The loss of one batch, logged when the Trainer will write it.

        Raises:
            DivergenceError: If it is no longer finite.
        """
        judged = self.judged(batch, gathered=True)
        if is_due(self.trainer):
            self._require_finite(judged.loss)
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            self.log_dict({**named("train", judged), "train/learning_rate": rate}, batch_size=len(batch))
        return judged.loss

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        """Mean loss of the held-out pairs, and the share of them that comes out right."""
        self.log_dict(named("val", self.judged(batch, gathered=False)), batch_size=len(batch), prog_bar=True)

    def configure_optimizers(self) -> Any:
        """AdamW, the decay on matrices alone; the learning rate rises, then falls to zero.

        Raises:
            UsageError: If the Trainer has no end.
        """
        total = planned_steps(self.trainer)
        if math.isinf(total):
            raise UsageError("The learning rate falls to zero at the end. Set trainer.max_epochs or trainer.max_steps.")
        trained = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": self.recipe.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        # One kernel for all parameters: six times as fast on a CPU. With 16-mixed, gradients are scaled outside of it.
        fused = self.trainer.precision != "16-mixed"
        optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=self.recipe.learning_rate, fused=fused)
        warmup = math.ceil(total * self.recipe.warmup)
        schedule = LambdaLR(optimizer, lambda step: learning_rate_share(step, int(total), warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """As Lightning does, which refuses fused optimizers in all mixed precisions, though only 16-mixed scales."""
        if self.trainer.precision != "bf16-mixed":
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val:
            algorithm = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
            Precision().clip_gradients(optimizer, gradient_clip_val, algorithm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint knows its run, and how long it took."""
        checkpoint["bertflow_run"], checkpoint["bertflow_seconds"] = self.run, self.seconds

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to go on from a checkpoint of another run.

        Raises:
            UsageError: If encoder, pairs, seed or recipe differ; the message names the first.
        """
        theirs = checkpoint.get("bertflow_run", {})
        self.seconds_before = checkpoint.get("bertflow_seconds", 0.0)
        for name, value in self.run.items():
            if theirs.get(name) != value:
                raise UsageError(
                    f"The checkpoint is of a run with {name} {theirs.get(name)}, this one has {value}. "
                    "Resume with the options of the run that was interrupted, or begin a new one."
                )

    def _require_finite(self, loss: Tensor) -> None:
        # All ranks decide alike, or some would wait for others for ever.
        if not self.trainer.strategy.reduce_boolean_decision(bool(torch.isfinite(loss)), all=True):
            raise DivergenceError(
                f"The loss should stay finite, but after {self.global_step} steps it is {float(loss.detach())}. "
                f"Lower finetune.learning_rate (it was {self.recipe.learning_rate:g}), or use another precision."
            )


def freeze_unread(encoder: TransformerEncoder) -> None:
    """Leave out what the pooling never reads, such as a norm behind the last block that is switched off.

    Such parameters would only decay, and DDP waits for their gradients.
    """
    model = encoder.model
    parameters = list(model.parameters())
    with torch.enable_grad():
        text = encoder.tokenized(["a sentence"])
        batch = encoder.padded(text, np.array([0])).to(encoder.device)
        gradients = torch.autograd.grad(encoder.embed_batch(batch).sum(), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)


def require_float32_weights(precision: Any) -> None:
    """Refuse a Trainer precision that keeps the weights in anything but float32.

    Raises:
        UsageError: If it does; a step of 2e-5 is lost in bfloat16.
    """
    if str(precision) not in (*PRECISIONS, "32"):
        raise UsageError(
            f"Weights are trained in float32, but trainer.precision is {precision}. "
            f"Choose {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}; mixed ones compute in half precision."
        )


def learning_rate_share(step: int, total: int, warmup: int) -> float:
    """Share of the full learning rate at ``step``, counted from 0: linearly up in ``warmup`` steps, then down to 0."""
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def named(prefix: str, judged: Judged) -> dict[str, Tensor]:
    """A judgement under the names that it is logged by."""
    values = {f"{prefix}/loss": judged.loss}
    return values if judged.right is None else {**values, f"{prefix}/right": judged.right}
