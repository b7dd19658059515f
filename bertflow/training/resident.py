"""A flow in training on one GPU, which never waits: its rows lie there, and its step is replayed as CUDA graphs.

    rows --once--> GPU;  a step = replay forward, replay backward, one fused optimizer;  the processor only says "next"

A flow is hundreds of small operators, which take a processor longer to ask for than a GPU to carry out. All batches
have one shape, so both passes are recorded once and replayed. On a CPU, on several GPUs, and for a batch of another
shape the same operators are carried out one by one.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bertflow.errors import reason_of
from bertflow.flow.glow import FlowMap
from bertflow.moments import BLOCK
from bertflow.store.store import EmbeddingStore
from bertflow.training.rows import Embeddings, Rows, take

logger = logging.getLogger("bertflow")

SHARE = 0.5
"""Most of a GPU's free memory that rows take."""


def row_nll(flow: FlowMap, x: Tensor) -> Tensor:
    """Negative log-likelihood of each row of x (n, dim_in), in nats per dimension; (n,)."""
    return -flow.log_prob(x) / flow.rank


class MeanNll(nn.Module):
    """Mean negative log-likelihood of rows (n, dim_in), in nats per dimension; ()."""

    def __init__(self, flow: FlowMap) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: Tensor) -> Tensor:
        """Of a batch."""
        return row_nll(self.flow, x).mean()


def _of_weights(flow: FlowMap) -> Callable[..., Tensor]:
    """``MeanNll`` as a function of rows, and of tensors in place of the flow's parameters, in their order."""
    nll = MeanNll(flow)
    names = [name for name, _ in nll.named_parameters()]
    return lambda x, *weights: functional_call(nll, dict(zip(names, weights, strict=True)), (x,))


def _captured(function: Callable[..., Tensor], samples: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """A function as CUDA graphs of both passes; where that fails, what follows runs on the stream from before."""
    capture: Any = torch.cuda.make_graphed_callables
    with torch.cuda.stream(torch.cuda.current_stream(samples[0].device)):
        return capture(function, samples)


class ReplayedNll:
    """``MeanNll``, recorded from its first batch on a GPU, and replayed for those of the same shape.

    It is recorded with stand-ins for the weights, which share their memory. A recorded graph keeps autograd's nodes of
    its inputs, with the stream that they were recorded on: those of the weights themselves would be waited for in each
    step, on another stream.

    Args:
        capture: Function and samples -> the same function, replayed: CUDA graphs of both passes by default.
    """

    def __init__(self, capture: Any = _captured) -> None:
        self._capture = capture
        self._replay: Callable[..., Tensor] | None = None
        self._shape: tuple[Any, ...] = ()
        self._weights: list[Tensor] = []

    def __call__(self, flow: FlowMap, x: Tensor) -> Tensor:
        """The loss of a batch, with gradients for the flow."""
        shape = (id(flow), x.shape, x.dtype, x.device)
        if not self._shape:
            self._shape, self._weights = shape, list(flow.parameters())
            stand_ins = [each.detach().requires_grad_(each.requires_grad) for each in self._weights]
            try:
                self._replay = self._capture(_of_weights(flow), (x.clone(), *stand_ins))
            except RuntimeError as error:
                logger.warning("The step is not replayed as CUDA graphs, which is slower: %s.", reason_of(error))
        if self._replay is None or shape != self._shape or not torch.is_grad_enabled():
            return MeanNll(flow)(x)
        return self._replay(x, *self._weights).clone()  # the next replay writes where this one did

    def anew(self) -> "ReplayedNll":
        """One with nothing recorded: a graph is of the weights that it was recorded with, where they lay then."""
        return ReplayedNll(self._capture)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ReplayedNll":
        return self.anew()


def rows_placed(rows: Rows, device: torch.device) -> Rows:
    """Embeddings on a GPU, where they have room there; else, and on a CPU, the rows as they are.

    Numbers of pairs stay on the processor, which looks them up.
    """
    there = isinstance(rows, Tensor) and rows.device == device
    if device.type != "cuda" or there or not isinstance(rows, Tensor | np.ndarray | EmbeddingStore):
        return rows
    some = take(rows, np.arange(1))
    assert isinstance(some, Tensor)
    if not some.is_floating_point():
        return rows
    with suppress(torch.cuda.OutOfMemoryError):  # others may have taken what was free
        if some.nbytes * len(rows) <= SHARE * torch.cuda.mem_get_info(device)[0]:
            return on_device(rows, device)
    logger.info("The %d rows are read batch by batch: they have no room on %s.", len(rows), device)
    return rows


def on_device(rows: Embeddings, device: torch.device) -> Tensor:
    """All rows on a device, copied in blocks."""
    there: Tensor | None = None
    for start in range(0, len(rows), BLOCK):
        block = take(rows, np.arange(start, min(start + BLOCK, len(rows))))
        assert isinstance(block, Tensor)
        if there is None:
            there = torch.empty(len(rows), *block.shape[1:], dtype=block.dtype, device=device)
        there[start : start + len(block)] = block
    assert there is not None, "a fit has rows"
    return there
