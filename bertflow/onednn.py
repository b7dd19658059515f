"""Linear layers in float32 on a processor, through oneDNN where that is faster.

PyTorch multiplies float32 matrices with MKL, which on AMD processors leaves AVX-512 unused: oneDNN, which comes with
PyTorch too, is then more than twice as fast. On Intel's it is slower, above all in gradients of weights. Same products
in the same precision, summed in another order. Which are taken depends on the processor alone, never on a timing: a run
that is resumed makes the same numbers. All else (few numbers, other devices and precisions, graphs that are compiled or
exported) goes to ``torch.nn.functional.linear``; after ``torch.backends.mkldnn.enabled = False`` everything does.
"""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ENOUGH = 2**20
"""Products of two numbers from which it is faster; below, its calls cost more than they save."""
ENOUGH_TO_LEARN = 2**22
"""The same where gradients are wanted."""
FORWARD, INPUT, WEIGHT = "forward", "input gradient", "weight gradient"
FASTER: Mapping[tuple[str, str], tuple[str, ...]] = {("AuthenticAMD", "AVX512"): (FORWARD, INPUT, WEIGHT)}
"""Vendor and instruction set, and the products that oneDNN makes faster there (docs/speed.md); elsewhere none.

Gradients are only asked for where the first one is there.
"""


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, str]:
    """Vendor, as the processor names itself (empty where that is not known), and the instruction set of PyTorch."""
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    told = next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
    on_windows = platform.processor().rpartition(",")[2].strip()
    return told or on_windows, torch.backends.cpu.get_cpu_capability()


THROUGH_ONEDNN = FASTER.get(processor(), ()) if torch.backends.mkldnn.is_available() else ()
"""The products that go through oneDNN on this processor."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, product: str = FORWARD) -> Tensor:
    """Rows x (..., dim_in), weight (dim_out, dim_in), bias (dim_out) -> x @ weight.T + bias (..., dim_out)."""
    learns = torch.is_grad_enabled()
    if (
        product in THROUGH_ONEDNN
        and _suits(x, weight)
        and x.numel() * len(weight) >= (ENOUGH_TO_LEARN if learns else ENOUGH)
    ):
        made: Tensor = (_Linear.apply if learns else _product)(x, weight, bias)
        return made
    return nn.functional.linear(x, weight, bias)


class Linear(nn.Linear):
    """A linear layer that computes by ``linear``."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim_in) -> (..., dim_out)."""
        return linear(x, self.weight, self.bias)


def use_onednn(model: nn.Module) -> None:
    """Let every linear layer of a model compute by ``linear``; its weights and their names stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear


def _suits(x: Tensor, weight: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # A weight that lies with gaps, as half of a matrix does, would cost a thousand times as much.
    dense = weight.is_contiguous() or weight.t().is_contiguous()
    made: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight if dense else weight.contiguous(), bias, "none", [], "")
    return made


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _product(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = above.flatten(0, -2)
        return (
            linear(above, weight.t(), None, INPUT) if ctx.needs_input_grad[0] else None,
            linear(rows.t(), x.flatten(0, -2).t(), None, WEIGHT) if ctx.needs_input_grad[1] else None,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )
