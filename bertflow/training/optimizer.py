"""The optimizers of a flow: AdamW in one fused kernel, and that of the released code, which is the same kernel."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class FusedAdamW(torch.optim.AdamW):
    """PyTorch's AdamW as one fused kernel; on a CPU a step asks no parameter for what it needs.

    Same numbers, same state. PyTorch counts the steps of each parameter by itself, and on a CPU that takes longer than
    the kernel where parameters are small; here the counts lie in one tensor, which is counted up at once.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Of each parameter, by the learning rate.
    """

    _known: tuple[Any, list[tuple[list[Tensor], ...]]] = (None, [])

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)

    def step(self, closure: Any = None) -> Any:
        """Take a step, after the closure if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = [[parameter.grad for parameter in group["params"]] for group in self.param_groups]
        made = len(self.state) == sum(map(len, gradients))
        if not made or any(each is None or each.device.type != "cpu" for row in gradients for each in row):
            super().step()
            return loss
        with torch.no_grad():
            for group, row, (count, *lists) in zip(self.param_groups, gradients, self._lists(), strict=True):
                count[0].add_(1)
                parameters, means, squares, counts = lists
                options: dict[str, Any] = {name: group[name] for name in ("lr", "eps", "weight_decay")}
                options |= dict(zip(("beta1", "beta2"), group["betas"], strict=True))
                torch._fused_adamw_(
                    parameters, row, means, squares, [], counts, amsgrad=False, maximize=False, **options
                )
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or set them to zero."""
        if not set_to_none:
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _lists(self) -> list[tuple[list[Tensor], ...]]:
        """Of each group: the counts in one tensor, then what the kernel takes. Made anew after a state was loaded."""
        known, lists = self._known
        if known is not self.state or len(lists) != len(self.param_groups):
            lists = list(map(self._listed, self.param_groups))
            self._known = self.state, lists
        return lists

    def _listed(self, group: Mapping[str, Any]) -> tuple[list[Tensor], ...]:
        states = [self.state[parameter] for parameter in group["params"]]
        count = torch.stack([state["step"] for state in states])
        for state, own in zip(states, count.unbind(), strict=True):
            state["step"] = own
        names = ("exp_avg", "exp_avg_sq", "step")
        return [count], group["params"], *([state[name] for state in states] for name in names)


class ReleasedAdamW(FusedAdamW):
    """The optimizer of the released BERT-flow: BERT's AdamW, whose moments are not corrected for their start at zero.

        m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2        p = p - lr (m / (sqrt(v) + eps) + weight_decay p)

    In the first steps m/sqrt(v) is near (1 - b1)/sqrt(1 - b2) = 3.2, where Adam has 1; the paper's fits are a few
    hundred steps at a constant rate, so this matters until their end. The correction of step t is 1 - b^t, so this is
    PyTorch's AdamW, in one fused kernel, told that it has taken infinitely many steps. The decay applies to every
    parameter and follows the learning rate.

    The caller clips (released: the flow's gradients to a global norm of 1). A parameter without gradient is left alone,
    not decayed.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        eps: Added to the root of the second moment.
        options: Of PyTorch's AdamW: betas, the decay of the two moments, and weight_decay.

    Source: bohanli/BERT-flow optimization_bert_flow.py@7fa8f6d, AdamWeightDecayOptimizer. Its exclusions from the decay
    ("LayerNorm|layer_norm|bias") match no variable of a flow, so ActNorms decay as well.
    """

    def __init__(self, params: Any, lr: float = 1e-3, eps: float = 1e-6, **options: Any) -> None:
        super().__init__(params, lr=lr, eps=eps, **options)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    "step": torch.tensor(math.inf, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }


OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "adam": FusedAdamW,  # with weight decay 0 this is Adam
    "released-adamw": ReleasedAdamW,
}
"""Optimizers by name; each takes (groups, lr, weight_decay)."""
