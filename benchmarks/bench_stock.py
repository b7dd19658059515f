"""What our flow is measured against: the same mathematics from nflows' own parts; a plain port of the released code.

``stock_of`` makes the flow of nflows' ActNorm, Permutation, LULinear, AdditiveCouplingTransform, CompositeTransform and
MultiscaleCompositeTransform, with the numbers of ours: both give the same log-likelihood, which a test holds to 1e-10.
``PlainPort`` is the released flow as one would write it down in PyTorch, reading it line by line, ``PlainAdamW`` its
optimizer, and ``plain_loop`` the whole job around them.
"""

import math
from collections.abc import Sequence

import torch
from nflows.distributions.normal import StandardNormal
from nflows.flows import Flow
from nflows.transforms import ActNorm, AdditiveCouplingTransform, CompositeTransform, LULinear
from nflows.transforms.base import MultiscaleCompositeTransform, Transform
from nflows.transforms.permutations import Permutation
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from bertflow.encoder.architecture import quiet_transformers
from bertflow.flow.glow import Glow
from bertflow.flow.transforms import Chain, Split


class WithContext(nn.Module):
    """A network that is given a context, and does not need it: nflows' couplings pass one."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """(n, dim_in) -> (n, dim_out)."""
        made: Tensor = self.network(x)
        return made


def stock_of(glow: Glow, cached: bool = False) -> Flow:
    """The flow of nflows' parts that equals ``glow``: additive couplings, an even width.

    The networks of the couplings are shared with ``glow``, so both take the same matrix products; deepcopy it first to
    train both.

    Args:
        glow: Of any preset.
        cached: Whether LULinear keeps its matrix between calls in eval mode.
    """
    level: nn.Module | None = glow.flow
    transforms = MultiscaleCompositeTransform(glow.config.levels)
    width = glow.dim
    while level is not None:
        parts = dict(level.named_children())
        deeper = parts.pop("deeper", None)
        steps: list[Transform] = [
            made for part in parts.values() for made in (_step if isinstance(part, Chain) else _mixing)(part, cached)
        ]
        if deeper is not None:
            assert isinstance(deeper, Split)
            # Theirs lets the first half go and passes the second on; ours the other way round.
            steps.append(Permutation(torch.arange(width).roll(width // 2)))
        transforms.add_transform(CompositeTransform(steps), (width,))
        level, width = (None, 0) if deeper is None else (deeper.inner, deeper.kept)
    return Flow(transforms, StandardNormal([glow.dim]))


def _step(step: Chain, cached: bool) -> list[Transform]:
    ours, mixing, coupling = (dict(step.named_children())[name] for name in ("actnorm", "mixing", "coupling"))
    dim = len(ours.shift)
    actnorm = ActNorm(dim).to(ours.shift)
    mask = (torch.arange(dim) >= coupling.halves[0]).int()
    additive = AdditiveCouplingTransform(mask, lambda dim_in, dim_out: WithContext(coupling.network))
    with torch.no_grad():
        log_scale = ours.factor * ours.log_scale
        actnorm.log_scale.copy_(log_scale)
        actnorm.shift.copy_(ours.shift * log_scale.exp())
        actnorm.initialized.fill_(True)
    return [actnorm, *_mixing(mixing, cached), additive]


@torch.no_grad()
def _mixing(ours: nn.Module, cached: bool) -> list[Transform]:
    if isinstance(ours, Permutation):
        return [Permutation(ours._permutation)]
    dim = len(ours.permutation)
    lu = LULinear(dim, using_cache=cached).to(ours.factors)
    # Ours is x L U with L's diagonal 1; theirs x U' L', where the second has it.
    diagonal = ours.signs * ours.factors.diagonal().exp()
    lower = (ours.factors.tril(-1) + torch.eye(dim).to(diagonal)) * diagonal
    upper = (ours.factors.triu(1) + diagonal.diag()) / diagonal[:, None]
    lu.upper_entries.copy_(lower.T[lu.upper_indices[0], lu.upper_indices[1]])
    lu.lower_entries.copy_(upper.T[lu.lower_indices[0], lu.lower_indices[1]])
    lu.unconstrained_upper_diag.copy_((diagonal.double() - lu.eps).expm1().log())
    return [Permutation(ours.permutation), lu]


class PlainActNorm(nn.Module):
    """z = (x + b) * exp(3 logs), and its log-determinant."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.b, self.logs = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x -> z."""
        x = x + self.b
        logs = self.logs * 3.0
        return x * torch.exp(logs), torch.sum(logs)


