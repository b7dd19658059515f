"""Linear layers on a processor, through oneDNN where that is faster; and bfloat16 only where it is faster.

PyTorch multiplies float32 matrices with MKL, which on AMD processors leaves AVX-512 unused: oneDNN, which comes with
PyTorch too, is then up to twice as fast. On Intel's it is slower, above all in gradients of weights. Same products
in the same precision, summed in another order. Which are taken depends on the processor alone, never on a timing: a run
that is resumed makes the same numbers. All else (few numbers, other devices and precisions, graphs that are compiled or
exported) goes to ``torch.nn.functional.linear``; after ``torch.backends.mkldnn.enabled = False`` everything does.

In bfloat16 PyTorch takes oneDNN anyway, but lays out the weight and copies the bias for each product. With AMX that
is a fifth of its time, so there a frozen weight is laid out once.
"""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertflow.errors import logger

ENOUGH = 2**20
"""Products of two numbers from which it is faster; below, its calls cost more than they save."""
ENOUGH_TO_LEARN = 2**22
"""Such products where gradients are wanted."""
ROWS_TO_LEARN = 128
"""Rows of a step from which it is faster where gradients are wanted; with 32 or 64 a step took a tenth longer."""
FORWARD, INPUT, WEIGHT = "forward", "input gradient", "weight gradient"
ALONE, PACKED = "forward, without gradients", "forward in bfloat16, of frozen weights"
FASTER: Mapping[tuple[str, str, str], tuple[str, ...]] = {
    ("AuthenticAMD", "AVX512", "avx512_vp2intersect"): (FORWARD, INPUT, WEIGHT),  # Zen 5
    ("AuthenticAMD", "AVX512", "avx512_bf16"): (ALONE,),  # Zen 4, which adds halves of 256 bits
    ("GenuineIntel", "AVX512", "amx_bf16"): (PACKED,),
}
"""Vendor, PyTorch's instruction set, another one that the processor has -> the products that are faster there than
PyTorch's own (docs/results/speed.md), elsewhere none. The first row that fits counts. Gradients need ``FORWARD`` too.
"""
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Instruction sets that multiply bfloat16, of x86 and ARM. Without one PyTorch takes longer for it than for float32."""
ROWS = 1024
"""Rows for which a weight is laid out; others are multiplied as well."""
CPUINFO = Path("/proc/cpuinfo")


def processor() -> tuple[str, str]:
    """Vendor, as the processor names itself (empty where that is not known), and the instruction set of PyTorch."""
    on_windows = platform.processor().rpartition(",")[2].strip()
    return cpu_facts(CPUINFO).get("vendor_id") or on_windows, torch.backends.cpu.get_cpu_capability()


def instruction_sets() -> frozenset[str]:
    """All that the processor has, by the names of Linux; elsewhere those that PyTorch knows, if it is recent."""
    told = cpu_facts(CPUINFO)
    if found := told.get("flags") or told.get("Features"):
        return frozenset(found.split())
    known = getattr(torch.cpu, "get_capabilities", dict[str, Any])()
    return frozenset(name for name, there in known.items() if there is True)


def through_onednn() -> tuple[str, ...]:
    """The products that go through oneDNN on a processor, by ``FASTER``: none where PyTorch lacks it, or MKL."""
    both = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    named, sets = processor(), instruction_sets()
    return next((made for (*name, one), made in FASTER.items() if both and (*name,) == named and one in sets), ())


def cpu_facts(cpuinfo: Path) -> dict[str, str]:
    """What Linux says of the last processor, by name; nothing elsewhere."""
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


THROUGH_ONEDNN = through_onednn()
"""The products that go through oneDNN on this processor."""


def computed_in(dtype: torch.dtype, device: torch.device | str) -> torch.dtype:
    """What a model with weights of a dtype computes in: not in bfloat16 on a processor that has no products in it.

    float32 is faster there, and its results are those of bfloat16 up to the rounding of bfloat16.
    """
    slow = dtype == torch.bfloat16 and torch.device(device).type == "cpu"
    if not slow or not instruction_sets().isdisjoint(BFLOAT16):
        return dtype
    logger.warning("This processor has no products in bfloat16: the model's weights are, but it computes in float32.")
    return torch.float32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, product: str = FORWARD) -> Tensor:
    """Rows x (..., dim_in), weight (dim_out, dim_in), bias (dim_out) -> x @ weight.T + bias (..., dim_out)."""
    learns = torch.is_grad_enabled()
    if _is_faster(x, weight, product, learns):
        return cast(Tensor, (_Linear.apply if learns else _product)(x, weight, bias))
    return nn.functional.linear(x, weight, bias)


class Linear(nn.Linear):
    """A linear layer that computes by ``linear``."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim_in) -> (..., dim_out)."""
        return linear(x, self.weight, self.bias)


class PackedLinear(nn.Linear):
    """A linear layer in bfloat16, whose weight must not change: it is laid out for oneDNN once."""

    _laid: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim_in) -> (..., dim_out)."""
        if torch.is_grad_enabled() or not _suits(x, self.weight):
            return super().forward(x)
        if self._laid is None:
            self._laid = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), ROWS)
        return _product(x, self._laid, self.bias)


def packs(dtype: torch.dtype) -> bool:
    """Whether frozen weights of that type are laid out once on this processor."""
    return dtype == torch.bfloat16 and PACKED in THROUGH_ONEDNN


def use_onednn(model: nn.Module, packed: bool = False) -> None:
    """Let all linear layers of a model compute by ``linear``, or ``packed``; weights and their names stay."""
    for module in model.modules():
        if type(module) in (nn.Linear, Linear, PackedLinear):
            module.__class__ = PackedLinear if packed else Linear
            module.__dict__.pop("_laid", None)


def _is_faster(x: Tensor, weight: Tensor, product: str, learns: bool) -> bool:
    """Whether oneDNN makes a product faster, and there is so much to multiply that it makes up for its call."""
    made = product in THROUGH_ONEDNN or (not learns and ALONE in THROUGH_ONEDNN)
    if not made or x.dtype != torch.float32 or not _suits(x, weight):
        return False  # _suits tells of a trace
    if not learns:
        return x.numel() * len(weight) >= ENOUGH
    return x.numel() * len(weight) >= ENOUGH_TO_LEARN and x.numel() >= ROWS_TO_LEARN * x.shape[-1]


def reaches_onednn(x: Tensor) -> bool:
    """Whether what is computed of a tensor can go through oneDNN, and is no trace of a graph."""
    return x.device.type == "cpu" and bool(torch.backends.mkldnn.enabled) and not torch.compiler.is_compiling()


def _suits(x: Tensor, weight: Tensor) -> bool:
    return x.dtype == weight.dtype and reaches_onednn(x) and not torch.is_autocast_enabled("cpu")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # A weight that lies with gaps, as half of a matrix does, would cost a thousand times as much.
    dense = weight.is_contiguous() or weight.t().is_contiguous()
    laid = weight if dense else weight.contiguous()
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, laid, bias, "none", [], ""))


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
