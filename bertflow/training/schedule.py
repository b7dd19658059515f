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
from bertflow.flow.linear import LULinear
from bertflow.flow.map import FlowMap
from bertflow.registry import lookup
from bertflow.training.optimizer import ReleasedAdamW
from bertflow.training.presets import Recipe

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
    groups = [
        {"params": [p for p in flow.parameters() if id(p) not in linear], "lr": recipe.learning_rate},
        {
            "params": [p for p in flow.parameters() if id(p) in linear],
            "lr": recipe.learning_rate * recipe.linear_rate_share,
        },
    ]
    optimizer = lookup("optimizer", OPTIMIZERS, recipe.optimizer)(
        [group for group in groups if group["params"]], lr=recipe.learning_rate, weight_decay=recipe.weight_decay
    )
    warmup = min(recipe.warmup_steps, total // 4)
    decay = lookup("decay", DECAYS, recipe.decay)
    schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(step, total, int(warmup), decay))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
