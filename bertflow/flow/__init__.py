"""Invertible maps with a log-determinant: a Glow for vectors. The one door to nflows.

Here: shape and start of a flow, as a configuration states them. Needs no torch, so that help and presets are instant.
"""

from dataclasses import dataclass

from bertflow.errors import UsageError
from bertflow.records import require_fields


@dataclass(frozen=True)
class GlowConfig:
    """Shape and start of a flow; each field says what the released code and the paper (arXiv:2011.05864) have.

    The defaults are ours: the flow they build is the identity before its first step, so on whitened rows it starts as
    whitening.

    Source: "released" is bohanli/BERT-flow@7fa8f6d, flow/config/config_l3_d3_w32.json, flow/glow_1x1.py and
    flow/glow_ops_1x1.py.
    """

    levels: int = 2
    """Number of levels; fewer where less than two coordinates would go on. Released: 3 (flag flow_model_config =
    config_l3_d3_w32). Paper: 2 (table 7)."""
    depth: int = 3
    """Number of steps in a level. Released and paper: 3."""
    hidden: int = 256
    """Width of the coupling networks. Released and paper: 32 (coupling_width)."""
    coupling: str = "additive"
    """Coupling: additive, or affine, which raises the likelihood and lowers Spearman. Released and paper: additive."""
    activation: str = "relu"
    """Second activation of the coupling networks: relu, or gatu = tanh(a) sigmoid(b). Released: relu."""
    permutation: str = "random"
    """Map between couplings: reversal, random, or the learned lu and lu-rotation, which take twice the time and give
    no better embedding. Released: reversal (``permutation: true``), or lu-rotation (false). Paper: random."""
    network: str = "mlp"
    """Coupling network: mlp, or the released conv-stack, with ActNorms inside. Paper: the latter in words (table 7,
    "3-layer CNN"), with a residual connection that the released code does not have."""
    actnorm_factor: float = 1.0
    """Factor of every logarithm of a scale. Released: 3 (logscale_factor)."""
    initialization: str = "identity"
    """Start of every ActNorm: identity, glorot or data. Released: glorot, since its start from data never runs. Paper:
    data, as in Glow."""
    restore_order: bool = True
    """Whether a level undoes its fixed reorderings at its end, so that coordinates end where they began. Released:
    no."""
    factored_first: bool = False
    """Whether z begins with the coordinates that were factored out. Released: yes (z = concat(eps_0, eps_1, ...,
    top))."""

    def __post_init__(self) -> None:
        require_fields(self, "glow", dict.fromkeys(("levels", "depth", "hidden"), 1))
        if not self.actnorm_factor > 0:
            raise UsageError(f"glow.actnorm_factor must be above 0, got {self.actnorm_factor}.")
