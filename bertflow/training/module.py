"""What Lightning trains, and on what: a module that pairs a frozen encoder with a flow, and its rows.

    sentences -- encoder (borrowed, frozen) --> x -- flow (trained) --> z        minimize  nll = -log p(x) / rank

The encoder is borrowed: it is not a sub-module, so it is not trained, checkpointed, moved, averaged or wrapped by DDP.
Batches are embeddings that were made once, or sentences that are encoded on the fly, with the encoder's dropout where
the recipe asks for it. The flow is initialized in ``setup``, before DDP wraps it, from the same rows on every rank.
Held-out rows are always embeddings. They are few, so every rank reads all of them: nothing needs to be reduced, and all
ranks take the same decisions.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bertflow.encoder.device import sent
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.flow.actnorm import ActNorm, initialize
from bertflow.flow.glow import FlowMap
from bertflow.flow.transforms import LULinear
from bertflow.moments import require_finite
from bertflow.training.batches import Batch, InOrder, ShuffledBatches
from bertflow.training.checkpoints import Clock, StopAfter
from bertflow.training.divergence import KeepGoodStates, is_due
from bertflow.training.recipe import Recipe

LN2 = math.log(2)
INITIAL_ROWS = 4096
"""Rows that the data-dependent initialization looks at."""


class Borrowed:
    """Holds an encoder so that copies of the module share it, and torch does not see it."""

    def __init__(self, encoder: TransformerEncoder | None) -> None:
        self.encoder = encoder

    def __deepcopy__(self, memo: dict[int, Any]) -> "Borrowed":
        return self


class BertFlow(pl.LightningModule):
    """A flow in training, and the frozen encoder whose embeddings it calibrates.

    Args:
        flow: The map to be trained; of a frozen one, as a fitted calibrator has, a copy is trained.
        recipe: How it is trained.
        encoder: Makes embeddings of sentences; not needed where all batches are embeddings.
    """

    def __init__(self, flow: FlowMap, recipe: Recipe, encoder: TransformerEncoder | None = None) -> None:
        super().__init__()
        if not isinstance(flow, FlowMap):
            given = type(flow).__name__
            raise UsageError(f"BertFlow trains a FlowMap, as a FlowCalibrator has (.map), got {given}. Give that.")
        self.flow = flow
        self.recipe = recipe
        self.states, self.clock = KeepGoodStates(), Clock()
        self._borrowed = Borrowed(encoder)

    def forward(self, batch: Tensor | Sequence[str]) -> Tensor:
        """Calibrated embeddings (n, dim_out) of sentences, or of raw embeddings (n, dim_in).

        Raises:
            DataError: For the first row that is not finite, or comes out so.
        """
        z: Tensor = self.flow(self.embed(batch))
        require_finite(z.detach().float().cpu().numpy())
        return z

    def embed(self, batch: Tensor | Sequence[str], dropout: bool = False) -> Tensor:
        """Raw embeddings (n, dim_in); a batch of embeddings is returned as it is.

        Raises:
            UsageError: For sentences without an encoder.
        """
        if isinstance(batch, Tensor):
            return batch
        if self._borrowed.encoder is None:
            raise UsageError(
                "A batch of sentences needs an encoder, but this BertFlow has none. Give it one: encoder=..."
            )
        return self._borrowed.encoder.embed(list(batch), dropout=dropout).to(self.device)

    def nll(self, x: Tensor) -> Tensor:
        """Negative log-likelihood of each row (n,), in nats per dimension."""
        return -self.flow.log_prob(x) / self.flow.rank

    def setup(self, stage: str) -> None:
        """Refuse what would break the mathematics, and initialize the flow from data.

        Raises:
            UsageError: If the Trainer's precision is not float32 or float64.
        """
        if stage != "fit":
            return
        require_precision(self.trainer.precision)
        if not any(one.requires_grad for one in self.flow.parameters()):
            self.flow = copy.deepcopy(self.flow).requires_grad_(True).train()
        # Not again in a second fit of this module; and a checkpoint that is resumed is read after this.
        if all(part.initialized for part in self.flow.modules() if isinstance(part, ActNorm)):
            return
        data = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise UsageError("This flow starts from data. Call trainer.fit(module, datamodule=TrainingData(...)).")
        with torch.no_grad():
            x = self.embed(data.batches.sample(INITIAL_ROWS)).to(self.flow.affine.shift.device)
            initialize(self.flow.glow, self.flow.start(x)[:, : self.flow.glow.dim])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of one batch; it is logged when the Trainer will write it."""
        nll = self.nll(self.embed(batch, dropout=self.recipe.dropout)).mean()
        if is_due(self.trainer):
            # Each call costs a third of a millisecond, so there is one, and only now and then.
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            values = {"train/nll": nll, "train/bits_per_dim": nll / LN2, "train/learning_rate": rate}
            self.log_dict(values, batch_size=len(batch), sync_dist=True)
        return self.loss(nll)

    def loss(self, nll: Tensor) -> Tensor:
        """What is minimized, as the recipe says: nats per dimension, or both sides' bits per dimension added up."""
        return nll * (2 / LN2) if self.recipe.two_sided else nll

    def validation_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Held-out bits per dimension, and the mean cosine of random held-out pairs."""
        nll = self.nll(batch).mean()
        z = self.flow(batch)
        # The rows are in random order, so neighbors are random pairs.
        cosine = cosine_similarity(z, z.roll(1, 0)).mean()
        bits = nll / LN2
        values = {"val/nll": nll, "val/bits_per_dim": bits, "val/mean_cosine": cosine}
        self.log_dict(values, batch_size=len(batch), prog_bar=True, sync_dist=True)
        return bits

    def configure_optimizers(self) -> Any:
        """The optimizer of the recipe, its learning rate a function of the step."""
        return build_optimizer(self.flow, self.recipe, planned_steps(self.trainer))

    def configure_callbacks(self) -> list[pl.Callback]:
        """What watches every fit of this module, whichever Trainer runs it."""
        return [self.states, self.clock]


def planned_steps(trainer: pl.Trainer) -> float:
    """Steps of the optimizer until the Trainer's limit; infinite where it has none.

    ``Trainer.estimated_stepping_batches`` is the same number, but sets up the loaders too early for a resumed fit to go
    on in the middle of an epoch.
    """
    data = getattr(trainer, "datamodule", None)
    if data is None:
        return trainer.estimated_stepping_batches
    limit = trainer.limit_train_batches
    batches = len(data.train_dataloader())
    batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    epochs = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
    steps = epochs * math.ceil(batches / trainer.accumulate_grad_batches)
    ends = [each.steps for each in trainer.callbacks if isinstance(each, StopAfter)]  # type: ignore[attr-defined]
    return min([steps, *ends, *([] if trainer.max_steps == -1 else [trainer.max_steps])])


def require_precision(
    precision: Any,
    allowed: Sequence[str] = ("32-true", "64-true"),
    reason: str = "The flow's mathematics needs float32 or better",
    advice: str = "encoder.dtype sets the encoder's own precision",
) -> None:
    """Refuse a Trainer precision; by default those in which log-determinants would be wrong.

    Raises:
        UsageError: If it is not allowed; the message begins with ``reason`` and ends with ``advice``.
    """
    if str(precision) not in (*allowed, *(each.removesuffix("-true") for each in allowed)):
        choices = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        raise UsageError(f"{reason}, but trainer.precision is {precision}. Choose {choices}; {advice}.")


class TrainingData(pl.LightningDataModule):
    """Rows to train on and some that judge the result.

    Args:
        batches: Batches of all ranks: embeddings, sentences for a ``BertFlow`` that has an encoder, or rows of pairs.
        held_out: The rows that judge; none by default. Every rank reads all of them.
        judged_at_once: How many of them are one batch; all by default.
    """

    def __init__(self, batches: ShuffledBatches, held_out: Tensor | None = None, judged_at_once: int = 0) -> None:
        super().__init__()
        self.batches, self.judged_at_once = batches, judged_at_once
        self.held_out = torch.empty(0) if held_out is None else held_out

    def train_dataloader(self) -> ShuffledBatches:
        """This rank's share of one epoch."""
        there = self.trainer
        return replace(self.batches, rank=there.global_rank, world=there.world_size) if there else self.batches

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Rows that are not on the device yet go there without anybody waiting."""
        if isinstance(batch, Tensor) and batch.device.type == "cpu":
            return sent(batch, device)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def val_dataloader(self) -> InOrder | list[InOrder]:
        """The held-out rows, on every rank; no loader at all where none are held out."""
        n = len(self.held_out)
        return InOrder(self.held_out, self.judged_at_once or n) if n else []


class ReleasedAdamW(torch.optim.AdamW):
    """The optimizer of the released BERT-flow: BERT's AdamW, whose moments are not corrected for their start at zero.

        m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2        p = p - lr (m / (sqrt(v) + eps) + weight_decay p)

    In the first steps m/sqrt(v) is near (1 - b1)/sqrt(1 - b2) = 3.2, where Adam has 1; the paper's fits are a few
    hundred steps at a constant rate, so this matters until their end. The correction of step t is 1 - b^t, so this is
    PyTorch's AdamW, told that it has taken infinitely many steps. The decay applies to every parameter and follows the
    learning rate. A parameter without gradient is left alone, not decayed.

    Source: bohanli/BERT-flow optimization_bert_flow.py@7fa8f6d, AdamWeightDecayOptimizer. Its exclusions from the decay
    ("LayerNorm|layer_norm|bias") match no variable of a flow, so ActNorms decay as well.
    """

    def __init__(self, params: Any, lr: float = 1e-3, eps: float = 1e-6, **options: Any) -> None:
        super().__init__(params, lr=lr, eps=eps, fused=True, **options)
        for parameter in (each for group in self.param_groups for each in group["params"]):
            self.state[parameter] = {
                "step": torch.tensor(math.inf, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "adam": partial(torch.optim.AdamW, fused=True),  # with weight decay 0 this is Adam
    "released-adamw": ReleasedAdamW,
}
"""Optimizers by name; each takes (groups, lr, weight_decay)."""
DECAYS: Mapping[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
}
"""Factor of the learning rate when a share in [0, 1] of all steps is done."""


def learning_rate_factor(step: int, total: float, warmup: int, decay: Callable[[float], float]) -> float:
    """Share of the full learning rate at ``step``, counted from 0, of ``total``."""
    return min(1.0, (step + 1) / max(1, warmup)) * decay(min(1.0, step / max(1, total)))


def build_optimizer(flow: FlowMap, recipe: Recipe, total: float) -> dict[str, Any]:
    """What ``configure_optimizers`` returns, for a fit of ``total`` steps.

    Warm-up takes ``recipe.warmup_steps``, and at most a quarter of all steps.

    Raises:
        UsageError: If the learning rate should fall to zero at the end, and there is no end.
    """
    if math.isinf(total) and recipe.decay != "constant":
        raise UsageError(
            f"Decay {recipe.decay!r} needs to know the number of steps, but the Trainer has no limit. "
            "Set trainer.max_epochs or trainer.max_steps, or flow.decay to constant."
        )
    linear = {id(p) for module in flow.modules() if isinstance(module, LULinear) for p in module.parameters()}
    rates = {False: recipe.learning_rate, True: recipe.learning_rate * recipe.linear_rate_share}
    groups = [
        {"params": [p for p in flow.parameters() if (id(p) in linear) == learned_map], "lr": rate}
        for learned_map, rate in rates.items()
    ]
    used = [group for group in groups if group["params"]]
    optimizer = OPTIMIZERS[recipe.optimizer](used, weight_decay=recipe.weight_decay)
    warmup, decay = int(min(recipe.warmup_steps, total // 4)), DECAYS[recipe.decay]
    return scheduled(LambdaLR(optimizer, lambda step: learning_rate_factor(step, total, warmup, decay)))


def scheduled(rates: LambdaLR) -> dict[str, Any]:
    """The course of the learning rates of an optimizer, and the optimizer, as Lightning wants them."""
    return {"optimizer": rates.optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}
