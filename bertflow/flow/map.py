"""A fitted flow as one map: an affine start, a Glow on its first k coordinates, Gaussian levels for the rest.

    x  --affine-->  (first k, rest)  --glow on the first k-->  z_all = (z, rest),     embedding = z

Reduction keeps the mathematics: the coordinates beyond the first k are factored out, as a Glow factors out half of its
own, so the map stays invertible and its density is one of x, within the span that the affine start keeps.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from bertflow.affine import AffineMap
from bertflow.errors import DataError, UsageError
from bertflow.flow.glow import Glow, GlowConfig, build_glow, normal_log_prob, normal_sample


class FlowMap(nn.Module):
    """z = glow(affine(x)[:k]), row by row.

    The flow works in the precision of its parameters: float32, or float64 after ``.double()``.

    * Forward: (n, dim_in) -> (n, dim_out), whatever the precision of ``x``.
    * Log-det: of ``latent``, the log volume change within the kept span.
    * Inverse: exact on the kept span; coordinates that are not given are 0, their most likely value.
    * Valid when: the affine start is full rank within its span (whitening, or any invertible one) and rows are finite.

    Args:
        affine: The start, dim_in -> rank, most important coordinates first.
        glow: The flow of the first ``glow.dim`` of them.
    """

    affine_logabsdet: Tensor

    def __init__(self, affine: AffineMap, glow: Glow) -> None:
        super().__init__()
        if glow.dim > affine.dim_out:
            raise UsageError(
                f"The flow wants {glow.dim} coordinates, its affine start makes {affine.dim_out}. "
                "Build the flow for at most that many."
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
    def dim_out(self) -> int:
        """Width k of the calibrated embeddings."""
        return self.glow.dim

    @property
    def rank(self) -> int:
        """Width of the whole latent."""
        return self.affine.dim_out

    @property
    def _like(self) -> Tensor:
        return next(self.glow.parameters())

    def start(self, x: Tensor) -> Tensor:
        """Rows x (n, dim_in) -> the affine start (n, rank) that the flow sees the first k coordinates of."""
        return self.affine(x).to(self._like.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Rows x (n, dim_in) -> calibrated embeddings z (n, dim_out)."""
        return self.glow(self.start(x)[:, : self.dim_out])[0]

    def latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows x (n, dim_in) -> all of z (n, rank), and log |det dz/dx| (n,) within the kept span."""
        first, rest = self.start(x).split((self.dim_out, self.rank - self.dim_out), 1)
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
        first, rest = z[:, : self.dim_out], z[:, self.dim_out :]
        start = self.glow.inverse(first)[0]
        missing = self.rank - z.shape[1]
        return self.affine.inverse(torch.cat((start, rest, z.new_zeros(z.shape[0], missing)), 1))

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
        return {"affine": self.affine.spec(), "glow": {"dim": self.glow.dim, "config": asdict(self.glow.config)}}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "FlowMap":
        """An empty map of the right shape, for ``load_state_dict``."""
        glow = build_glow(spec["glow"]["dim"], GlowConfig(**spec["glow"]["config"]))
        return cls(AffineMap.from_spec(spec["affine"]), glow)
