"""Checkpoints to go on from: written whole or not at all, found again, read without pickle, pruned.

    checkpoints/last.ckpt         at the end of each epoch, and every ``CHECKPOINT_STEPS`` steps
    checkpoints/hpc_ckpt_3.ckpt   what Lightning writes when SLURM is about to end the job, the third time

They are Lightning's own, so what can be resumed is what Lightning can.
"""

import pickle
import re
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from bertflow.errors import DataError
from bertflow.files import atomic_file

CHECKPOINT_STEPS = 1000
"""Most steps that a run loses when it is killed in the middle of a long epoch."""


class WholeCheckpoints(TorchCheckpointIO):
    """Writes beside the file and renames; Lightning's own way goes through the folder of temporary files.

    Where that is another file system, its last act is a copy, and a run that is killed then leaves half a checkpoint.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write one; a path with a protocol, as s3://, is left to Lightning."""
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with atomic_file(path) as aside:
            torch.save(checkpoint, aside)


class MidEpochCheckpoint(ModelCheckpoint):
    """Writes every so many steps, but not between a step and its validation, which a resumed run would leave out."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write, when it is due."""
        if not validation_follows(trainer, batch_idx):
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)


def validation_follows(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Whether something is still to come after this batch that belongs to it: a validation, or the end of the epoch."""
    across_epochs = trainer.check_val_every_n_epoch is None
    done = trainer.fit_loop.total_batch_idx + 1 if across_epochs else batch_idx + 1
    every = trainer.val_check_batch  # None where it is a span of time: then nobody knows beforehand
    return trainer.is_last_batch or (every is not None and done % every == 0)


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that was written last, of those in ``folder``."""
    found = [path for path in folder.glob("*.ckpt") if not path.name.startswith(".")]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def steps_of(checkpoint: Path) -> int:
    """Steps that had been taken when it was written.

    Raises:
        DataError: If it cannot be read without pickle, or is no checkpoint of Lightning's.
    """
    try:
        return int(torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)["global_step"])
    except FileNotFoundError:
        raise DataError(f"The checkpoint {checkpoint} is missing. Give one of a run's checkpoints/, or auto.") from None
    except (RuntimeError, KeyError, TypeError, EOFError, OSError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{checkpoint} should be a checkpoint to go on from, but cannot be read: {reason}. "
            "Delete it to go on from an older one."
        ) from None


def prune_requeue_checkpoints(folder: Path, keep: int = 1) -> None:
    """Delete all but the last ``keep`` checkpoints that were written for SLURM's sake."""
    numbered = [(int(match[1]), path) for path in folder.glob("hpc_ckpt_*.ckpt") if (match := _number(path))]
    for _, path in sorted(numbered)[: len(numbered) - keep]:
        path.unlink(missing_ok=True)


def _number(path: Path) -> re.Match[str] | None:
    return re.fullmatch(r"hpc_ckpt_(\d+)\.ckpt", path.name)
