"""A Glow for vectors, built from nflows transforms.

    forward:  x -> z       logabsdet = log |det dz/dx|
    inverse:  z -> x

Each level is ``depth`` steps of ActNorm, mixing, coupling; then the second half of the coordinates is factored out as
Gaussian, and the first half goes on to the next level:

    x -> [step] * depth -> first half -> [step] * depth -> ... -> top
                               |                 |
                          second half       second half        z = all of these, N(0, 1) each

A fitted flow is one map, ``FlowMap``: an affine start, a Glow on its first coordinates, Gaussian levels for the rest.

    x  --affine-->  (first, rest)  --glow on the first-->  z_all = (z, rest),     embedding = the first k of z

Reduction keeps the mathematics: coordinates that the flow does not act on, and those that the embedding does not keep,
are factored out, as a Glow factors out half of its own. So the map stays invertible and its density is one of x, within
the span that the affine start keeps. A flow that acts on all coordinates and keeps k makes a better embedding than one
that acts on k: the coordinates that are left out also determine how the others move.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from nflows.transforms.base import Transform
from torch import Tensor, nn

from bertflow.affine import AffineMap
from bertflow.errors import DataError, UsageError, logger
from bertflow.flow import GlowConfig
from bertflow.flow.actnorm import ActNorm
from bertflow.flow.coupling import Network, make_coupling
from bertflow.flow.transforms import MIXINGS, Chain, Reordering, Split
from bertflow.registry import lookup

LOG_2PI = math.log(2 * math.pi)


class Glow(Transform):
    """The whole flow, from ``build_glow``. Its prior is N(0, I).

    * Forward, log-det, inverse: those of the levels, in order.
    * Valid when: rows are finite, float32 or float64 as the parameters are.
    """

    def __init__(self, dim: int, config: GlowConfig, flow: Transform) -> None:
        super().__init__()
        self.dim = dim
        self.config = config
        self.flow = flow

    def forward(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rows x (n, dim) -> z (n, dim) and log |det dz/dx| (n,).

        Raises:
            UsageError: If the rows are half precision: a log-determinant is a sum of hundreds of terms.
        """
        return self.flow(_exact(inputs), context)

    def inverse(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rows z (n, dim) -> x (n, dim) and log |det dx/dz| (n,)."""
        return self.flow.inverse(_exact(inputs), context)

    def log_prob(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Log density (n,) of the rows ``x`` (n, dim), in nats.

        Args:
            x: The rows.
            dtype: What the latents are squared in; by default as they come.
        """
        z, logabsdet = self(x)
        return normal_log_prob(z.to(dtype or z.dtype)) + logabsdet


def _exact(rows: Tensor) -> Tensor:
    """Rows that are not in half precision."""
    if rows.dtype in (torch.float16, torch.bfloat16):
        raise UsageError(f"The flow works in float32 or float64, got {rows.dtype}. Convert the rows with .float().")
    return rows


def normal_log_prob(z: Tensor) -> Tensor:
    """Log density (n,) of rows z (n, dim) under N(0, I), in nats."""
    return -0.5 * (z.square().sum(1) + z.shape[1] * LOG_2PI)


def bits_per_dim(log_prob: Tensor, dim: int) -> Tensor:
    """Nats a row -> bits a dimension, the lower the better; negative where the density is above one."""
    return -log_prob / (math.log(2) * dim)


def build_glow(dim: int, config: GlowConfig, seed: int = 0) -> Glow:
    """A flow of ``dim`` coordinates; the same for the same seed, and the global random state is not touched.

    Odd widths are split with one coordinate more in the half that goes on. Levels are capped where it would be alone.

    Args:
        dim: Width of the rows, at least 2.
        config: Shape and start.
        seed: Random seed for the permutations and the first weights.

    Raises:
        UsageError: If ``dim`` is below 2: a coupling needs one coordinate to move another.
        UnknownNameError: If the config names a part that does not exist.
    """
    if dim < 2:
        raise UsageError(f"A flow needs at least 2 dimensions, got {dim}. Keep more directions.")
    widths = [dim]
    while len(widths) < config.levels and widths[-1] > 2:
        widths.append((widths[-1] + 1) // 2)
    if len(widths) < config.levels:
        logger.warning("A flow of %d dimensions has room for %d levels, not %d.", dim, len(widths), config.levels)
    generator = torch.Generator().manual_seed(seed)
    levels = [_level(width, config, generator) for width in widths]
    flow = Chain(levels[-1])
    for parts, kept in zip(reversed(levels[:-1]), reversed(widths[1:]), strict=True):
        flow = Chain({**parts, "deeper": Split(flow, kept, config.factored_first)})
    return Glow(dim, config, flow)


def _level(dim: int, config: GlowConfig, generator: torch.Generator) -> dict[str, Transform]:
    """The steps of one level, by name; at their end the order is restored if the config says so."""
    network = partial(
        Network,
        hidden=config.hidden,
        kind=config.network,
        activation=config.activation,
        factor=config.actnorm_factor,
        start=config.initialization,
        generator=generator,
    )
    order = torch.arange(dim)
    parts: dict[str, Transform] = {}
    for step in range(config.depth):
        mixing, reordering = lookup("permutation", MIXINGS, config.permutation)(dim, generator)
        order = order[reordering]
        parts[f"step{step}"] = Chain(
            {
                "actnorm": ActNorm(dim, config.actnorm_factor, config.initialization, generator),
                "mixing": mixing,
                "coupling": make_coupling(config.coupling, dim, network),
            }
        )
    if config.restore_order:
        parts["restored"] = Reordering(order.argsort())
    return parts


class FlowMap(nn.Module):
    """z = glow(affine(x)[:m])[:k], row by row.

    The flow works in the precision of its parameters: float32, or float64 after ``.double()``. Its affine start and the
    sum of a density are float64 where the rows are.

    * Forward: (n, dim_in) -> (n, dim_out), whatever the precision of ``x``.
    * Log-det: of ``latent``, the log volume change within the kept span.
    * Inverse: exact on the kept span; coordinates that are not given are 0, their most likely value.
    * Valid when: the affine start is full rank within its span (whitening, or any invertible one) and rows are finite.

    Args:
        affine: The start, dim_in -> rank, most important coordinates first.
        glow: The flow of the first ``glow.dim`` of them.
        dim_out: Width k of the embedding; ``glow.dim`` by default.
    """

    affine_logabsdet: Tensor

    def __init__(self, affine: AffineMap, glow: Glow, dim_out: int | None = None) -> None:
        super().__init__()
        if glow.dim > affine.dim_out:
            raise UsageError(
                f"The flow needs {glow.dim} coordinates, but its affine start makes {affine.dim_out}. "
                "Build the flow for at most that many."
            )
        self.dim_out = glow.dim if dim_out is None else dim_out
        """Width k of the calibrated embeddings."""
        if not 1 <= self.dim_out <= glow.dim:
            raise UsageError(
                f"The embedding keeps {self.dim_out} of the flow's {glow.dim} coordinates. Keep from 1 to {glow.dim}."
            )
        self.affine = affine
        self.glow = glow
        # Once, since it is a matrix decomposition and asks the device for a number.
        self.register_buffer("affine_logabsdet", torch.tensor(affine.logabsdet, dtype=torch.float64))

    @property
    def dim_in(self) -> int:
        """Width of the embeddings."""
        return self.affine.dim_in

    @property
    def rank(self) -> int:
        """Width of the whole latent."""
        return self.affine.dim_out

    @property
    def _like(self) -> Tensor:
        return next(self.glow.parameters())

    def start(self, x: Tensor) -> Tensor:
        """Rows x (n, dim_in) -> the affine start (n, rank) that the flow sees the first ``glow.dim`` coordinates of."""
        return self.affine(x).to(self._like.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Rows x (n, dim_in) -> calibrated embeddings z (n, dim_out)."""
        return self.glow(self.start(x)[:, : self.glow.dim])[0][:, : self.dim_out]

    def latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x (n, dim_in) -> all of z (n, rank), and log |det dz/dx| (n,) within the kept span."""
        first, rest = self.start(x).split((self.glow.dim, self.rank - self.glow.dim), 1)
        z, logabsdet = self.glow(first)
        return torch.cat((z, rest), 1), logabsdet + self.affine_logabsdet.to(z.dtype)

    def inverse(self, z: Tensor) -> Tensor:
        """Rows z (n, dim_out) or (n, rank) -> x (n, dim_in).

        Raises:
            DataError: If z has another width.
        """
        if z.shape[1] not in (self.dim_out, self.rank):
            raise DataError(
                f"The inverse takes the {self.dim_out} coordinates of an embedding or all {self.rank} of the latent, "
                f"got {z.shape[1]}."
            )
        wide = torch.promote_types(z.dtype, self._like.dtype)
        z = z.to(self._like.dtype)
        z = torch.cat((z, z.new_zeros(z.shape[0], self.rank - z.shape[1])), 1)
        first, rest = z[:, : self.glow.dim], z[:, self.glow.dim :]
        return self.affine.inverse(torch.cat((self.glow.inverse(first)[0], rest), 1).to(wide))

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density (n,) of the rows ``x`` (n, dim_in) within the kept span, in nats."""
        first, rest = self.start(x).split((self.glow.dim, self.rank - self.glow.dim), 1)
        wide = torch.promote_types(x.dtype, first.dtype)  # squares need more range
        log_prob = self.glow.log_prob(first, wide) + self.affine_logabsdet.to(wide)
        return log_prob + normal_log_prob(rest.to(wide)) if rest.shape[1] else log_prob

    def spec(self) -> dict[str, Any]:
        """What ``from_spec`` needs, ready for JSON; the numbers themselves are the ``state_dict``."""
        return {
            "affine": self.affine.spec(),
            "glow": {"dim": self.glow.dim, "config": asdict(self.glow.config)},
            "dim_out": self.dim_out,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "FlowMap":
        """An empty map of the right shape, for ``load_state_dict``."""
        glow = build_glow(spec["glow"]["dim"], GlowConfig(**spec["glow"]["config"]))
        return cls(AffineMap.from_spec(spec["affine"]), glow, spec["dim_out"])
