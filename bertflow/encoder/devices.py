"""Where and how precisely an encoder runs. What was asked for is what runs, or nothing does."""

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


def resolve_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is the first of cuda, mps and cpu that is there.

    Raises:
        UsageError: If a device that was named cannot be used: nothing else is put in its place.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UsageError(f"The device {name!r} cannot be used: {reason}. Use 'cpu', or 'auto'.") from error
    return device
