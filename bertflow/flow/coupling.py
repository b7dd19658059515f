"""Couplings: the first half of the coordinates stays and says how the second half moves.

The halves are contiguous, so they are views: no gathers. In an odd dimension the half that stays has one more.
"""

from collections.abc import Callable, Mapping

import torch
from nflows.transforms.base import Transform
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from bertflow.flow.volume import LogAbsDet

NetworkFactory = Callable[[int, int], nn.Module]
"""(width read, width made) -> a network."""


class AdditiveCoupling(Transform):
    """The second half is shifted by a function of the first; volume is kept.

    * Forward: z1 = x1, z2 = x2 + network(x1). Log-det: 0.
    * Inverse: x2 = z2 - network(z1).
    * Valid when: dim is at least 2.

    Source: Dinh et al. 2015, arXiv:1410.8516; bohanli/BERT-flow flow/glow_ops_1x1.py@7fa8f6d, additive_coupling.
    """

    def __init__(self, dim: int, network: NetworkFactory) -> None:
        super().__init__()
        self.halves = ((dim + 1) // 2, dim // 2)
        self.network = network(*self.halves)

    def forward(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, LogAbsDet]:
        """Rows x -> z."""
        first, second = inputs.split(self.halves, 1)
        return torch.cat((first, second + self.network(first)), 1), 0.0

    def inverse(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, LogAbsDet]:
        """Rows z -> x."""
        first, second = inputs.split(self.halves, 1)
        return torch.cat((first, second - self.network(first)), 1), 0.0


class AffineCoupling(Transform):
    """The second half is shifted and shrunk by functions of the first.

    * Forward: z1 = x1, z2 = (x2 + shift) * scale, with shift the even numbers that the network makes of x1, and scale
      the sigmoid of 2 plus the odd ones: below 1, 0.88 at the start. Log-det: sum(log(scale)).
    * Inverse: x2 = z2 / scale - shift.
    * Valid when: dim is at least 2.

    Source: bohanli/BERT-flow flow/glow_ops_1x1.py@7fa8f6d, affine_coupling; no shipped config uses it.
    """

    def __init__(self, dim: int, network: NetworkFactory) -> None:
        super().__init__()
        self.halves = ((dim + 1) // 2, dim // 2)
        self.network = network(self.halves[0], 2 * self.halves[1])

    def _shift_and_log_scale(self, first: Tensor) -> tuple[Tensor, Tensor]:
        made = self.network(first)
        return made[:, 0::2], logsigmoid(made[:, 1::2] + 2)

    def forward(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, LogAbsDet]:
        """Rows x -> z."""
        first, second = inputs.split(self.halves, 1)
        shift, log_scale = self._shift_and_log_scale(first)
        return torch.cat((first, (second + shift) * log_scale.exp()), 1), log_scale.sum(1)

    def inverse(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, LogAbsDet]:
        """Rows z -> x."""
        first, second = inputs.split(self.halves, 1)
        shift, log_scale = self._shift_and_log_scale(first)
        return torch.cat((first, second * (-log_scale).exp() - shift), 1), -log_scale.sum(1)


COUPLINGS: Mapping[str, Callable[[int, NetworkFactory], Transform]] = {
    "additive": AdditiveCoupling,
    "affine": AffineCoupling,
}
"""The couplings by the name a config uses."""
