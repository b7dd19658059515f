"""The rows of a fit: which are held out, their order, and what their moments say before a flow is trained.

    order  = a permutation of the rows, from (seed, epoch) alone
    step i = order[i B : (i + 1) B];  rank r of w takes every w-th of them

``B`` counts the rows of one step over all ranks, so a run takes the same steps on any number of ranks. Rows are sliced
out of the array that holds them: no worker processes, no collation. Nothing here needs Lightning.

A flow starts from an affine map of the moments of its training rows; whitening of the same rows is the Gaussian of full
covariance that a flow is compared with. The flow acts on all directions; the embedding keeps the first k of its
coordinates, largest variance of x first. In most of what was measured, the spectrum tells what k should be:

    effective rank = exp(entropy of the shares of variance),   from 1 to dim          (Roy & Vetterli 2007)

Where a few directions hold the variance (a plain masked-language-model BERT, [CLS] of an inner layer), meaning lies in
the others, and all are kept. Where it is spread, the tail is noise to similarity, which keeps the first quarter, while
search needs the tail: it is scaled apart, as a band of its own (``bertflow.maps``). The spectrum is that of the plain
mean pooling, as below.

Whether a calibrator is needed, the spread of the plain mean pooling tells in most of what was measured:

    participation ratio = (sum of variances)^2 / (sum of their squares),   from 1 to dim

Above ``CALIBRATED`` there were only layers tuned for sentences: there, calibration costs similarity, and "auto" changes
nothing. Pooling by token frequency has a wider spread, so where the encoder is at hand, its plain mean is used instead.
The bound fails on text of one narrow kind, and search gains on those layers too (benchmarks/EXPLORED.md). Recipes for
search, and users who name a number of directions, or "all", skip this check.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr
from torch import Tensor

from bertflow.affine import AffineMap, identity_map, whitening_map
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.device import sent
from bertflow.encoder.pooling import parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, NullDirectionWarning, UsageError
from bertflow.maps import head_of
from bertflow.moments import BLOCK, Float64, Moments, require_finite, require_scale
from bertflow.store.store import EmbeddingStore
from bertflow.training.recipe import Recipe

Embeddings = Tensor | NDArray[np.floating] | EmbeddingStore
"""Embeddings (n, dim): in memory, memory-mapped, or in a store."""
Rows = Embeddings | Sequence[str]
"""Embeddings, or n sentences."""
Batch = Tensor | list[str]


def take(rows: Rows, index: NDArray[np.int64]) -> Batch:
    """The rows at ``index``, as a tensor or as a list of sentences."""
    if isinstance(rows, Tensor):
        return rows[sent(torch.from_numpy(index), rows.device)]
    if isinstance(rows, np.ndarray):
        return torch.from_numpy(np.asarray(rows[index]))
    if isinstance(rows, EmbeddingStore):
        return torch.from_numpy(rows.rows(index))
    return [rows[i] for i in index]


def rows_of(units: NDArray[np.int64], unit: int) -> NDArray[np.int64]:
    """All rows of the units that begin at ``units``."""
    return (units[:, None] + np.arange(unit)).ravel()


def seeded_order(n: int, *key: int) -> NDArray[np.int64]:
    """A permutation of 0 .. n-1, a pure function of ``key``."""
    return np.random.default_rng(key).permutation(n)


HELD_OUT_MOST = 10_000
"""No fit needs more rows than these to be judged."""
HELD_OUT_LEAST = 16
"""Fewer rows than these say nothing about a density."""


def hold_out(n: int, share: float, seed: int, unit: int = 1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of ``n`` rows to train on, and which to hold out: the first rows of units of ``unit`` rows, rising.

    Rows after the last whole unit are left out.

    Args:
        n: How many rows there are.
        share: How many of them are held out, at least ``HELD_OUT_LEAST`` and at most ``HELD_OUT_MOST``; none where
            ``share`` is 0, or ``HELD_OUT_LEAST`` are more than a quarter of the rows.
        seed: Decides which.
        unit: Rows in a row that stay together: 2 for sentence pairs.

    Raises:
        UsageError: If ``share`` is not in [0, 0.5].
    """
    if not 0 <= share <= 0.5:
        raise UsageError(f"held_out is the share of rows that judge the fit, from 0 to 0.5; got {share}.")
    held = int(np.clip(round(n * share), HELD_OUT_LEAST, HELD_OUT_MOST)) if share and n >= 4 * HELD_OUT_LEAST else 0
    order = seeded_order(n // unit, seed)
    return np.sort(order[held // unit :]) * unit, np.sort(order[: held // unit]) * unit


def require_row_each(units: int, world: int, unit: int) -> None:
    """Refuse batches of so many units, of ``unit`` rows each, that some of ``world`` ranks would have none of.

    Raises:
        UsageError: If there are more ranks than units.
    """
    if units < world:
        raise UsageError(
            f"Each of {world} processes needs a row of every batch, but a batch has {units * unit} rows in units of "
            f"{unit}. Raise flow.batch_size, or start fewer processes."
        )


@dataclass(eq=False)
class ShuffledBatches:
    """One epoch of batches; Lightning tells it the epoch, and where to go on after a restart.

    Attributes:
        rows: Where the batches come from.
        units: First row (m,) of each unit that may be drawn; a unit is ``unit`` rows in a row that stay together.
        batch_size: Rows of one step, over all ranks; rows that do not fill a last batch wait for another epoch.
        seed: Decides the order, with the epoch.
        unit: Rows of a unit: 2 for sentence pairs.
        rank: Which share of each batch is ours.
        world: How many ranks there are.

    Raises:
        UsageError: If a batch has no unit for some rank.
    """

    rows: Rows
    units: NDArray[np.int64]
    batch_size: int
    seed: int
    unit: int = 1
    rank: int = 0
    world: int = 1
    epoch: int = field(default=0, init=False)
    next_batch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.units_in_batch = max(1, min(self.batch_size // self.unit, len(self.units)))
        require_row_each(self.units_in_batch, self.world, self.unit)

    @property
    def sampler(self) -> "ShuffledBatches":
        """What Lightning calls ``set_epoch`` on."""
        return self

    def sample(self, most: int) -> Batch:
        """At most so many of the rows, at random: the same ones on every rank."""
        chosen = self.units[seeded_order(len(self.units), self.seed)[: most // self.unit]]
        return take(self.rows, rows_of(chosen, self.unit))

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; a new epoch begins at its first batch."""
        if epoch != self.epoch:
            self.epoch, self.next_batch = epoch, 0

    def __len__(self) -> int:
        return len(self.units) // self.units_in_batch

    def __iter__(self) -> Iterator[Batch]:
        order = seeded_order(len(self.units), self.seed, self.epoch)
        for batch in range(self.next_batch, len(self)):
            self.next_batch = batch + 1
            drawn = order[batch * self.units_in_batch : (batch + 1) * self.units_in_batch][self.rank :: self.world]
            yield take(self.rows, rows_of(self.units[drawn], self.unit))

    def state_dict(self) -> dict[str, Any]:
        """The place in the epoch, for a checkpoint."""
        return {"epoch": self.epoch, "next_batch": self.next_batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.epoch, self.next_batch = state["epoch"], state["next_batch"]


class InOrder:
    """Rows in their order, ``size`` at a time."""

    def __init__(self, rows: Tensor, size: int) -> None:
        self.rows, self.size = rows, size

    def __len__(self) -> int:
        return -(-len(self.rows) // self.size)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.rows.split(self.size) if len(self.rows) else ())


STEEP = 60.0
"""Effective rank of the plain mean pooling up to which "auto" keeps all directions: at most 45 in a small plain BERT
and 56 in a RoBERTa, at least 64 in the inner layers of MiniLM (benchmarks/EXPLORED.md)."""
CALIBRATED = 75.0
"""Participation ratio of a mean pooling above which calibration cost similarity in all that was measured."""
LOOKED_AT = 4096
"""Sentences that a plain mean is computed from."""
SCALES: Mapping[str, tuple[float, float]] = {"whitening": (1e-30, 1e30), "none": (1e-4, 1e8)}
"""Start of a flow -> between which the root mean square norm lies. Whitening only has to fit into float32. Without it
the flow sees the numbers as they are: larger ones have squares that float32 does not sum, smaller ones are lost beside
the shifts that it starts with."""


def is_spread(recipe: Recipe, plain: Moments) -> bool:
    """Whether "auto" treats the tail of the spectrum apart.

    Args:
        recipe: Only one with ``n_components="auto"`` does.
        plain: Moments of the plain mean pooling.
    """
    return _chooses(recipe) and effective_rank(plain) > STEEP


def kept_directions(recipe: Recipe, rank: int, spread: bool) -> int:
    """How many of the flow's coordinates the embedding keeps.

    Args:
        recipe: May name a number, or all.
        rank: Number of directions that the flow acts on.
        spread: What ``is_spread`` says.
    """
    wanted = recipe.n_components
    if not isinstance(wanted, str):
        return wanted
    return head_of(rank) if spread and not recipe.tail else rank


def reason_to_leave(recipe: Recipe, spread: float) -> str | None:
    """Why the embeddings are left as they are, in words; None where a calibrator is wanted or may help.

    Args:
        recipe: Only one with ``n_components="auto"`` may leave them, and none that keeps a tail.
        spread: Participation ratio of the plain mean pooling.
    """
    if not _chooses(recipe) or recipe.tail or spread <= CALIBRATED:
        return None
    return (
        f"left alone: the variance is spread over {spread:.0f} directions (participation ratio, above {CALIBRATED:g}), "
        "as in layers that were tuned for sentences already, where calibration costs similarity. To calibrate in any "
        "case, which can help search, give purpose: search or all, or n_components: all, or a number"
    )


def participation_ratio(moments: Moments) -> float:
    """Number of directions over which the variance is spread."""
    shares = moments.covariance / np.trace(moments.covariance)  # the squares of variances would overflow
    return float(1 / np.square(shares).sum())


def effective_rank(moments: Moments) -> float:
    """Number of directions that the variance takes, by its entropy."""
    variances = np.linalg.eigvalsh(moments.covariance).clip(0)
    return entropy_rank(variances / variances.sum())


def entropy_rank(shares: Float64) -> float:
    """The exponential of the entropy of shares of variance, which sum to 1."""
    return float(np.exp(entr(shares).sum()))


def plain_moments(encoder: SentenceEncoder | None = None, sentences: Sequence[str] | None = None) -> Moments | None:
    """Moments of the plain mean of the layers that a pooling by token frequency reads; None for other poolings."""
    if not isinstance(encoder, TransformerEncoder) or not sentences:
        return None
    pooling = parse_pooling(encoder.describe()["pooling"])
    if not pooling.counted:
        return None
    plain = str(replace(pooling, tokens="mean"))
    sample = sentences[:: max(1, len(sentences) // LOOKED_AT)][:LOOKED_AT]
    return Moments.of(encoder.encode_poolings(sample, [plain])[plain])


def _chooses(recipe: Recipe) -> bool:
    return recipe.n_components == "auto" and recipe.start == "whitening"


def gathered(x: Embeddings, index: NDArray[np.int64]) -> Tensor:
    """The rows of ``x`` at ``index`` as a tensor, float32 or float64.

    Raises:
        DataError: If they are not a matrix, or one holds a NaN or infinity; the message names the row.
    """
    rows = take(x, index)
    assert isinstance(rows, Tensor)
    rows = rows.cpu()  # where moments are taken
    if rows.ndim != 2:
        shape = (len(x), *rows.shape[1:])
        raise DataError(f"A flow is fitted to embeddings (n, dim), n at least 2; got shape {shape}.")
    finite = rows.isfinite().all(1)
    if not finite.all():
        bad = int(finite.int().argmin())
        require_finite(rows[bad : bad + 1].numpy(), first_row=int(index[bad]))
    return rows if rows.dtype == torch.float64 else rows.float()


def moments_of_rows(x: Embeddings, index: NDArray[np.int64]) -> Moments:
    """Moments of some rows, read in blocks, so that memory does not grow with their number.

    Raises:
        DataError: As ``gathered``, and for no rows.
    """
    blocks = [index[start : start + BLOCK] for start in range(0, max(1, len(index)), BLOCK)]
    return Moments.merged(Moments.of(gathered(x, block).numpy()) for block in blocks)


def affine_start(moments: Moments, recipe: Recipe) -> tuple[AffineMap, AffineMap]:
    """The affine map before the flow, and the whitening that is the Gaussian to compare with.

    Raises:
        DataError: If there are fewer directions than 2, or than the recipe wants, or float32 does not hold the numbers.
    """
    require_scale("root mean square norm", math.sqrt(moments.mean_square_norm), SCALES[recipe.start])
    if recipe.start == "whitening":
        whitening = whitening_map(moments)
        if whitening.dim_out < 2 <= moments.dim:
            raise DataError(
                f"A flow needs 2 directions or more, but {moments.n} rows of dimension {moments.dim} have rank 1. Fit "
                "on more sentences, leave out rows that are far from all others, or use whitening."
            )
        wanted = recipe.n_components
        if not isinstance(wanted, str) and not 1 <= wanted <= whitening.dim_out:
            raise DataError(
                f"{wanted} directions were to be kept, but {moments.n} rows of dimension {moments.dim} "
                f"have rank {whitening.dim_out}. Choose 1 to that, or fit on more sentences."
            )
        return whitening, whitening
    with warnings.catch_warnings():
        # Here null directions stay; the warning would say that they are dropped.
        warnings.simplefilter("ignore", NullDirectionWarning)
        whitening = whitening_map(moments)
    return identity_map(moments.dim), whitening
