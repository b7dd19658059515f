"""What a flow is made of besides its couplings: chains, the split that factors out half of the coordinates, and mixing.

Each is an nflows transform: it gives one log-determinant a row, (n,), alone or among nflows' own parts. Inside a chain
log |det dz/dx| is kept in the smallest form that holds it:

    (n,)    one number a row         where it depends on the row
    ()      one number               where all rows have the same, because the parameters alone decide it
    0.0     the float                where volume is kept

A step of a flow is many small operators, and writing the same number for each row would double them.

The number of rows is read as ``inputs.shape[0]`` everywhere: ``len(inputs)`` would fix it in an exported graph.

Between two couplings the coordinates are mixed: by a reversal, a random permutation, or a learned linear map.

The learned one is W = P L U, kept in factors, so that its log-determinant is a sum and its inverse two triangular
solves. One square parameter holds both factors: below the diagonal L (whose diagonal is 1), above it U, and on it the
logarithms of the absolute values of U's diagonal. The permutation P and the signs are fixed.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from nflows.transforms.base import Transform
from nflows.transforms.permutations import Permutation
from torch import Tensor, nn

from bertflow.onednn import linear

LogAbsDet = Tensor | float
Mapped = tuple[Tensor, LogAbsDet]
"""Rows that a map gives, and its log-determinant."""


def added(changes: Iterable[LogAbsDet]) -> LogAbsDet:
    """The sum of the changes of a chain; what keeps volume costs no operator."""
    total: LogAbsDet = 0.0
    for change in changes:
        if isinstance(change, Tensor):
            total = total + change if isinstance(total, Tensor) else change
    return total


def of_rows(change: LogAbsDet, rows: Tensor) -> Tensor:
    """One number a row (n,), for ``rows`` (n, dim)."""
    if not isinstance(change, Tensor):
        change = rows.new_full((), change)  # made on the device: a copy would wait for it
    return change.to(rows.dtype).expand(rows.shape[0])


class AbstractPart(Transform):
    """An nflows transform whose log-determinant takes its smallest form where the caller asks for it.

    A part defines ``_forward`` and ``_inverse``: (n, dim) -> (n, dim) and a ``LogAbsDet``.
    """

    def forward(self, inputs: Tensor, context: Tensor | None = None, *, smallest: bool = False) -> Mapped:
        """Rows x (n, dim) -> z (n, dim) and log |det dz/dx| (n,), or its smallest form.

        ``context`` reaches nflows' own parts inside a chain; ours have no use for it.
        """
        z, change = self._forward(inputs, context)
        return z, change if smallest else of_rows(change, z)

    def inverse(self, inputs: Tensor, context: Tensor | None = None, *, smallest: bool = False) -> Mapped:
        """Rows z (n, dim) -> x (n, dim) and log |det dx/dz| (n,), or its smallest form."""
        x, change = self._inverse(inputs, context)
        return x, change if smallest else of_rows(change, x)

    def _forward(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        raise NotImplementedError

    def _inverse(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        raise NotImplementedError


def within(part: Transform, inputs: Tensor, context: Tensor | None, inverse: bool = False) -> Mapped:
    """A part inside another one: the smallest form of the log-determinant, where the part has one."""
    direction = part.inverse if inverse else part
    return direction(inputs, context, **({"smallest": True} if isinstance(part, AbstractPart) else {}))


class Chain(AbstractPart):
    """One transform after the other, by name, so that a saved parameter says where it belongs.

    * Forward: the parts in order. Log-det: the sum of theirs. Inverse: their inverses in reverse order.
    """

    def __init__(self, parts: dict[str, Transform]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def _forward(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        outputs, changes = inputs, []
        for part in self.children():
            outputs, change = within(part, outputs, context)
            changes.append(change)
        return outputs, added(changes)

    def _inverse(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        outputs, changes = inputs, []
        for part in reversed(list(self.children())):
            outputs, change = within(part, outputs, context, inverse=True)
            changes.append(change)
        return outputs, added(changes)


class Split(AbstractPart):
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

    def _forward(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        kept, rest = inputs.split((self.kept, inputs.shape[1] - self.kept), 1)
        kept, logabsdet = within(self.inner, kept, context)
        return torch.cat((rest, kept) if self.factored_first else (kept, rest), 1), logabsdet

    def _inverse(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        gone = inputs.shape[1] - self.kept
        if self.factored_first:
            rest, kept = inputs.split((gone, self.kept), 1)
        else:
            kept, rest = inputs.split((self.kept, gone), 1)
        kept, logabsdet = within(self.inner, kept, context, inverse=True)
        return torch.cat((kept, rest), 1), logabsdet


class Reordering(AbstractPart, Permutation):
    """z = x[:, order]; as in nflows, but a chain spends nothing on its log-determinant.

    * Forward and inverse: one gather. Log-det: 0.

    Args:
        order: Column j of z is column ``order[j]`` of x.
    """

    def _forward(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        return inputs.index_select(1, self._permutation), 0.0

    def _inverse(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        return inputs.index_select(1, self._permutation.argsort()), 0.0


class LULinear(AbstractPart):
    """z = x W with W = P L U.

    * Forward: reorder, then x + x (L - 1), then x U: no identity matrix, no scatter.
    * Log-det: the sum of log |s|, the diagonal of ``factors``.
    * Inverse: two triangular solves in float64 and the reordering back.
    * Valid when: finite; W is invertible by construction.

    Args:
        factors: L, log |s| and U in one matrix (dim, dim).
        permutation: Column j of x P is column ``permutation[j]`` of x.
        signs: The signs of s (dim,).

    Source: Kingma & Dhariwal 2018, arXiv:1807.03039, section 3.2; bohanli/BERT-flow
    flow/glow_ops_1x1.py@7fa8f6d, invertible_1x1_conv, which keeps two square matrices, half of each unused.
    """

    permutation: Tensor
    signs: Tensor

    def __init__(self, factors: Tensor, permutation: Tensor, signs: Tensor) -> None:
        super().__init__()
        self.factors = nn.Parameter(factors)
        self.register_buffer("permutation", permutation)
        self.register_buffer("signs", signs)

    @classmethod
    def rotating(cls, dim: int, generator: torch.Generator) -> "LULinear":
        """W a random rotation (or reflection)."""
        normal = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
        p, lower, upper = torch.linalg.lu(torch.linalg.qr(normal).Q)
        diagonal = upper.diagonal()
        factors = lower.tril(-1) + upper.triu(1) + diagonal.abs().log().diag()
        return cls(factors.float(), p.argmax(0), diagonal.sign().float())

    def _forward(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        x = inputs.index_select(1, self.permutation)
        x = x + linear(x, self.factors.tril(-1).t())
        log_diagonal = self.factors.diagonal()
        # The diagonal goes into the matrix: rows are many, and a pass over them costs more than one over it.
        upper = self.factors.triu(1) + torch.diag(self.signs * log_diagonal.exp())
        return linear(x, upper.t()), log_diagonal.sum()

    def _inverse(self, inputs: Tensor, context: Tensor | None) -> Mapped:
        # In float64, since the factors of a rotation are far worse conditioned than the rotation itself.
        factors, signs = self.factors.double(), self.signs.double()
        upper = factors.triu(1) + torch.diag(signs * factors.diagonal().exp())
        x = torch.linalg.solve_triangular(upper, inputs.double(), upper=True, left=False)
        x = torch.linalg.solve_triangular(factors, x, upper=False, left=False, unitriangular=True)
        x = x.index_select(1, self.permutation.argsort()).to(inputs.dtype)
        return x, -self.factors.diagonal().sum()


Mixing = tuple[Transform, Tensor]
"""A mixing map, and the fixed reordering inside it."""


def reversal(dim: int, generator: torch.Generator) -> Mixing:
    """The coordinates back to front. Source: bohanli/BERT-flow, ``permutation: true`` in every shipped config."""
    order = torch.arange(dim).flip(0)
    return Reordering(order), order


def random_permutation(dim: int, generator: torch.Generator) -> Mixing:
    """A random order. Source: Li et al. 2020, arXiv:2011.05864, section 3 ("random permutation")."""
    order = torch.randperm(dim, generator=generator)
    return Reordering(order), order


def lu(dim: int, generator: torch.Generator) -> Mixing:
    """A learned linear map W = P, with L = U = 1: at its start only the order changes, at random."""
    order = torch.randperm(dim, generator=generator)
    return LULinear(torch.zeros(dim, dim), order, torch.ones(dim)), order


def lu_rotation(dim: int, generator: torch.Generator) -> Mixing:
    """A learned linear map that starts as a random rotation. Source: bohanli/BERT-flow, ``permutation: false``."""
    linear = LULinear.rotating(dim, generator)
    return linear, linear.permutation


MIXINGS: Mapping[str, Callable[[int, torch.Generator], Mixing]] = {
    "reversal": reversal,
    "random": random_permutation,
    "lu": lu,
    "lu-rotation": lu_rotation,
}
"""The maps between couplings by the name a config uses."""
