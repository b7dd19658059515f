"""Signals in a training: they are heeded between two steps.

SIGINT      Ctrl-C: the training stops, and a second one stops it at once
SIGTERM     the training stops; it is Lightning's
SIGUSR1     SLURM's notice: a checkpoint is written and the job runs again
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

import pytorch_lightning as pl

NOTICE: Any = getattr(signal, "SIGUSR1", None)  # Windows has none
AGREE_STEPS = 20
"""Steps between two checks of several ranks whether a notice came."""


class RequeueBetweenSteps(pl.Callback):
    """Delays Lightning's handler of SLURM's notice to the end of a step; does nothing where Lightning has set none.

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

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Check whether a notice came; with several ranks only now and then, since they have to agree."""
        if not (trainer.is_last_batch or (trainer.world_size > 1 and trainer.global_step % AGREE_STEPS)):
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
