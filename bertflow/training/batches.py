"""The rows of a fit: which are held out, and in which order the others come.

    order  = a permutation of the rows, from (seed, epoch) alone
    step i = order[i B : (i + 1) B];  rank r of w takes every w-th of them

``B`` counts the rows of one step over all ranks, so a run takes the same steps on any number of ranks. Rows are sliced
out of the array that holds them: no worker processes, no collation. Nothing here needs Lightning.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertflow.array_types import Floats, Int64
from bertflow.encoder.device import sent
from bertflow.errors import DataError, UsageError
from bertflow.moments import BLOCK, Moments, require_finite
from bertflow.store.store import EmbeddingStore

Embeddings = Tensor | Floats | EmbeddingStore
"""Embeddings (n, dim): in memory, memory-mapped, or in a store."""
Rows = Embeddings | Sequence[str]
"""Embeddings, or n sentences."""
Batch = Tensor | list[str]


def take(rows: Rows, index: Int64) -> Batch:
    """The rows at ``index``, as a tensor or as a list of sentences."""
    if isinstance(rows, Tensor):
        return rows[sent(torch.from_numpy(index), rows.device)]
    if isinstance(rows, np.ndarray):
        return torch.from_numpy(np.asarray(rows[index]))
    if isinstance(rows, EmbeddingStore):
        return torch.from_numpy(rows.rows(index))
    return [rows[i] for i in index]


def rows_of(units: Int64, unit: int) -> Int64:
    """All rows of the units that begin at ``units``."""
    return (units[:, None] + np.arange(unit)).ravel()


def seeded_order(n: int, *key: int) -> Int64:
    """A permutation of 0 .. n-1, a pure function of ``key``."""
    return np.random.default_rng(key).permutation(n)


HELD_OUT_MOST = 10_000
"""Rows that are enough to judge any fit."""
HELD_OUT_LEAST = 16
"""Fewest rows that say something about a density."""


def hold_out(n: int, share: float, seed: int, unit: int = 1) -> tuple[Int64, Int64]:
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


def shared_units(units: int, world: int, unit: int) -> int:
    """The units of a batch, of ``unit`` rows each, if each of ``world`` ranks has one.

    Raises:
        UsageError: If there are more ranks than units.
    """
    if units < world:
        raise UsageError(
            f"Each of {world} processes needs a row of every batch, but a batch has {units * unit} rows in units of "
            f"{unit}. Raise flow.batch_size, or start fewer processes."
        )
    return units


@dataclass(eq=False)
class ShuffledBatches:
    """One epoch of batches; Lightning tells it the epoch, and where to go on after a restart.

    Attributes:
        rows: Where the batches come from.
        units: First row (m,) of each unit that may be drawn; a unit is ``unit`` rows in a row that stay together.
        batch_size: Rows of one step, over all ranks; rows that do not fill a last batch wait for another epoch.
        seed: Decides the order, with the epoch.
        unit: Rows of a unit: 2 for sentence pairs.
        rank: Which share of each batch is ours.
        world: How many ranks there are.

    Raises:
        UsageError: If a batch has no unit for some rank.
    """

    rows: Rows
    units: Int64
    batch_size: int
    seed: int
    unit: int = 1
    rank: int = 0
    world: int = 1
    epoch: int = field(default=0, init=False)
    next_batch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        units = max(1, min(self.batch_size // self.unit, len(self.units)))
        self.units_in_batch = shared_units(units, self.world, self.unit)

    @property
    def sampler(self) -> "ShuffledBatches":
        """What Lightning calls ``set_epoch`` on."""
        return self

    def sample(self, most: int) -> Batch:
        """A random sample of at most this many rows, the same on every rank."""
        chosen = self.units[seeded_order(len(self.units), self.seed)[: most // self.unit]]
        return take(self.rows, rows_of(chosen, self.unit))

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; a new epoch begins at its first batch."""
        if epoch != self.epoch:
            self.epoch, self.next_batch = epoch, 0

    def __len__(self) -> int:
        return len(self.units) // self.units_in_batch

    def __iter__(self) -> Iterator[Batch]:
        order = seeded_order(len(self.units), self.seed, self.epoch)
        for batch in range(self.next_batch, len(self)):
            self.next_batch = batch + 1
            drawn = order[batch * self.units_in_batch : (batch + 1) * self.units_in_batch][self.rank :: self.world]
            yield take(self.rows, rows_of(self.units[drawn], self.unit))

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch, for a checkpoint."""
        return {"epoch": self.epoch, "next_batch": self.next_batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.epoch, self.next_batch = state["epoch"], state["next_batch"]


class InOrder:
    """Rows in their order, ``size`` at a time."""

    def __init__(self, rows: Tensor, size: int) -> None:
        self.rows, self.size = rows, size

    def __len__(self) -> int:
        return -(-len(self.rows) // self.size)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.rows.split(self.size) if len(self.rows) else ())


def gathered(x: Embeddings, index: Int64) -> Tensor:
    """The rows of ``x`` at ``index`` as a tensor, float32 or float64.

    Raises:
        DataError: If they are not a matrix, or one holds a NaN or infinity; the message names the row.
    """
    rows = take(x, index)
    assert isinstance(rows, Tensor)
    rows = rows.cpu()  # where moments are taken
    if rows.ndim != 2:
        shape = (len(x), *rows.shape[1:])
        raise DataError(f"A flow is fitted to embeddings (n, dim), n at least 2; got shape {shape}.")
    finite = rows.isfinite().all(1)
    if not finite.all():
        bad = int(finite.int().argmin())
        require_finite(rows[bad : bad + 1].numpy(), first_row=int(index[bad]))
    return rows if rows.dtype == torch.float64 else rows.float()


def moments_of_rows(x: Embeddings, index: Int64) -> Moments:
    """Moments of some rows, read in blocks, so that memory does not grow with their number.

    Raises:
        DataError: As ``gathered``, and for no rows.
    """
    blocks = [index[start : start + BLOCK] for start in range(0, max(1, len(index)), BLOCK)]
    return Moments.merged(Moments.of(gathered(x, block).numpy()) for block in blocks)
