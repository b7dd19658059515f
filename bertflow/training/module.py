"""What Lightning trains, and on what: a module that pairs a frozen encoder with a flow, and its rows.

    sentences -- encoder (borrowed, frozen) --> x -- flow (trained) --> z        minimize  nll = -log p(x) / rank

The encoder is borrowed: it is not a sub-module, so it is not trained, checkpointed, moved, averaged or wrapped by DDP.
Batches are embeddings that were made once, or sentences that are encoded on the fly, with the encoder's dropout where
the recipe asks for it. The flow is initialized in ``setup``, before DDP wraps it, from the same rows on every rank.
Held-out rows are always embeddings. They are few, so every rank reads all of them: nothing needs to be reduced, and all
ranks take the same decisions.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from bertflow.errors import UsageError
from bertflow.flow.actnorm import ActNorm, initialize
from bertflow.flow.glow import FlowMap
from bertflow.training.batches import (
    INITIAL_ROWS,
    Batch,
    Rows,
    ShuffledBatches,
    hold_out,
    rows_of,
    seeded_order,
    take,
)
from bertflow.training.checkpoints import KeepGoodStates, is_due
from bertflow.training.optimizer import build_optimizer
from bertflow.training.presets import Recipe

if TYPE_CHECKING:
    from bertflow.encoder.transformer import TransformerEncoder

LN2 = math.log(2)
PRECISIONS = ("32-true", "64-true")


class Borrowed:
    """Holds an encoder so that copies of the module share it, and torch does not see it."""

    def __init__(self, encoder: "TransformerEncoder | None") -> None:
        self.encoder = encoder

    def __deepcopy__(self, memo: dict[int, Any]) -> "Borrowed":
        return self


class BertFlow(pl.LightningModule):
    """A flow in training, and the frozen encoder whose embeddings it calibrates.

    Args:
        flow: The map to be trained.
        recipe: How it is trained.
        encoder: Makes embeddings of sentences; not needed where all batches are embeddings.
    """

    def __init__(self, flow: FlowMap, recipe: Recipe, encoder: "TransformerEncoder | None" = None) -> None:
        super().__init__()
        self.flow = flow
        self.recipe = recipe
        self.states = KeepGoodStates()
        self._borrowed = Borrowed(encoder)

    def forward(self, batch: Tensor | Sequence[str]) -> Tensor:
        """Calibrated embeddings (n, dim_out) of sentences, or of raw embeddings (n, dim_in)."""
        z: Tensor = self.flow(self.embed(batch))
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
        # Not again in a second fit of this module; and a checkpoint that is resumed is read after this.
        if not all(part.initialized for part in self.flow.modules() if isinstance(part, ActNorm)):
            self._initialize()

    def _initialize(self) -> None:
        data = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise UsageError("This flow starts from data. Call trainer.fit(module, datamodule=TrainingData(...)).")
        with torch.no_grad():
            x = self.embed(data.initial_rows()).to(self.flow.affine.shift.device)
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
        return [self.states]


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
    return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)


def require_precision(precision: Any) -> None:
    """Refuse a Trainer precision in which log-determinants would be wrong.

    Raises:
        UsageError: If it is not float32 or float64.
    """
    if str(precision) not in (*PRECISIONS, "32", "64"):
        raise UsageError(
            f"The flow's mathematics needs float32 or better, but trainer.precision is {precision}. "
            f"Choose {' or '.join(PRECISIONS)}; encoder.dtype sets the encoder's own precision."
        )


class TrainingData(pl.LightningDataModule):
    """Rows to train on and embeddings to judge by.

    Args:
        rows: Embeddings (n, dim), or sentences for a ``BertFlow`` that has an encoder.
        units: First rows of the units to train on, from ``hold_out``; all rows by default.
        held_out: Embeddings (m, dim) that judge the fit; None for none.
        batch_size: Rows of one step, over all ranks.
        seed: Decides the order of the rows, and which of them the initialization sees.
        unit: Rows in a row that stay together: 2 for sentence pairs.
    """

    def __init__(
        self,
        rows: Rows,
        units: NDArray[np.int64] | None = None,
        held_out: Tensor | None = None,
        batch_size: int = 256,
        seed: int = 0,
        unit: int = 1,
    ) -> None:
        super().__init__()
        self.rows = rows
        self.units = hold_out(len(rows), 0, seed, unit)[0] if units is None else units
        self.held_out = held_out
        self.batch_size = batch_size
        self.seed = seed
        self.unit = unit

    def initial_rows(self) -> Batch:
        """The rows for the data-dependent initialization: the same on every rank."""
        chosen = self.units[seeded_order(len(self.units), self.seed)[: INITIAL_ROWS // self.unit]]
        return take(self.rows, rows_of(chosen, self.unit))

    def train_dataloader(self) -> ShuffledBatches:
        """This rank's share of one epoch."""
        rank, world = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return ShuffledBatches(self.rows, self.units, self.batch_size, self.seed, self.unit, rank, world)

    def val_dataloader(self) -> "OneBatch | list[OneBatch]":
        """All held-out rows as one batch, on every rank; no loader at all where none are held out."""
        return [] if self.held_out is None else OneBatch(self.held_out)


class OneBatch:
    """All rows at once."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Tensor]:
        yield self.rows
