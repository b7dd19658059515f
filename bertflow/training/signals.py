"""Signals in a training: they are heeded between two steps.

SIGINT      Ctrl-C: the training stops, and a second one stops it at once
SIGTERM     the training stops; it is Lightning's
SIGUSR1     SLURM's notice: a checkpoint is written and the job runs again
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

import pytorch_lightning as pl

from bertflow.training.checkpoints import is_between_steps, prune_requeue_checkpoints

NOTICE: Any = getattr(signal, "SIGUSR1", None)  # Windows has none
AGREE_STEPS = 20
"""Steps between two checks of several ranks whether a notice came."""


class RequeueBetweenSteps(pl.Callback):
    """Delays Lightning's handler of SLURM's notice to the end of a step; does nothing where Lightning has set none.

    The handler writes a checkpoint and asks SLURM to run the job again (``scontrol requeue``). It would run wherever
    the signal finds the process: between two parameters that the optimizer updates, or while another rank waits for our
    gradients. So the signal is only noted, and all ranks call the handler after the same step.
    """

    def __init__(self) -> None:
        self._lightnings: Any = None
        self._noted = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the place of Lightning's handler; Lightning restores the old ones in the end."""
        handler = NOTICE and signal.getsignal(NOTICE)
        if callable(handler):
            self._lightnings = handler
            signal.signal(NOTICE, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._noted = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check whether a notice came; with several ranks only now and then, since they have to agree."""
        if not is_between_steps(trainer, batch_idx) or (trainer.world_size > 1 and trainer.global_step % AGREE_STEPS):
            return
        self._check(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check once more, now that the epoch was validated."""
        self._check(trainer)

    def _check(self, trainer: pl.Trainer) -> None:
        if self._lightnings is not None and trainer.strategy.reduce_boolean_decision(self._noted, all=False):
            self._noted = False
            self._lightnings(NOTICE, None)
            if trainer.is_global_zero:
                prune_requeue_checkpoints(Path(trainer.default_root_dir))


@contextmanager
def between_steps(trainer: pl.Trainer) -> Iterator[None]:
    """Heed Ctrl-C when a step is done, as Lightning does SIGTERM; a second one is heeded at once.

    Python's KeyboardInterrupt comes anywhere: between two weights that are updated, or in TensorBoard's queue, whose
    lock is then never released. So SIGTERM, which the command line heeds in that way, is left to Lightning alone. Where
    a signal is ignored or handled by others it stays so; several ranks are ended by Lightning, and a thread gets none.
    """

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        trainer._signal_connector.received_sigterm = True

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
