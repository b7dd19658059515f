"""How the benchmarks measure: ratios within one run, of calls that take turns.

On a machine that others use, seconds say little. So the calls of a benchmark take turns, each round gives one ratio,
and the median of the rounds is what counts. Ratios are of processor time (all threads of this process, waiting left
out), and those by the clock stand beside them. Operators are counted exactly.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PretrainedConfig

from bertflow.onednn import FORWARD, linear

ROUNDS = 5
Product = tuple[int, int, int, str]
"""Rows, width of both, columns; and what it is in a step, as in ``bertflow.onednn``."""


@dataclass(frozen=True)
class Result:
    """One row of the table.

    Attributes:
        name: What was compared with what.
        value: Of processor time, or a count.
        wall: The same by the clock, where there is a clock.
        target: What it should be; None where there is no target.
        at_most: Whether the target is an upper limit.
        unit: ``x`` for a ratio, ``%`` for a share.
        facts: What else was found, ready for JSON.
    """

    name: str
    value: float
    wall: float | None = None
    target: float | None = None
    at_most: bool = False
    unit: str = "x"
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None where there is none."""
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(frozen=True)
class Times:
    """Seconds of each round: of the processor, and by the clock."""

    cpu: list[float]
    wall: list[float]

    def milliseconds(self) -> float:
        """Median of the processor's."""
        return round(1e3 * statistics.median(self.cpu), 3)


def take_turns(calls: Mapping[str, Callable[[], object]], rounds: int = ROUNDS, repeat: int = 1) -> dict[str, Times]:
    """Each call once to warm up, then ``rounds`` rounds in which each is made ``repeat`` times."""
    for call in calls.values():
        call()
    times = {name: Times([], []) for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(repeat):
                call()
            times[name].cpu.append((time.process_time() - cpu) / repeat)
            times[name].wall.append((time.perf_counter() - wall) / repeat)
    return times


def ratio(above: Times, below: Times) -> tuple[float, float]:
    """Median over the rounds of one time over the other: of the processor, by the clock."""
    return (_median_ratio(above.cpu, below.cpu), _median_ratio(above.wall, below.wall))


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


class Operators(TorchDispatchMode):
    """Counts the operators that PyTorch carries out within the block.

    A list operator (``_foreach_``) counts once for each of its tensors, since on the CPU it is a loop over them; a
    ``_fused_`` optimizer is one kernel. Views touch no numbers and are counted apart. ``bytes`` are those of
    the tensors that the operators read, and of those that they make.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.views = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operator, and carry it out."""
        name = func.overloadpacket.__name__
        if func.is_view:
            self.views += 1
        elif func.namespace == "aten":  # not the profiler's marks
            self.count[name] += len(args[0]) if name.startswith("_foreach") else 1
        made = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, made)) if isinstance(leaf, torch.Tensor)]
            self.bytes += sum(tensor.nbytes for tensor in tensors)
        return made


def count_operators(call: Callable[[], object]) -> tuple[int, int]:
    """How many operators one call takes, and how many views, after a first call that may set things up."""
    call()
    with Operators() as operators:
        call()
    return operators.count.total(), operators.views


def flops(lengths: np.ndarray, config: PretrainedConfig) -> int:
    """Floating point operations of all blocks for sentences of these lengths, without padding."""
    tokens, width = lengths.astype(np.int64), config.hidden_size
    linear = tokens * 2 * (4 * width * width + 2 * width * config.intermediate_size)
    attention = tokens * tokens * 4 * width
    return int(config.num_hidden_layers * (linear + attention).sum())


def matmuls(shapes: Sequence[Product], dtype: torch.dtype = torch.float32, learns: bool = False) -> Callable[[], None]:
    """Nothing but matrix products, each of matrices of its own, by the library that the package takes for it.

    Args:
        shapes: The products.
        dtype: Of their numbers.
        learns: Whether they are those of a training step, whose forward products are chosen by another rule.
    """
    made = [[torch.randn(n, inner, dtype=dtype) for n in (rows, columns)] for rows, inner, columns, _ in shapes]
    kinds = [kind for *_, kind in shapes]

    def call() -> None:
        for (left, right), kind in zip(made, kinds, strict=True):
            with torch.set_grad_enabled(learns and kind == FORWARD):
                linear(left, right, None, kind)

    return call
