"""What a flow is trained on: embeddings that were made once, or sentences that are encoded on the fly.

Both are rows: a matrix or a list. Some of them are held out, always as embeddings, and judge the fit. They are few, so
every rank looks at all of them: nothing needs to be reduced, and all ranks take the same decisions.
"""

from collections.abc import Iterator

import numpy as np
import pytorch_lightning as pl
from numpy.typing import NDArray
from torch import Tensor

from bertflow.errors import UsageError
from bertflow.training.batches import Batch, Rows, ShuffledBatches, rows_of, seeded_order, take

INITIAL_ROWS = 4096
"""Rows that the data-dependent initialization looks at."""
HELD_OUT_MOST = 10_000
"""No fit needs more rows than these to be judged."""
HELD_OUT_LEAST = 16
"""Fewer rows than these say nothing about a density."""


def hold_out(n: int, share: float, seed: int, unit: int = 1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of ``n`` rows to train on, and which to hold out: the first rows of units of ``unit`` rows, rising.

    Rows after the last whole unit are left out.

    Args:
        n: How many rows there are.
        share: How many of them are held out, at least ``HELD_OUT_LEAST`` and at most ``HELD_OUT_MOST``; none where
            ``share`` is 0, or ``HELD_OUT_LEAST`` are more than a quarter of the rows.
        seed: Decides which.
        unit: Rows in a row that stay together: 2 for sentence pairs.

    Raises:
        UsageError: If ``share`` is not in [0, 0.5].
    """
    if not 0 <= share <= 0.5:
        raise UsageError(f"held_out is the share of rows that judge the fit, from 0 to 0.5; got {share}.")
    held = int(np.clip(round(n * share), HELD_OUT_LEAST, HELD_OUT_MOST)) if share and n >= 4 * HELD_OUT_LEAST else 0
    order = seeded_order(n // unit, seed)
    return np.sort(order[held // unit :]) * unit, np.sort(order[: held // unit]) * unit


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
