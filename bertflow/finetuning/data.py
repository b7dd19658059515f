"""Pairs as batches: each sentence is tokenized once, a batch is two padded sides.

The order of the pairs is a function of (seed, epoch) alone, and a batch counts its pairs over all ranks
(``bertflow.training.batches``): so a run takes the same steps on any number of ranks, and goes on in the middle of an
epoch where it was interrupted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertflow.data.pairs import Pairs
from bertflow.encoder.batching import Batch
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.text_keys import hash_text, hash_texts
from bertflow.training.batches import ShuffledBatches, seeded_order

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
        encoder: Tokenizes.
        batch_size: Pairs of one step, over all ranks.
        held_out: Share of the pairs that is not trained on.
        seed: Decides which, and the order of the others.
    """

    def __init__(self, pairs: Pairs, encoder: TransformerEncoder, batch_size: int, held_out: float, seed: int) -> None:
        super().__init__()
        distinct = list(dict.fromkeys((*pairs.first, *pairs.second)))
        row_of = {sentence: row for row, sentence in enumerate(distinct)}
        self._encoder, self._text = encoder, encoder.tokenized(distinct)
        self._sides = [np.array([row_of[text] for text in side]) for side in (pairs.first, pairs.second)]
        self._keys = np.array([hash_text(sentence) for sentence in distinct], dtype=np.uint64).view(np.int64)
        self._targets = None if pairs.target is None else torch.from_numpy(pairs.target)
        order = seeded_order(len(pairs), seed)
        held = round(len(pairs) * held_out)
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
        """Lightning moves no frozen records by itself."""
        return batch.to(device)

    def batch(self, index: NDArray[np.int64]) -> PairBatch:
        """The pairs at ``index``, padded, on the CPU."""
        rows = [side[index] for side in self._sides]
        first, second = (self._encoder.padded(self._text, side) for side in rows)
        targets = None if self._targets is None else self._targets[torch.from_numpy(index)]
        return PairBatch(first, second, torch.from_numpy(self._keys[np.stack(rows)]), targets)


class HeldOut:
    """Rows of held-out pairs, some at a time."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return -(-len(self.rows) // JUDGED_AT_ONCE)

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, len(self.rows), JUDGED_AT_ONCE):
            yield torch.from_numpy(self.rows[start : start + JUDGED_AT_ONCE])
