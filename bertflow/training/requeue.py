"""SLURM's notice that the job is about to end: taken at the end of a step, not in the middle of one.

Lightning's handler of SIGUSR1 writes a checkpoint and asks SLURM to run the job again (``scontrol requeue``). It would
run wherever the signal finds us: between two parameters that the optimizer updates, or while another rank waits for our
gradients. So the signal is only noted, and the handler called when a step is done, by all ranks at the same one.
"""

import signal
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl

from bertflow.training.checkpoints import prune_requeue_checkpoints, validation_follows

NOTICE = signal.SIGUSR1
AGREE_STEPS = 20
"""With several ranks, how often they ask one another whether a notice came."""


class RequeueBetweenSteps(pl.Callback):
    """Lets Lightning's handler wait for the end of a step; does nothing where Lightning has set none."""

    def __init__(self) -> None:
        self._lightnings: Any = None
        self._noted = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning has registered its handler by now, and puts the old ones back in the end."""
        handler = signal.getsignal(NOTICE)
        if callable(handler):
            self._lightnings = handler
            signal.signal(NOTICE, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._noted = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look whether a notice came; with several ranks only now and then, since they have to agree."""
        if validation_follows(trainer, batch_idx) or (trainer.world_size > 1 and batch_idx % AGREE_STEPS):
            return
        self._look(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look once more, now that the epoch was validated."""
        self._look(trainer)

    def _look(self, trainer: pl.Trainer) -> None:
        if self._lightnings is not None and trainer.strategy.reduce_boolean_decision(self._noted, all=False):
            self._noted = False
            self._lightnings(NOTICE, None)
            if trainer.is_global_zero:
                prune_requeue_checkpoints(Path(trainer.default_root_dir))
