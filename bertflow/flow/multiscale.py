"""Chains of transforms, the split that factors out half of the coordinates, and how log-determinants add up.

log |det dz/dx| is stored in the smallest form that holds it:

    (n,)    one number a row         where it depends on the row
    ()      one number               where all rows have the same, because the parameters alone decide it
    0.0     the float                where volume is kept

A step of a flow is many small operators, and writing the same number for each row would double them. nflows' own parts
accept all three forms. ``of_rows`` gives one number a row.

The number of rows is read as ``inputs.shape[0]`` everywhere: ``len(inputs)`` would fix it in an exported graph.
"""

from collections.abc import Iterable

import torch
from nflows.transforms.base import Transform
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


class Chain(Transform):
    """One transform after the other, by name, so that a saved parameter says where it belongs.

    * Forward: the parts in order. Log-det: the sum of theirs. Inverse: their inverses in reverse order.
    """

    def __init__(self, parts: dict[str, Transform]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, LogAbsDet]:
        """Rows x -> z."""
        outputs, changes = inputs, []
        for part in self.children():
            outputs, change = part(outputs)
            changes.append(change)
        return outputs, added(changes)

    def inverse(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, LogAbsDet]:
        """Rows z -> x."""
        outputs, changes = inputs, []
        for part in reversed(list(self.children())):
            outputs, change = part.inverse(outputs)
            changes.append(change)
        return outputs, added(changes)


class Split(Transform):
    """The first ``kept`` coordinates go on into ``inner``; the others are factored out as they are.

    * Forward: z = (rest, inner(kept)) if ``factored_first``, else (inner(kept), rest). Log-det: that of inner.
    * Inverse: inner's, on its part.
    * Valid when: 0 < kept < dim.

    nflows' MultiscaleCompositeTransform factors the first half out and passes the second on.

    Source: Dinh et al. 2017, arXiv:1605.08803, section 3.6. bohanli/BERT-flow flow/glow_1x1.py@7fa8f6d puts what was
    factored out first.
    """

    def __init__(self, inner: Transform, kept: int, factored_first: bool) -> None:
        super().__init__()
        self.inner = inner
        self.kept = kept
        self.factored_first = factored_first

    def forward(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, LogAbsDet]:
        """Rows x -> z."""
        kept, rest = inputs.split((self.kept, inputs.shape[1] - self.kept), 1)
        kept, logabsdet = self.inner(kept)
        return torch.cat((rest, kept) if self.factored_first else (kept, rest), 1), logabsdet

    def inverse(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, LogAbsDet]:
        """Rows z -> x."""
        gone = inputs.shape[1] - self.kept
        if self.factored_first:
            rest, kept = inputs.split((gone, self.kept), 1)
        else:
            kept, rest = inputs.split((self.kept, gone), 1)
        kept, logabsdet = self.inner.inverse(kept)
        return torch.cat((kept, rest), 1), logabsdet
