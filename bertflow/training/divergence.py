"""What stops a training whose loss is not finite, and the states of the flow that are known to be good."""

import math
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
from torch import Tensor

from bertflow.errors import DataError, how_many


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
    weights: dict[str, Tensor]
    bits: float | None = None


class KeepGoodStates(pl.Callback):
    """Stops a fit that diverges, and keeps states of the flow that are known to be good.

        start    as it was built, before any step: for a flow that starts from whitening, whitening
        checked  the last weights that gave a finite loss, looked at every ``log_every_n_steps`` steps
        best     the weights with the fewest held-out bits, among all validations

    The loss is looked at before the step that it leads to, so the weights that are kept are the ones that gave it.
    """

    def __init__(self) -> None:
        self.start: State | None = None
        self.checked: State | None = None
        self.best: State | None = None
        self._loss: Tensor | None = None

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        """Keep the flow as it was built; this runs before it is initialized from data."""
        if stage == "fit" and self.start is None:
            self.start = self.checked = State("start", copied(pl_module))

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """What was read from a checkpoint was good when it was written."""
        if trainer.global_step:
            self.checked = State(f"step {trainer.global_step}", copied(pl_module))

    def on_before_backward(self, trainer: pl.Trainer, pl_module: Any, loss: Tensor) -> None:
        """Check the loss when it is due; reading it waits for the device."""
        self._loss = loss.detach()
        if is_due(trainer):
            self.finite(trainer, pl_module, self._loss)
            self.checked = State(f"step {trainer.global_step}", copied(pl_module))

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, *which: Any) -> None:
        """Keep the weights if they are the best so far; where averaged weights are in place, those are kept."""
        bits = self.finite(trainer, pl_module, outputs)
        if self.best is None or bits < (math.inf if self.best.bits is None else self.best.bits):
            self.best = State(f"step {trainer.global_step}", copied(pl_module), bits)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """No checkpoint is written of weights that diverged."""
        if self._loss is not None:
            self.finite(trainer, pl_module, self._loss)

    def state_dict(self) -> dict[str, Any]:
        """The best state so far, for a checkpoint."""
        return {} if self.best is None else {"best": vars(self.best)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if "best" in state_dict:
            self.best = State(**state_dict["best"])

    def finite(self, trainer: pl.Trainer, pl_module: Any, loss: Tensor) -> float:
        """The loss; if it is not finite, the fit stops."""
        recipe, kept = pl_module.recipe, self.checked.name if self.checked else "start"
        advice = (
            f"Lower flow.learning_rate (it was {recipe.learning_rate:g}), lengthen flow.warmup_steps "
            f"({recipe.warmup_steps}), or keep fewer directions with flow.n_components. The last good state is: {kept}."
        )
        return finite_loss(trainer, loss, advice)


def finite_loss(trainer: pl.Trainer, loss: Tensor, advice: str) -> float:
    """The loss; all ranks stop if it is not finite on one of them, since else some would wait for others for ever.

    Raises:
        DivergenceError: If it is not; the message ends with ``advice``.
    """
    number = float(loss.detach())
    if not trainer.strategy.reduce_boolean_decision(math.isfinite(number), all=True):
        steps = how_many(trainer.global_step, "steps")
        raise DivergenceError(f"The loss should stay finite, but after {steps} it is {number}. {advice}")
    return number


def is_due(trainer: pl.Trainer) -> bool:
    """Whether this step is looked at: every ``log_every_n_steps``, never where that is 0."""
    every = getattr(trainer, "log_every_n_steps", 1)
    return every > 0 and (trainer.global_step + 1) % every == 0


def copied(module: Any) -> dict[str, Tensor]:
    """A copy of the flow's weights and buffers."""
    return {name: tensor.detach().clone() for name, tensor in module.flow.state_dict().items()}
