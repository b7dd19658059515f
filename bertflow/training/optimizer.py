"""The optimizer of the released BERT-flow: BERT's own AdamW, whose moments are not corrected for their start at zero.

    m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2        p = p - lr (m / (sqrt(v) + eps) + weight_decay p)

In the first steps m/sqrt(v) is near (1 - b1)/sqrt(1 - b2) = 3.2, where Adam has 1: a few hundred steps at a constant
rate, as the paper's fits are, do not forget that.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class ReleasedAdamW(Optimizer):
    """AdamW without bias correction; the decay is on every parameter and follows the learning rate.

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
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient; ``closure``, if given, computes the loss first and is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._move(parameters, group)
        return loss

    def _move(self, parameters: list[torch.Tensor], group: dict[str, Any]) -> None:
        """One step of one group, all its parameters in a few fused calls."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {"m": torch.zeros_like(parameter), "v": torch.zeros_like(parameter)}
        m = [self.state[parameter]["m"] for parameter in parameters]
        v = [self.state[parameter]["v"] for parameter in parameters]
        beta1, beta2 = group["betas"]
        torch._foreach_mul_(m, beta1)
        torch._foreach_add_(m, gradients, alpha=1 - beta1)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, gradients, gradients, 1 - beta2)
        update = torch._foreach_div(m, torch._foreach_add(torch._foreach_sqrt(v), group["eps"]))
        torch._foreach_add_(update, parameters, alpha=group["weight_decay"])
        torch._foreach_add_(parameters, update, alpha=-group["lr"])
