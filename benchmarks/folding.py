"""A fitted flow for inference alone: the same embeddings from fewer operators.

ActNorms need not be carried out. While y = p * scale + shift, the flow can go on with p: a coupling reads and writes p
through weights that scale and shift are folded into, and only the end makes y of it. So a step is a reordering (or one
matrix), a network without ActNorms, and a sum; the affine start is one matrix with all that comes before the first
coupling. Folded in float64, run in the precision of the flow. There is no log-determinant and no inverse.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from nflows.transforms.base import Transform
from torch import Tensor, nn

from bertflow.flow.actnorm import ActNorm
from bertflow.flow.coupling import AdditiveCoupling, AffineCoupling, Network, NormalizedLinear, ScaledLinear
from bertflow.flow.glow import FlowMap
from bertflow.flow.transforms import Chain, LULinear, Reordering, Split
from bertflow.onednn import Linear


@torch.no_grad()
def fold(flow: FlowMap) -> nn.Module:
    """Rows x (n, dim_in) -> z (n, dim_out) as ``flow`` makes them, up to rounding; the weights are copies."""
    like, exact = next(flow.glow.parameters()), copy.deepcopy(flow).cpu().double()
    weight = exact.affine.weight[:, : flow.glow.dim]
    waiting = Waiting(weight, torch.ones_like(weight[0]), torch.zeros_like(weight[0]))
    # The mean is taken off first: in a narrow cone it is far longer than what is left.
    stages = [Centered(exact.affine.shift), *stages_of(exact.glow.flow, waiting), *waiting.carry_out()]
    return nn.Sequential(*stages, First(flow.dim_out)).to(like).eval().requires_grad_(False)


@dataclass
class Waiting:
    """What is still to be done to p: y = (p @ matrix) * scale + shift, where no matrix is the identity."""

    matrix: Tensor | None
    scale: Tensor
    shift: Tensor

    def carry_out(self) -> Iterator[nn.Module]:
        """Do all of it; afterwards nothing is waiting."""
        if self.matrix is not None:
            yield linear(self.scale[:, None] * self.matrix.T, self.shift)
        else:
            yield Scaled(self.scale, self.shift)
        self.matrix, self.scale, self.shift = None, torch.ones_like(self.scale), torch.zeros_like(self.shift)


def _actnorm(part: ActNorm, waiting: Waiting) -> Iterator[nn.Module]:
    scale = (part.factor * part.log_scale).exp()
    waiting.scale, waiting.shift = waiting.scale * scale, (waiting.shift + part.shift) * scale
    yield from ()


def _reordering(part: Reordering, waiting: Waiting) -> Iterator[nn.Module]:
    order = part(torch.arange(len(waiting.scale))[None])[0][0]
    waiting.scale, waiting.shift = waiting.scale[order], waiting.shift[order]
    if waiting.matrix is None:
        yield Reordered(order)
    else:
        waiting.matrix = waiting.matrix[:, order]


def _lu(part: LULinear, waiting: Waiting) -> Iterator[nn.Module]:
    weight = part(torch.eye(len(waiting.scale)).to(waiting.scale))[0]
    before = waiting.scale.diag() if waiting.matrix is None else waiting.matrix * waiting.scale
    waiting.matrix, waiting.scale, waiting.shift = (
        before @ weight,
        torch.ones_like(waiting.scale),
        waiting.shift @ weight,
    )
    yield from ()


def _additive(part: AdditiveCoupling, waiting: Waiting) -> Iterator[nn.Module]:
    if waiting.matrix is not None:
        yield from waiting.carry_out()
    (scale, moved), (shift, _) = waiting.scale.split(part.halves), waiting.shift.split(part.halves)
    yield Shifted(part.halves, folded_network(part.network, scale, shift, 1 / moved))


def _affine(part: AffineCoupling, waiting: Waiting) -> Iterator[nn.Module]:
    yield from waiting.carry_out()
    yield Forward(part)


def _chain(part: Chain, waiting: Waiting) -> Iterator[nn.Module]:
    for child in part.children():
        yield from stages_of(child, waiting)


def _split(part: Split, waiting: Waiting) -> Iterator[nn.Module]:
    if waiting.matrix is not None:
        yield from waiting.carry_out()
    kept = Waiting(None, waiting.scale[: part.kept], waiting.shift[: part.kept])
    inner = nn.Sequential(*stages_of(part.inner, kept), *kept.carry_out())
    rest = Scaled(waiting.scale[part.kept :], waiting.shift[part.kept :])
    waiting.scale, waiting.shift = torch.ones_like(waiting.scale), torch.zeros_like(waiting.shift)
    yield Parted(part.kept, inner, rest, part.factored_first)


FOLDED: Mapping[type[Transform], Callable[..., Iterator[nn.Module]]] = {
    ActNorm: _actnorm,
    AdditiveCoupling: _additive,
    AffineCoupling: _affine,
    Chain: _chain,
    LULinear: _lu,
    Reordering: _reordering,
    Split: _split,
}
"""For each transform, the modules that are left of it."""


def stages_of(part: nn.Module, waiting: Waiting) -> Iterator[nn.Module]:
    """What is left of a transform, with ``waiting`` before it; changes what is waiting after it."""
    return FOLDED[type(part)](part, waiting)


def folded_network(network: nn.Module, scale: Tensor, shift: Tensor, out: Tensor) -> nn.Module:
    """Coordinates p -> network(p * scale + shift) * out, its ActNorms in its weights."""
    assert isinstance(network, Network)
    first, last = folded_linear(network.first), folded_linear(network.last)
    first.bias.add_(first.weight @ shift)
    first.weight.mul_(scale)
    last.weight.mul_(out[:, None])
    last.bias.mul_(out)
    hidden: nn.Module = nn.Sequential(folded_linear(network.second), nn.ReLU())
    if network.gate is not None:
        hidden = Gated(folded_linear(network.second), folded_linear(network.gate))
    return nn.Sequential(first, nn.ReLU(), hidden, last)


def folded_linear(layer: nn.Module) -> Linear:
    """A layer of a network as a plain one with a bias, of its own."""
    if isinstance(layer, NormalizedLinear):
        scale = (layer.actnorm.factor * layer.actnorm.log_scale).exp()
        return linear(layer.linear.weight * scale[:, None], layer.actnorm.shift * scale)
    if isinstance(layer, ScaledLinear):
        scale = (layer.factor * layer.log_scale).exp()
        layer = layer.linear
    else:
        scale = torch.ones((), dtype=torch.float64)
    assert isinstance(layer, nn.Linear)
    return linear(layer.weight * scale[..., None], layer.bias * scale)


def linear(weight: Tensor, bias: Tensor) -> Linear:
    """Rows x -> x @ weight.T + bias."""
    made = nn.utils.skip_init(Linear, weight.shape[1], weight.shape[0], dtype=weight.dtype)
    made.weight.copy_(weight)
    made.bias.copy_(bias)
    return made


class Centered(nn.Module):
    """x -> x - mean, in the precision of x; what comes out has that of the flow."""

    mean: Tensor

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)

    def forward(self, x: Tensor) -> Tensor:
        """(n, dim) -> (n, dim)."""
        return (x - self.mean).to(self.mean.dtype)


class Scaled(nn.Module):
    """p -> p * scale + shift."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, p: Tensor) -> Tensor:
        """(n, dim) -> (n, dim)."""
        return torch.addcmul(self.shift, p, self.scale)


