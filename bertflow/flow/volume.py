"""How much a transform changes volume: log |det dz/dx|, said as briefly as it can be.

    (n,)    one number a row         where it depends on the row
    ()      one number               where all rows have the same: what the parameters alone decide
    0.0     the float                where volume is kept

A step of a flow is many small operators, and half of them would write the same number out for each row and add it up.
nflows' own parts take any of the three: they add it to what they have. ``of_rows`` writes it out.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

LogAbsDet = Tensor | float


def added(changes: Iterable[LogAbsDet]) -> LogAbsDet:
    """The sum of the changes of a chain; what keeps volume costs no operator."""
    total: LogAbsDet = 0.0
    for change in changes:
        if isinstance(change, Tensor):
            total = total + change if isinstance(total, Tensor) else change
    return total


def of_rows(change: LogAbsDet, rows: Tensor) -> Tensor:
    """One number a row (n,), for ``rows`` (n, dim)."""
    return torch.as_tensor(change, dtype=rows.dtype, device=rows.device).expand(rows.shape[0])
