"""Where the encoder runs, and how a GPU is kept from waiting: the processor works ahead of it, and reads after it.

    text --in a thread--> tokens --pinned--> GPU --> embeddings --while it goes on--> array

On a CPU there is nothing to work ahead of: the same functions tokenize all text at once, and copy nothing.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from functools import partial
from itertools import islice, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertflow.array_types import Floats, Int64
from bertflow.errors import UsageError, reason_of

T = TypeVar("T")

TF32 = "tf32"
DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16")}
"""Types of the weights and the hidden states; pooling is done in float32."""
PRECISIONS: Mapping[str, torch.dtype] = {**DTYPES, TF32: torch.float32}
"""What a user may choose: those, and float32 whose products a GPU rounds to TF32; other devices do not."""

LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")
"""Variables in which torchrun, Lightning and SLURM say which process on its machine this is."""
PARTS = (2048, 16384)
"""Sentences that are tokenized at a time ahead of a GPU: few at first, so that it can begin, then many."""
ROWS = 8192
"""Rows that a function is given at a time."""
BEHIND = 2
"""Batches whose embeddings are still on their way while the next one is begun."""


def resolve_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is the first of cuda, mps and cpu that is there.

    Where several processes share a machine, each ``auto`` takes a GPU of its own.

    Raises:
        UsageError: If a device that was named cannot be used: nothing else is put in its place.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        local = next((int(os.environ[rank]) for rank in LOCAL_RANKS if rank in os.environ), None)
        if name == "cuda" and local is not None:  # a launcher may show each process its own GPU alone
            name = f"cuda:{local % torch.cuda.device_count()}"
    try:
        # With its number: of several GPUs another one may be the current one later.
        return torch.empty(1, device=torch.device(name)).device
    except (RuntimeError, AssertionError) as error:
        reason = reason_of(error)
        raise UsageError(f"The device {name!r} cannot be used: {reason}. Use 'cpu', or 'auto'.") from error


def gpu_of(encoder: object) -> torch.device | None:
    """The device of an encoder, if it is not the processor, which should then work ahead of it."""
    device = getattr(getattr(encoder, "raw", encoder), "device", None)
    return device if isinstance(device, torch.device) and device.type != "cpu" else None


def parts(device: torch.device, n: int) -> list[slice]:
    """``n`` sentences in the parts in which they are tokenized: on a CPU all at once."""
    if device.type == "cpu":
        return [slice(0, n)]
    first, size = PARTS
    return [slice(*ends) for ends in pairwise([0, *range(first, n, size), n])]


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The items; while the caller uses one, the next is made in a thread."""
    with ThreadPoolExecutor(1, "bertflow-ahead") as thread:
        context = copy_context()

        def made() -> list[T]:
            return context.run(lambda: list(islice(items, 1)))

        coming = thread.submit(made)
        while item := coming.result():
            coming = thread.submit(made)
            yield item[0]


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device; a GPU copies it from pinned memory without blocking."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Landing:
    """Brings rows from a device into arrays; those of a GPU are copied while it goes on working."""

    def __init__(self, behind: int = BEHIND) -> None:
        self._behind = behind
        self._flying: deque[tuple[NDArray[Any], Int64 | slice, Tensor, Callable[[], object]]] = deque()

    def put(self, x: Floats, rows: Int64 | slice, made: Tensor) -> None:
        """Have ``x[rows] = made``, at the latest after ``finish``."""
        self._flying.append((x, rows, *_fetched(made)))
        if len(self._flying) > self._behind:
            self._land()

    def finish(self) -> None:
        """Wait for all rows."""
        while self._flying:
            self._land()

    def _land(self) -> None:
        x, rows, made, wait = self._flying.popleft()
        wait()
        x[rows] = made.numpy()


def _fetched(made: Tensor) -> tuple[Tensor, Callable[[], object]]:
    """A tensor on the CPU, and what waits until it is there."""
    if made.device.type != "cuda":
        return made.cpu(), lambda: None
    there = torch.empty(made.shape, dtype=made.dtype, pin_memory=True).copy_(made, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(made.device))
    return there, event.synchronize


@torch.inference_mode()
def in_blocks(function: Callable[[Tensor], Tensor], x: Floats, behind: int = 0) -> Floats:
    """What a function makes of rows, ``ROWS`` at a time, in the data type of the rows.

    Args:
        function: Some rows -> a row, or a number, for each.
        x: One row or more, (n, dim).
        behind: Blocks that may still be on their way from a GPU while the next one is made.
    """
    landing, mapped = Landing(behind), np.empty(0, x.dtype)
    for start in range(0, len(x), ROWS):
        z = function(torch.from_numpy(np.array(x[start : start + ROWS])))  # what is read-only is not written through
        if not start:
            mapped = np.empty((len(x), *z.shape[1:]), x.dtype)
        landing.put(mapped, slice(start, start + ROWS), z)
        del z  # before the next is made
    landing.finish()
    return mapped


@contextmanager
def _for_now(choose: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    choose(value)
    try:
        yield
    finally:
        choose(before)


def tf32_products() -> AbstractContextManager[None]:
    """In this block a GPU rounds the numbers of float32 products to TF32, as 10 bits of a mantissa."""
    products = torch.backends.cuda.matmul
    name, value = ("fp32_precision", TF32) if hasattr(products, "fp32_precision") else ("allow_tf32", True)
    return _for_now(partial(setattr, products, name), value, getattr(products, name))


def unplanned_attention() -> AbstractContextManager[None]:
    """In this block a GPU does not attend by cuDNN, which plans each new shape of a batch before it runs it.

    Batches of sentences all have shapes of their own. PyTorch prefers cuDNN in half precision on Hopper and Blackwell
    since 2.11, and a plan is said to take 0.02 to 0.4 s; FlashAttention and the memory-efficient kernels need none.

    See https://github.com/huggingface/transformers/pull/48163 and https://github.com/modelscope/FunASR/issues/3704.
    """
    backends = torch.backends.cuda
    return _for_now(backends.enable_cudnn_sdp, False, backends.cudnn_sdp_enabled())