class PlainStack(nn.Module):
    """conv, actnorm, relu; conv, actnorm, relu; conv that starts at zero: on one position, matrix products."""

    def __init__(self, dim_in: int, hidden: int, dim_out: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(0.05 * torch.randn(n, hidden)) for n in (dim_in, hidden))
        self.norms = nn.ModuleList(PlainActNorm(hidden) for _ in range(2))
        self.last, self.bias = nn.Parameter(torch.zeros(hidden, dim_out)), nn.Parameter(torch.zeros(dim_out))
        self.logs = nn.Parameter(torch.zeros(dim_out))

    def forward(self, x: Tensor) -> Tensor:
        """(n, dim_in) -> (n, dim_out)."""
        x, _ = self.norms[0](x @ self.first)
        x, _ = self.norms[1](torch.relu(x) @ self.second)
        x = torch.relu(x) @ self.last
        x = x + self.bias
        return x * torch.exp(self.logs * 3.0)


class PlainPort(nn.Module):
    """The released flow, 3 levels of 3 steps, as its code reads.

    Source: bohanli/BERT-flow flow/glow_1x1.py and flow/glow_ops_1x1.py@7fa8f6d.
    """

    def __init__(self, dim: int, levels: int = 3, depth: int = 3, hidden: int = 32) -> None:
        super().__init__()
        widths = [dim // 2**level for level in range(levels)]
        self.norms = nn.ModuleList(nn.ModuleList(PlainActNorm(width) for _ in range(depth)) for width in widths)
        self.stacks = nn.ModuleList(
            nn.ModuleList(PlainStack(width // 2, hidden, width // 2) for _ in range(depth)) for width in widths
        )

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density (n,) of the rows x (n, dim), in nats."""
        objective, factored = torch.zeros(x.shape[0]), []
        for level, (norms, stacks) in enumerate(zip(self.norms, self.stacks, strict=True)):
            for norm, stack in zip(norms, stacks, strict=True):
                x, logdet = norm(x)
                objective = objective + logdet
                x = torch.flip(x, [1])
                x1, x2 = torch.chunk(x, 2, dim=1)
                x = torch.cat([x1, x2 + stack(x1)], dim=1)
            if level < len(self.norms) - 1:
                x, z = torch.chunk(x, 2, dim=1)
                objective = objective + self._prior(z)
                factored.append(z)
        return objective + self._prior(x)

    @staticmethod
    def _prior(z: Tensor) -> Tensor:
        return torch.sum(-0.5 * (math.log(2 * math.pi) + z**2), dim=1)


class PlainAdamW:
    """The released optimizer as its code reads: a loop over the variables, each clipped, moved and assigned.

    Source: bohanli/BERT-flow optimization_bert_flow.py@7fa8f6d.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float = 1e-3) -> None:
        self.parameters, self.lr = parameters, lr
        self.m, self.v = ([torch.zeros_like(parameter) for parameter in parameters] for _ in range(2))

    @torch.no_grad()
    def step(self) -> None:
        """One step, and the gradients are gone."""
        gradients = [parameter.grad for parameter in self.parameters]
        norm = torch.sqrt(torch.stack([torch.sum(gradient**2) for gradient in gradients]).sum())
        share = torch.clamp(1.0 / norm, max=1.0)
        for parameter, gradient, m, v in zip(self.parameters, gradients, self.m, self.v, strict=True):
            gradient = gradient * share
            next_m = 0.9 * m + 0.1 * gradient
            next_v = 0.999 * v + 0.001 * gradient**2
            update = next_m / (torch.sqrt(next_v) + 1e-6)
            update = update + 0.01 * parameter
            parameter.copy_(parameter - self.lr * update)
            m.copy_(next_m)
            v.copy_(next_v)
            parameter.grad = None


def plain_loop(folder: str, sentences: Sequence[str], batch: int = 64, max_length: int = 64) -> PlainPort:
    """The whole job as one writes it down: load, one epoch that encodes on the fly, dropout on, and a flow is fitted.

    Source: UKPLab/pytorch-bertflow README and tfm_flow@main ("first-last-avg" as the released code has it), with the
    released optimizer.
    """
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with quiet_transformers():
        encoder = AutoModel.from_pretrained(folder).train()
    flow = PlainPort(encoder.config.hidden_size)
    optimizer = PlainAdamW(list(flow.parameters()))
    order = torch.randperm(len(sentences)).tolist()
    for start in range(0, len(order), batch):
        text = [sentences[row] for row in order[start : start + batch]]
        inputs = tokenizer(text, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
        with torch.no_grad():
            layers = encoder(**inputs, output_hidden_states=True).hidden_states
        mask = inputs["attention_mask"].unsqueeze(-1)
        x = ((layers[1] + layers[-1]) / 2 * mask).sum(1) / mask.sum(1)
        (-flow.log_prob(x).mean() / x.shape[1]).backward()
        optimizer.step()
    return flow
