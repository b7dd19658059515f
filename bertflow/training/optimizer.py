"""The optimizer and its learning rate, as the recipe says.

    rate(step) = learning_rate * min(1, (step + 1) / warmup) * decay(step)

A learned linear map gets a share of that rate. With Adam each of its dim^2 entries moves by the rate in the first
steps, so the matrix moves by dim times the rate: enough to destroy a whitened start.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bertflow.errors import UsageError
from bertflow.flow.glow import FlowMap
from bertflow.flow.transforms import LULinear
from bertflow.registry import lookup
from bertflow.training.presets import Recipe


class ReleasedAdamW(torch.optim.AdamW):
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


OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "adam": partial(torch.optim.AdamW, fused=True),  # with weight decay 0 this is Adam
    "released-adamw": ReleasedAdamW,
}
"""Optimizers by name; each takes (groups, lr, weight_decay)."""
DECAYS: Mapping[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
}
"""Factor of the learning rate when a share in [0, 1] of all steps is done."""


def learning_rate_factor(step: int, total: float, warmup: int, decay: Callable[[float], float]) -> float:
    """Share of the full learning rate at ``step``, counted from 0, of ``total``."""
    return min(1.0, (step + 1) / max(1, warmup)) * decay(min(1.0, step / max(1, total)))


def build_optimizer(flow: FlowMap, recipe: Recipe, total: float) -> dict[str, Any]:
    """What ``configure_optimizers`` returns, for a fit of ``total`` steps.

    Warm-up takes ``recipe.warmup_steps``, and at most a quarter of all steps.

    Raises:
        UsageError: If the learning rate should fall to zero at the end, and there is no end.
    """
    if math.isinf(total) and recipe.decay != "constant":
        raise UsageError(
            f"Decay {recipe.decay!r} needs to know the number of steps, but the Trainer has no limit. "
            "Set trainer.max_epochs or trainer.max_steps, or flow.decay to constant."
        )
    linear = {id(p) for module in flow.modules() if isinstance(module, LULinear) for p in module.parameters()}
    rates = {False: recipe.learning_rate, True: recipe.learning_rate * recipe.linear_rate_share}
    groups = [
        {"params": [p for p in flow.parameters() if (id(p) in linear) == learned_map], "lr": rate}
        for learned_map, rate in rates.items()
    ]
    optimizer = lookup("optimizer", OPTIMIZERS, recipe.optimizer)(
        [group for group in groups if group["params"]], lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    warmup = min(recipe.warmup_steps, total // 4)
    decay = lookup("decay", DECAYS, recipe.decay)
    schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(step, total, int(warmup), decay))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