class Reordered(nn.Module):
    """p -> p[:, order]."""

    order: Tensor

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        self.register_buffer("order", order)

    def forward(self, p: Tensor) -> Tensor:
        """(n, dim) -> (n, dim)."""
        return p.index_select(1, self.order)


class Shifted(nn.Module):
    """The second half is shifted by a function of the first."""

    def __init__(self, halves: tuple[int, int], network: nn.Module) -> None:
        super().__init__()
        self.halves, self.network = halves, network

    def forward(self, p: Tensor) -> Tensor:
        """(n, dim) -> (n, dim)."""
        first, second = p.split(self.halves, 1)
        return torch.cat((first, second + self.network(first)), 1)


class Gated(nn.Module):
    """h -> tanh(second(h)) * sigmoid(gate(h))."""

    def __init__(self, second: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.second, self.gate = second, gate

    def forward(self, h: Tensor) -> Tensor:
        """(n, hidden) -> (n, hidden)."""
        return torch.tanh(self.second(h)) * torch.sigmoid(self.gate(h))


class Parted(nn.Module):
    """The first coordinates go on, the others are done."""

    def __init__(self, kept: int, inner: nn.Module, rest: nn.Module, factored_first: bool) -> None:
        super().__init__()
        self.kept, self.inner, self.rest, self.factored_first = kept, inner, rest, factored_first

    def forward(self, p: Tensor) -> Tensor:
        """(n, dim) -> (n, dim)."""
        kept, rest = self.inner(p[:, : self.kept]), self.rest(p[:, self.kept :])
        return torch.cat((rest, kept) if self.factored_first else (kept, rest), 1)


class Forward(nn.Module):
    """A transform without its log-determinant."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, p: Tensor) -> Tensor:
        """(n, dim) -> (n, dim)."""
        return self.transform(p)[0]


class First(nn.Module):
    """The first coordinates alone."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, p: Tensor) -> Tensor:
        """(n, dim_in) -> (n, dim)."""
        return p[:, : self.dim]
