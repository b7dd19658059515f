"""A fitted flow as one map: an affine start, a Glow on its first coordinates, Gaussian levels for the rest.

    x  --affine-->  (first, rest)  --glow on the first-->  z_all = (z, rest),     embedding = the first k of z

Reduction keeps the mathematics: coordinates that the flow does not act on, and those that the embedding does not keep,
are factored out, as a Glow factors out half of its own. So the map stays invertible and its density is one of x, within
the span that the affine start keeps. A flow that acts on all coordinates and keeps k makes a better embedding than one
that acts on k: the coordinates that are left out also determine how the others move.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from bertflow.affine import AffineMap
from bertflow.errors import DataError, UsageError
from bertflow.flow.config import GlowConfig
from bertflow.flow.glow import Glow, build_glow, normal_log_prob, normal_sample


class FlowMap(nn.Module):
    """z = glow(affine(x)[:m])[:k], row by row.

    The flow works in the precision of its parameters: float32, or float64 after ``.double()``.

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
                f"The flow wants {glow.dim} coordinates, its affine start makes {affine.dim_out}. "
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
        z = z.to(self._like.dtype)
        z = torch.cat((z, z.new_zeros(z.shape[0], self.rank - z.shape[1])), 1)
        first, rest = z[:, : self.glow.dim], z[:, self.glow.dim :]
        return self.affine.inverse(torch.cat((self.glow.inverse(first)[0], rest), 1))

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density (n,) of the rows ``x`` (n, dim_in) within the kept span, in nats."""
        z, logabsdet = self.latent(x)
        return normal_log_prob(z) + logabsdet

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """``n`` rows x (n, dim_in) of the density."""
        return self.inverse(normal_sample(n, self.rank, self._like, generator))

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
