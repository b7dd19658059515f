"""ActNorm: one shift and one scale a coordinate, initialized only where the caller says so.

    forward:  z = (x + shift) * exp(factor * log_scale)       logabsdet = factor * sum(log_scale)
    inverse:  x = z * exp(-factor * log_scale) - shift

nflows' ActNorm initializes itself from the first batch that it is trained on: a different one on each rank, infinite
for a constant coordinate, NaN for a single row. Here the initialization from data is a call, ``initialize``, and a
forward pass does not check for it.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bertflow.affine import NULL_SHARE
from bertflow.errors import DataError, UsageError
from bertflow.flow.transforms import AbstractPart, Mapped
from bertflow.registry import lookup

EPS = 1e-6
"""Term added to the standard deviation. Source: bohanli/BERT-flow flow/glow_ops_1x1.py, actnorm_scale."""

STARTS: Mapping[str, str] = {
    "identity": "shift 0 and scale 1",
    "glorot": "shift and log_scale uniform within sqrt(6 / (1 + dim))",
    "data": "mean 0 and variance 1 on the rows given to initialize()",
}
"""How an ActNorm may start."""


class ActNorm(AbstractPart):
    """z = (x + shift) * exp(factor * log_scale), coordinate by coordinate.

    * Forward, log-det, inverse: see the file's head.
    * Valid when: finite. With ``start="data"`` it is the identity until ``initialize``.

    Args:
        dim: Width of the rows.
        factor: Multiplies the logarithm of the scale; with Adam, the scale moves ``factor`` times as fast.
        start: A row of ``STARTS``.
        generator: Draws the glorot start.

    Source: Kingma & Dhariwal 2018, arXiv:1807.03039, section 3.1; factor 3 and the glorot start from
    bohanli/BERT-flow flow/glow_ops_1x1.py@7fa8f6d, where the start from data is built but never run.
    """

    initialized: Tensor

    def __init__(
        self, dim: int, factor: float = 1.0, start: str = "identity", generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        lookup("initialization", STARTS, start)
        self.factor = factor
        self.start = start
        self.shift = nn.Parameter(torch.zeros(dim))
        self.log_scale = nn.Parameter(torch.zeros(dim))
        self.register_buffer("initialized", torch.tensor(start != "data"))
        if start == "glorot":
            # TensorFlow's default for a variable of shape (1, 1, 1, dim): one input, dim outputs.
            bound = math.sqrt(6 / (1 + dim))
            for parameter in (self.shift, self.log_scale):
                nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def _forward(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        log_scale = times(self.factor, self.log_scale)
        return (inputs + self.shift) * log_scale.exp(), log_scale.sum()

    def _inverse(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        log_scale = times(self.factor, self.log_scale)
        return inputs * (-log_scale).exp() - self.shift, -log_scale.sum()

    @torch.no_grad()
    def initialize(self, x: Tensor, least: float = 0.0) -> None:
        """Make mean 0 and variance 1 out of the rows ``x`` (n, dim); a coordinate without variance is only centered.

        Without variance means a standard deviation below ``NULL_SHARE`` of the root mean square norm, as everywhere.

        Args:
            x: The rows.
            least: Standard deviations count at least as this share of their root mean square, so that no coordinate is
                blown up much more than the others.

        Raises:
            DataError: If there are fewer than two rows.
        """
        if len(x) < 2:
            raise DataError(f"A flow starts from at least 2 rows, got {len(x)}. Give it more sentences.")
        x = x.double()  # or the rounding of the mean of a constant coordinate looks like variance
        mean = x.mean(0)
        deviation = (x - mean).square().mean(0).sqrt()
        varies = deviation > NULL_SHARE * x.square().sum(1).mean().sqrt()
        deviation = deviation.clamp(min=least * deviation.square().mean().sqrt())
        log_scale = torch.where(varies, -(deviation + EPS).log(), 0.0) / self.factor
        self.shift.copy_(-mean)
        self.log_scale.copy_(log_scale)
        self.initialized.fill_(True)


def times(factor: float, log_scale: Tensor) -> Tensor:
    """Factor * log_scale; a factor of 1 costs no operator."""
    return log_scale if factor == 1 else factor * log_scale


def initialize(transform: nn.Module, x: Tensor) -> None:
    """Start every ActNorm inside ``transform`` that needs data, each from the rows ``x`` as they reach it.

    One pass, in order: the first sees ``x`` (n, dim), the last the output of the others. A transform whose start needs
    no data is left as it is. Give the same rows on every rank: nothing is communicated.

    Raises:
        DataError: If there are fewer than two rows, or one holds a NaN or infinity.
        UsageError: If it was already started from data.
    """
    starting: list[Any] = [part for part in transform.modules() if getattr(part, "start", "") == "data"]
    waiting = [part for part in starting if isinstance(part, ActNorm)]
    if not waiting:
        return
    if any(part.initialized for part in waiting):
        raise UsageError("This flow was started from data before, and that is done once. Build a new one.")
    if not x.isfinite().all():
        row = int((~x.isfinite()).any(1).nonzero()[0])
        raise DataError(f"A flow starts from finite rows, but row {row} holds a NaN or infinity. Leave it out.")
    hooks = [part.register_forward_pre_hook(lambda part, inputs: part.initialize(inputs[0])) for part in starting]
    try:
        with torch.no_grad():
            transform(x.to(waiting[0].shift))
    finally:
        for hook in hooks:
            hook.remove()
