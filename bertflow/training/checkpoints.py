"""What watches a training: checkpoints to resume from, and signals.

    checkpoints/last.ckpt         at the end of each epoch, and every N steps
    checkpoints/hpc_ckpt_3.ckpt   what Lightning writes when SLURM is about to end the job, the third time

    SIGINT      Ctrl-C: the training stops after this step, and a second one stops it at once
    SIGTERM     the training stops after this step; it is Lightning's
    SIGUSR1     SLURM's notice: after this step a checkpoint is written and the job runs again

Checkpoints are Lightning's own, written whole or not at all; they are pickles, of which only tensors and plain values
are read. Lightning keeps the state of a callback under the name of its class.
"""

import math
import pickle
import signal
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from bertflow.errors import DataError, reason_of
from bertflow.files import atomic_file

CHECKPOINT_STEPS = 1000
"""Most steps that a run of ``train`` loses when it is killed in the middle of a long epoch."""


class WholeCheckpoints(TorchCheckpointIO):
    """Writes beside the file and renames it.

    Lightning writes to the folder of temporary files first. Where that is another file system, its last step is a copy,
    and a run that is killed during it leaves half a checkpoint.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write one; a path with a protocol, such as s3://, is left to Lightning.

        Raises:
            DataError: If the disk does not take it.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with atomic_file(path) as aside:
            try:
                torch.save(checkpoint, aside)
            except RuntimeError as error:  # torch's own, for every error of the system
                raise DataError(
                    f"The checkpoint {path} could not be written: {reason_of(error)}. Is there room on that disk?"
                ) from None


class StopAfter(pl.Callback):
    """Ends a training after this many steps.

    Given ``max_steps``, Lightning 2.6 takes an epoch at whose end a run is resumed for one to be continued, and adds a
    batch of the next one to it: https://github.com/Lightning-AI/pytorch-lightning/issues/19617.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take no step after the last one."""
        trainer.should_stop = trainer.global_step >= self.steps

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Stop when they are taken."""
        trainer.should_stop = trainer.should_stop or trainer.global_step >= self.steps


class BetweenSteps(pl.Callback):
    """Acts in the middle of an epoch when a step is done: not between its batches, and after its validation.

    A run that goes on from a checkpoint before the validation does not validate that step any more: its weights would
    never be judged. At the end of an epoch, Lightning validates first anyway.
    """

    @abstractmethod
    def act(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """What is done then."""

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Act, unless a validation comes first."""
        every, loop = trainer.check_val_every_n_epoch, trainer.fit_loop
        place = loop.batch_idx if every else loop.total_batch_idx
        due = trainer.should_stop or (place + 1) % (trainer.val_check_batch or math.inf) == 0
        if not (due and trainer.enable_validation and (trainer.current_epoch + 1) % (every or 1) == 0):
            self.on_validation_end(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Act, unless a step is half done."""
        whole_step = (trainer.fit_loop.batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if whole_step and not trainer.is_last_batch:
            self.act(trainer, pl_module)


class AfterValidation(BetweenSteps, pl.callbacks.ModelCheckpoint):
    """Lightning's checkpoints in the middle of an epoch."""

    def act(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write one if it is due."""
        pl.callbacks.ModelCheckpoint.on_train_batch_end(self, trainer, pl_module, None, None, 0)


class EMAWeightAveraging(pl.callbacks.EMAWeightAveraging):
    """Lightning's, which also puts the average in place where a resumed run has no step to take any more."""

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put it in place; a second time changes nothing."""
        self.on_train_end(trainer, pl_module)


class Clock(pl.Callback):
    """Seconds of training, also before a restart. As a ``Timer`` it would make Lightning drop that of ``max_time``."""

    def __init__(self) -> None:
        self._timer = pl.callbacks.Timer()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin."""
        self._timer.on_train_start(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End."""
        self._timer.on_train_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return self._timer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on."""
        self._timer.load_state_dict(state_dict)

    def time_elapsed(self) -> float:
        """The seconds."""
        return self._timer.time_elapsed()


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint in ``folder`` that was written last."""
    found = [path for path in folder.glob("*.ckpt") if not path.name.startswith(".")]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def steps_of(checkpoint: Path) -> int:
    """Steps that had been taken when it was written.

    Raises:
        DataError: If it holds more than tensors and plain values, or is not a checkpoint of Lightning's.
    """
    try:
        return int(torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)["global_step"])
    except FileNotFoundError:
        raise DataError(f"The checkpoint {checkpoint} is missing. Give one of a run's checkpoints/, or auto.") from None
    except (RuntimeError, KeyError, TypeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise DataError(
            f"{checkpoint} should be a checkpoint to go on from, but cannot be read: {reason_of(error)}. "
            "Delete it to go on from an older one."
        ) from None


NOTICE: Any = getattr(signal, "SIGUSR1", None)  # Windows has none
AGREE_STEPS = 20
"""Steps between two checks of several ranks whether a notice came."""


class RequeueBetweenSteps(BetweenSteps):
    """Delays Lightning's handler of SLURM's notice until a step is done; does nothing where Lightning has set none.

    The handler writes a checkpoint and asks SLURM to run the job again (``scontrol requeue``). It would run wherever
    the signal finds the process, also while another rank waits for our gradients: the two would wait for ever.
    """

    def __init__(self) -> None:
        self._noted = False
        self._lightnings: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the place of Lightning's handler; Lightning restores the old ones in the end."""
        handler = NOTICE and signal.getsignal(NOTICE)
        if callable(handler):
            self._lightnings = handler
            signal.signal(NOTICE, lambda *_: setattr(self, "_noted", True))

    def act(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check whether a notice came; with several ranks only now and then, since they have to agree."""
        if not (trainer.world_size > 1 and trainer.global_step % AGREE_STEPS):
            self.on_train_epoch_end(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Check once more, now that the epoch was validated."""
        if self._lightnings is not None and trainer.strategy.reduce_boolean_decision(self._noted, all=False):
            self._noted = False
            self._lightnings(NOTICE, None)


@contextmanager
def between_steps(trainer: pl.Trainer) -> Iterator[None]:
    """Heed Ctrl-C when a step is done, as Lightning does SIGTERM; a second one is heeded at once.

    Python's KeyboardInterrupt comes anywhere: between two weights that are updated, or in TensorBoard's queue, whose
    lock is then never released. So SIGTERM, which the command line heeds in that way, is left to Lightning alone. Where
    a signal is ignored or handled by others it stays so; several ranks are ended by Lightning, and a thread gets none.
    """

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        lightnings = signal.getsignal(signal.SIGTERM)
        (lightnings if callable(lightnings) else signal.default_int_handler)(signal.SIGTERM, None)

    handlers: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL}
    if trainer.world_size == 1:
        handlers[signal.SIGINT] = stop
    main = current_thread() is main_thread()
    ours = [number for number in handlers if main and signal.getsignal(number) is signal.default_int_handler]
    for number in ours:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.default_int_handler)
