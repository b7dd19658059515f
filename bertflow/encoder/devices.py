"""Where and how precisely an encoder runs. What was asked for is what runs, or nothing does."""

import os
import sys
from collections.abc import Mapping

import torch

from bertflow.errors import UsageError

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""Of the weights and the hidden states; pooling is done in float32."""

TOKEN_BUDGETS: Mapping[str, int] = {"cpu": 1024, "cuda": 65536, "mps": 16384}
"""Tokens in a batch, padding included. On a CPU a batch should stay in the cache; a GPU should be full."""
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")
"""Where torchrun, Lightning and SLURM say which process on its machine this is."""


def resolve_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is the first of cuda, mps and cpu that is there.

    Where several processes share a machine, each ``auto`` takes a GPU of its own.

    Raises:
        UsageError: If a device that was named cannot be used: nothing else is put in its place.
    """
    if name == "auto":
        name = _own_gpu() if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UsageError(f"The device {name!r} cannot be used: {reason}. Use 'cpu', or 'auto'.") from error
    return device


def peak_memory() -> int | None:
    """Most bytes of memory that this process has held; None on Windows, which has no such figure."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _own_gpu() -> str:
    """The GPU of this process; where a launcher shows each its own, that is the only one it sees."""
    local = next((int(os.environ[name]) for name in LOCAL_RANKS if name in os.environ), None)
    return "cuda" if local is None else f"cuda:{local % torch.cuda.device_count()}"
