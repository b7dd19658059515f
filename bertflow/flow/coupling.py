"""Couplings: the first half of the coordinates stays and determines how the second half moves.

The halves are contiguous, so they are views: no gathers. In an odd dimension the half that stays has one more.

The network inside a coupling has two hidden layers and a last one that starts at zero:

    h = relu(layer(x));   h = relu(layer(h))  or  tanh(layer(h)) * sigmoid(layer'(h));   out = last(h)

It need not be invertible. What a layer and the last layer are is a row of ``NETWORKS``: the released code's, in which
an ActNorm takes the place of the bias, or plain ones.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from nflows.transforms.base import Transform
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from bertflow.errors import UsageError, reason_of
from bertflow.flow.actnorm import ActNorm, times
from bertflow.flow.transforms import AbstractPart, Mapped
from bertflow.onednn import Linear, linear
from bertflow.registry import lookup

NetworkFactory = Callable[[int, int], nn.Module]
"""(width read, width made) -> a network."""
LEAST_LOG_SCALE = -10.0
"""Smallest log scale of an affine coupling; below it, far from the rows of the fit, the scale would vanish."""
LEAST_DEVIATION = 0.1
"""Smallest deviation of a hidden unit that is started from data, as a share of its layer's: noise is not blown up."""


class AbstractCoupling(AbstractPart):
    """The first half of the coordinates stays, and a network makes ``numbers`` of each of the second half."""

    numbers = 1

    def __init__(self, dim: int, network: NetworkFactory) -> None:
        super().__init__()
        self.halves = ((dim + 1) // 2, dim // 2)
        self.network = network(self.halves[0], self.numbers * self.halves[1])


class AdditiveCoupling(AbstractCoupling):
    """The second half is shifted by a function of the first; volume is kept.

    * Forward: z1 = x1, z2 = x2 + network(x1). Log-det: 0.
    * Inverse: x2 = z2 - network(z1).
    * Valid when: dim is at least 2.

    Source: Dinh et al. 2015, arXiv:1410.8516; bohanli/BERT-flow flow/glow_ops_1x1.py@7fa8f6d, additive_coupling.
    """

    def _forward(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        first, second = inputs.split(self.halves, 1)
        return torch.cat((first, second + self.network(first)), 1), 0.0

    def _inverse(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        first, second = inputs.split(self.halves, 1)
        return torch.cat((first, second - self.network(first)), 1), 0.0


class AffineCoupling(AbstractCoupling):
    """The second half is shifted and shrunk by functions of the first.

    * Forward: z1 = x1, z2 = (x2 + shift) * scale, with shift the even numbers that the network makes of x1, and scale
      the sigmoid of 2 plus the odd ones: below 1, 0.88 at the start, at least exp(``LEAST_LOG_SCALE``). Log-det:
      sum(log(scale)).
    * Inverse: x2 = z2 / scale - shift.
    * Valid when: dim is at least 2.

    Source: bohanli/BERT-flow flow/glow_ops_1x1.py@7fa8f6d, affine_coupling; no shipped config uses it. The least scale
    is ours.
    """

    numbers = 2

    def _shift_and_log_scale(self, first: Tensor) -> tuple[Tensor, Tensor]:
        made = self.network(first)
        return made[:, 0::2], logsigmoid(made[:, 1::2] + 2).clamp(min=LEAST_LOG_SCALE)

    def _forward(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        first, second = inputs.split(self.halves, 1)
        shift, log_scale = self._shift_and_log_scale(first)
        return torch.cat((first, (second + shift) * log_scale.exp()), 1), log_scale.sum(1)

    def _inverse(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        first, second = inputs.split(self.halves, 1)
        shift, log_scale = self._shift_and_log_scale(first)
        return torch.cat((first, second * (-log_scale).exp() - shift), 1), -log_scale.sum(1)


COUPLINGS: dict[str, Callable[[int, NetworkFactory], Transform]] = {
    "additive": AdditiveCoupling,
    "affine": AffineCoupling,
}
"""The couplings by the name a config uses."""


def make_coupling(name: str, dim: int, network: NetworkFactory) -> Transform:
    """The coupling of that name.

    Raises:
        UnknownNameError: If there is none.
        UsageError: If one of a user's own cannot be made so.
    """
    kind = lookup("coupling", COUPLINGS, name)
    try:
        inspect.signature(kind).bind(dim, network)
    except TypeError as error:
        said = f"The coupling {name} should be made of (dim, network), as docs/extend.md shows, but {reason_of(error)}."
        raise UsageError(f"{said} Change its __init__.") from None
    return kind(dim, network)


ACTIVATIONS = ("relu", "gatu")
"""The second activation: relu, or the gate tanh(a) sigmoid(b) of the released code."""


def _linear(dim_in: int, dim_out: int, bias: bool) -> Linear:
    """A linear layer whose numbers the caller sets: the global random state is not touched."""
    return nn.utils.skip_init(Linear, dim_in, dim_out, bias=bias)


class NormalizedLinear(nn.Module):
    """A linear layer without bias, N(0, 0.05), then ActNorm.

    Source: bohanli/BERT-flow flow/glow_ops_1x1.py@7fa8f6d, conv (1x1, on one position: a linear layer).
    """

    def __init__(self, dim_in: int, dim_out: int, factor: float, start: str, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = _linear(dim_in, dim_out, bias=False)
        nn.init.normal_(self.linear.weight, std=0.05, generator=generator)
        self.actnorm = ActNorm(dim_out, factor, start, generator)
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        """(n, dim_in) -> (n, dim_out)."""
        # ActNorm's shift is a bias: one operator instead of two, and no log-determinant, which is not needed here.
        log_scale = times(self.actnorm.factor, self.actnorm.log_scale)
        return linear(x, self.linear.weight, self.actnorm.shift) * log_scale.exp()

    def initialize(self, x: Tensor) -> None:
        """Start the ActNorm from the rows ``x`` (n, dim_in) that reach this layer."""
        self.actnorm.initialize(self.linear(x), LEAST_DEVIATION)


class ScaledLinear(nn.Module):
    """A linear layer that starts at zero, times exp(factor * log_scale).

    Source: bohanli/BERT-flow flow/glow_ops_1x1.py@7fa8f6d, conv with ``conv_init="zeros"``.
    """

    def __init__(self, dim_in: int, dim_out: int, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.linear = zero_linear(dim_in, dim_out, factor)
        self.log_scale = nn.Parameter(torch.zeros(dim_out))

    def forward(self, x: Tensor) -> Tensor:
        """(n, dim_in) -> (n, dim_out)."""
        return self.linear(x) * times(self.factor, self.log_scale).exp()


def plain_linear(dim_in: int, dim_out: int, factor: float, start: str, generator: torch.Generator) -> Linear:
    """A linear layer as PyTorch starts it: weights and bias uniform within 1/sqrt(dim_in)."""
    layer = _linear(dim_in, dim_out, bias=True)
    bound = 1 / math.sqrt(dim_in)
    for parameter in (layer.weight, layer.bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


def zero_linear(dim_in: int, dim_out: int, factor: float) -> Linear:
    """A linear layer that starts at zero."""
    layer = _linear(dim_in, dim_out, bias=True)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Layers(NamedTuple):
    """Makers of a hidden layer (dim_in, dim_out, factor, start, generator) and the last (dim_in, dim_out, factor)."""

    hidden: Callable[[int, int, float, str, torch.Generator], Linear | NormalizedLinear]
    last: Callable[[int, int, float], Linear | ScaledLinear]


NETWORKS: Mapping[str, Layers] = {
    "conv-stack": Layers(NormalizedLinear, ScaledLinear),
    "mlp": Layers(plain_linear, zero_linear),
}
"""The networks by the name a config uses; "conv-stack" is the released code's, whose convolutions see one position."""


class Network(nn.Module):
    """Two hidden layers and a last one that starts at zero, so that a coupling starts as the identity.

    Args:
        dim_in: Width of the coordinates it reads.
        dim_out: How many numbers it makes of them.
        hidden: Width of both hidden layers.
        kind: A row of ``NETWORKS``.
        activation: One of ``ACTIVATIONS``.
        factor: Factor of every log_scale inside, as in ``ActNorm``.
        start: Start of every ActNorm inside.
        generator: Draws the start.
    """

    def __init__(
        self,
        dim_in: int,
        dim_out: int,
        *,
        hidden: int,
        kind: str,
        activation: str,
        factor: float,
        start: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        lookup("activation", dict.fromkeys(ACTIVATIONS), activation)
        layers = lookup("network", NETWORKS, kind)
        self.first = layers.hidden(dim_in, hidden, factor, start, generator)
        self.second = layers.hidden(hidden, hidden, factor, start, generator)
        self.gate = layers.hidden(hidden, hidden, factor, start, generator) if activation == "gatu" else None
        self.last = layers.last(hidden, dim_out, factor)

    def forward(self, x: Tensor) -> Tensor:
        """(n, dim_in) -> (n, dim_out)."""
        h = torch.relu(self.first(x))
        second = self.second(h)
        h = torch.relu(second) if self.gate is None else torch.tanh(second) * torch.sigmoid(self.gate(h))
        return self.last(h)
