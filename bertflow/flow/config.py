"""Shape and start of a flow, as a configuration states them. Needs no torch, so that help and presets are instant."""

from dataclasses import dataclass

from bertflow.errors import UsageError


@dataclass(frozen=True)
class GlowConfig:
    """Shape and start of a flow; each field says what the released code and the paper (arXiv:2011.05864) have.

    The defaults are ours: the flow they build is the identity before its first step, so on whitened rows it starts as
    whitening.

    Source: "released" is bohanli/BERT-flow@7fa8f6d, flow/config/config_l3_d3_w32.json, flow/glow_1x1.py and
    flow/glow_ops_1x1.py.
    """

    levels: int = 2
    """Levels. Released: 3 (flag flow_model_config = config_l3_d3_w32). Paper: 2 (table 7). Capped where fewer than two
    coordinates would go on."""
    depth: int = 3
    """Steps a level. Released and paper: 3."""
    hidden: int = 256
    """Width of the coupling networks. Released and paper: 32 (coupling_width)."""
    coupling: str = "additive"
    """A row of ``COUPLINGS``. Released and paper: additive; affine raises the likelihood and lowers Spearman."""
    activation: str = "relu"
    """Second activation of the coupling networks: relu, or gatu = tanh(a) sigmoid(b). Released: relu."""
    permutation: str = "random"
    """A row of ``MIXINGS``; a learned map takes twice the time and makes no better embedding. Released: reversal
    (``permutation: true``), or lu-rotation (false). Paper: random."""
    network: str = "mlp"
    """A row of ``NETWORKS``. Released: conv-stack, the ActNorms inside the networks included. Paper: the same in words
    (table 7, "3-layer CNN"), with a residual connection that the released code does not have."""
    actnorm_factor: float = 1.0
    """Multiplies every logarithm of a scale. Released: 3 (logscale_factor)."""
    initialization: str = "identity"
    """Start of every ActNorm, a row of ``STARTS``. Released: glorot, since its start from data never runs. Paper: data,
    by way of Glow."""
    restore_order: bool = True
    """Undo a level's fixed reorderings at its end, so that coordinates end where they began. Released: no."""
    factored_first: bool = False
    """Order of z: what was factored out before what went on. Released: yes (z = concat(eps_0, eps_1, ..., top))."""

    def __post_init__(self) -> None:
        for name in ("levels", "depth", "hidden"):
            if getattr(self, name) < 1:
                raise UsageError(f"glow.{name} must be at least 1, got {getattr(self, name)}.")
        if not self.actnorm_factor > 0:
            raise UsageError(f"glow.actnorm_factor must be above 0, got {self.actnorm_factor}.")
