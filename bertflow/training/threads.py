"""How many threads a step of a fit computes with: one, where a step is small.

A step of a flow is hundreds of operators of a few microseconds each. Threads that meet after each of them cost more
than they save: on two cores, a step of the default flow took as long as with one thread where they spin while they
wait, and twice as long where they sleep (``OMP_WAIT_POLICY=passive``); a step of the paper's, 1.3 and 5 times as long.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 2**19
"""Numbers in a batch (rows x dimensions) up to which a second thread does not pay."""


@contextmanager
def threads_for(numbers: float) -> Iterator[None]:
    """One thread for steps on so many numbers, if they are few; afterwards as many as there were."""
    before = torch.get_num_threads()
    if numbers <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
