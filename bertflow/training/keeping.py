"""What watches a fit: a loss that is not finite stops it, and states of the flow that are known to be good are kept.

    start    as it was built, before any step: for a flow that starts from whitening, whitening
    checked  the last weights that gave a finite loss, looked at every ``log_every_n_steps`` steps
    best     the weights with the fewest held-out bits, among all validations

The loss is looked at before the step that it leads to, so the weights that are kept are the ones that gave it.
"""

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from bertflow.errors import DataError

if TYPE_CHECKING:
    from bertflow.training.module import BertFlow

Weights = dict[str, Tensor]


class DivergenceError(DataError):
    """The loss, or the held-out likelihood, is no longer a finite number."""


@dataclass(frozen=True)
class State:
    """Weights of the flow that gave finite numbers.

    Attributes:
        name: "start", or "step 96": how many steps it had seen.
        weights: A copy of the flow's ``state_dict``.
        bits: Held-out bits per dimension; None where they were not computed.
    """

    name: str
    weights: Weights
    bits: float | None = None


class KeepGoodStates(pl.Callback):
    """Stops a fit that diverges, and remembers what was good before."""

    def __init__(self) -> None:
        self.start: State | None = None
        self.checked: State | None = None
        self.best: State | None = None
        self.seconds_before = 0.0
        self._begin: float | None = None
        self._loss: Tensor | None = None

    @property
    def seconds(self) -> float:
        """How long the training took so far, with what it took before it was resumed."""
        return self.seconds_before + (0.0 if self._begin is None else time.perf_counter() - self._begin)

    def setup(self, trainer: pl.Trainer, pl_module: "BertFlow", stage: str) -> None:  # type: ignore[override]
        """Remember the flow as it was built; this runs before it is initialized from data."""
        if stage == "fit" and self.start is None:
            self.start = self.checked = State("start", copied(pl_module))
        self._begin = time.perf_counter()

    def on_train_start(self, trainer: pl.Trainer, pl_module: "BertFlow") -> None:  # type: ignore[override]
        """What was read from a checkpoint was good when it was written."""
        if trainer.global_step:
            self.checked = State(f"step {trainer.global_step}", copied(pl_module))

    def on_before_backward(self, trainer: pl.Trainer, pl_module: "BertFlow", loss: Tensor) -> None:  # type: ignore[override]
        """Look at the loss when it is due; to look is to wait for the device."""
        self._loss = loss.detach()
        if is_due(trainer):
            self._require_finite(trainer, pl_module, self._loss)
            self.checked = State(f"step {trainer.global_step}", copied(pl_module))

    def on_validation_batch_end(  # type: ignore[override]
        self,
        trainer: pl.Trainer,
        pl_module: "BertFlow",
        outputs: Tensor,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the weights if they are the best so far; with averaged weights in place, those are what is kept."""
        self._require_finite(trainer, pl_module, outputs)
        bits = float(outputs)
        if self.best is None or bits < (math.inf if self.best.bits is None else self.best.bits):
            self.best = State(f"step {trainer.global_step}", copied(pl_module), bits)

    def on_save_checkpoint(  # type: ignore[override]
        self, trainer: pl.Trainer, pl_module: "BertFlow", checkpoint: dict[str, Any]
    ) -> None:
        """No checkpoint is written of weights that diverged."""
        if self._loss is not None:
            self._require_finite(trainer, pl_module, self._loss)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the best so far, and the time."""
        return {"seconds": self.seconds, **({} if self.best is None else {"best": vars(self.best)})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.seconds_before = state_dict["seconds"]
        if "best" in state_dict:
            self.best = State(**state_dict["best"])

    def _require_finite(self, trainer: pl.Trainer, pl_module: "BertFlow", loss: Tensor) -> None:
        # All ranks decide alike, or some would wait for others for ever.
        if trainer.strategy.reduce_boolean_decision(bool(torch.isfinite(loss)), all=True):
            return
        raise DivergenceError(self.message(pl_module, trainer.global_step, float(loss)))

    def message(self, module: "BertFlow", step: int, loss: float) -> str:
        """What was wanted, what was got, what to do."""
        recipe, kept = module.recipe, self.checked.name if self.checked else "start"
        return (
            f"The loss should stay finite, but after {step} steps it is {loss}. "
            f"Lower flow.learning_rate (it was {recipe.learning_rate:g}), lengthen flow.warmup_steps "
            f"({recipe.warmup_steps}), or keep fewer directions with flow.n_components. The last good state is: {kept}."
        )


def is_due(trainer: pl.Trainer) -> bool:
    """Whether this step is one of those that are looked at, every ``log_every_n_steps``; 0 is for never."""
    every = getattr(trainer, "log_every_n_steps", 1)
    return every > 0 and (trainer.global_step + 1) % every == 0


def copied(module: "BertFlow") -> Weights:
    """A copy of the flow's weights and buffers."""
    return {name: tensor.detach().clone() for name, tensor in module.flow.state_dict().items()}
