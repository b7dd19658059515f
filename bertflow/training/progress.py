"""One bar for a whole training, with the time that is left; Lightning's own starts anew with every epoch.

On stderr, and only where somebody looks: in the log of a job it would be a line a step.
"""

import math
import sys
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bertflow.training.module import planned_steps

COLUMNS = (
    TextColumn("training"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(),
    TextColumn("{task.fields[bits]}"),
)


class WholeRunBar(ProgressBar):
    """Steps done of all steps, from where a run was resumed, and the held-out bits."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = sys.stderr.isatty()
        self._progress: Progress | None = None

    def enable(self) -> None:
        """Show it after all."""
        self._shown = True

    def disable(self) -> None:
        """Show nothing, as on all ranks but one."""
        self._shown = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin; without a limit on the steps the end is not known."""
        steps = planned_steps(trainer)
        self._progress = Progress(*COLUMNS, console=Console(stderr=True), disable=not self._shown)
        total = None if math.isinf(steps) else steps
        self._task = self._progress.add_task("training", total=total, completed=trainer.global_step, bits="")
        self._progress.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """One more step, or part of one."""
        if self._progress and self._shown:
            self._progress.update(self._task, completed=trainer.global_step)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show how good the flow is by now."""
        bits = trainer.callback_metrics.get("val/bits_per_dim")
        if self._progress and bits is not None:
            self._progress.update(self._task, bits=f"held out {float(bits):.4f} bits per dimension")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """End, after a training that came to its end."""
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """End, after one that did not."""
        self._stop()

    def _stop(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None
