"""Which rows are held out, and batches of the others in a random order that depends on (seed, epoch) alone.

    order  = a permutation of the rows, from (seed, epoch)
    step i = order[i B : (i + 1) B];  rank r of w takes every w-th of them

``B`` counts the rows of one step over all ranks, so a run takes the same steps on any number of ranks. Rows are sliced
out of the array that holds them: no worker processes, no collation. Nothing here needs Lightning.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertflow.errors import UsageError


@runtime_checkable
class Store(Protocol):
    """Embeddings on disk, as ``bertflow.store.store.EmbeddingStore`` keeps them."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Some of them (m, dim), in the order asked for."""
        ...


Embeddings = Tensor | NDArray[np.floating] | Store
"""Embeddings (n, dim): in memory, memory-mapped, or in a store."""
Rows = Embeddings | Sequence[str]
"""Embeddings, or n sentences."""
Batch = Tensor | list[str]


def take(rows: Rows, index: NDArray[np.int64]) -> Batch:
    """The rows at ``index``, as a tensor or as a list of sentences."""
    if isinstance(rows, Tensor):
        return rows[torch.from_numpy(index)]
    if isinstance(rows, np.ndarray):
        return torch.from_numpy(np.asarray(rows[index]))
    if isinstance(rows, Store):
        return torch.from_numpy(rows.rows(index))
    return [rows[i] for i in index]


def rows_of(units: NDArray[np.int64], unit: int) -> NDArray[np.int64]:
    """All rows of the units that begin at ``units``."""
    return (units[:, None] + np.arange(unit)).ravel()


def seeded_order(n: int, *key: int) -> NDArray[np.int64]:
    """A permutation of 0 .. n-1, a pure function of ``key``."""
    return np.random.default_rng(key).permutation(n)


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


class ShuffledBatches:
    """One epoch of batches; Lightning tells it the epoch, and where to go on after a restart.

    Args:
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

    def __init__(
        self,
        rows: Rows,
        units: NDArray[np.int64],
        batch_size: int,
        seed: int,
        unit: int = 1,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.rows = rows
        self.units = units
        self.seed = seed
        self.unit = unit
        self.rank = rank
        self.world = world
        self.units_in_batch = max(1, min(batch_size // unit, len(units)))
        if self.units_in_batch < world:
            raise UsageError(
                f"Each of {world} processes needs a row of every batch, but a batch has "
                f"{self.units_in_batch * unit} rows in units of {unit}. "
                "Raise flow.batch_size, or start fewer processes."
            )
        self.epoch = 0
        self.next_batch = 0

    @property
    def sampler(self) -> "ShuffledBatches":
        """What Lightning calls ``set_epoch`` on."""
        return self

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
