"""The optimizer of the released BERT-flow: BERT's own AdamW, whose moments are not corrected for their start at zero.

    m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2        p = p - lr (m / (sqrt(v) + eps) + weight_decay p)

In the first steps m/sqrt(v) is near (1 - b1)/sqrt(1 - b2) = 3.2, where Adam has 1: a few hundred steps at a constant
rate, as the paper's fits are, do not forget that.
"""

import math
from typing import Any

import torch


class ReleasedAdamW(torch.optim.AdamW):
    """AdamW without bias correction; the decay is on every parameter and follows the learning rate.

    The correction of step t is 1 - b^t. So this is PyTorch's AdamW, in one fused kernel, told that it has taken
    infinitely many steps.

    Clipping is the caller's (released: the flow's gradients to a global norm of 1). A parameter without gradient is
    left alone, not decayed.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Share of each parameter taken off, times the learning rate.

    Source: bohanli/BERT-flow optimization_bert_flow.py@7fa8f6d, AdamWeightDecayOptimizer. Its exclusions from the decay
    ("LayerNorm|layer_norm|bias") match no variable of a flow, so ActNorms decay as well.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    "step": torch.tensor(math.inf, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
