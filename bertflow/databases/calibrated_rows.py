"""The rows of a collection: a calibrator that is fitted to them, calibrated rows, and what a new collection holds.

Rows without a vector, with a number that is not finite, or that a calibrator refuses are refused by their id, or left
out (``bertflow.skip_bad``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from bertflow.array_types import Float32, Floats
from bertflow.breadth import watch_breadth
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.closed_forms import AbstractClosedForm
from bertflow.calibration.flow import flow_on_rows
from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.arrays import usable_rows
from bertflow.data.lines import leave_out
from bertflow.errors import BadRowsError, DataError, RowError, UsageError, require_between
from bertflow.moments import Moments, odd_rows
from bertflow.progress import Advance, bar
from bertflow.retrieval.collections import AbstractCollection, CollectionRows, Id, Part
from bertflow.runs.sources import flow_recipe
from bertflow.similarity import unit_rows
from bertflow.training import Purpose

FLOW_ROWS = 50_000
"""Rows that a flow is fitted to, by default."""
NEAR = 1e-5
"""How far a vector that is read back may be from what it should be, both as unit vectors; a rounding step of the type
that it is stored as, if that is larger."""
DIGESTS = 2**63
"""Digests of rows are below it."""


@dataclass(frozen=True)
class Asked:
    """How a calibrator is asked for: a folder or a spelling, and how it is fitted."""

    calibrator: str
    preset: str | None = None
    purpose: Purpose | None = None
    seed: int | None = None
    fit_rows: int | None = None

    @property
    def given(self) -> bool:
        """Whether it is a folder, fitted already."""
        return "/" in self.calibrator or Path(self.calibrator).exists()

    def require(self) -> None:
        """Refuse what cannot be fitted, before a row is read.

        Raises:
            UsageError: If the calibrator is misspelled, or an option does not belong to it.
        """
        if not self.given:
            made = parse_calibrator(self.calibrator)
            made.require_encoder(None)
            flow_recipe(made, self.calibrator, self.preset, self.purpose, self.seed)
            return
        for name, value in asdict(self).items():
            if name != "calibrator" and value is not None:
                raise UsageError(f"{name} is for a fit, but {self.calibrator} is fitted already. Leave it out.")


def fitted_to(
    source: AbstractCollection, parts: Sequence[Part], asked: Asked, progress: bool | None
) -> AbstractCalibrator:
    """A calibrator, fitted to rows of a collection: to all in one pass, or to a random sample."""
    made, facts = parse_calibrator(asked.calibrator), source.facts
    recipe = flow_recipe(made, asked.calibrator, asked.preset, asked.purpose, asked.seed)
    require_between(1, facts.dim, n_components=getattr(made, "n_components", None))
    share = (asked.fit_rows or (FLOW_ROWS if recipe else facts.n)) / facts.n
    with bar(facts.n, "fitting", progress, "rows") as advance:
        blocks = _sampled(source, parts, share, asked.seed or 0, advance)
        blocks = watch_breadth(blocks, int(share * facts.n)) if made.divides else blocks
        if isinstance(made, AbstractClosedForm):
            return made.fit_moments(Moments.merged(map(Moments.of, blocks)), None)
        x = np.concatenate(list(blocks))
    assert recipe, "a calibrator is a closed form, or a flow"
    return flow_on_rows(x, recipe, asked.seed or 0, Moments.of(x), None, progress)


def _sampled(
    source: AbstractCollection, parts: Sequence[Part], share: float, seed: int, advance: Advance
) -> Iterator[Float32]:
    """About this share of the rows that can be used, drawn at random."""
    for number, part in enumerate(parts):
        rows = source.read(part)
        vectors = calibrated(source, rows)[0].vectors
        if len(drawn := vectors[np.random.default_rng([seed, number]).random(len(vectors)) < share]):
            yield drawn
        advance(len(rows))


def refuse_rows(source: AbstractCollection, bad: Sequence[tuple[Id, str]]) -> None:
    """Refuse rows, each by its id and the reason, unless bad rows are left out.

    Raises:
        RowError: For the first one.
    """
    for name, reason in bad:
        leave_out(RowError(str(source.address), name, reason, "id"))


def calibrated(
    source: AbstractCollection, rows: CollectionRows, fitted: AbstractCalibrator | None = None
) -> tuple[CollectionRows, list[tuple[Id, str]]]:
    """The rows with calibrated vectors, and those that are left out: their ids and the reasons.

    Raises:
        RowError: For the first row that cannot be used, unless bad rows are left out.
    """

    def make(x: Sequence[Float32]) -> Floats:
        if odd := odd_rows(np.asarray(x)).tolist():
            got = {at: x[at][~np.isfinite(x[at])][0] for at in odd}
            raise BadRowsError({at: f"vectors must be finite, got {got[at]}. Leave the row out." for at in odd})
        z = np.asarray(x) if fitted is None else fitted.transform(x)
        if fitted and (zeros := np.flatnonzero(~z.any(1)).tolist()):
            raise BadRowsError(dict.fromkeys(zeros, "comes out as zeros, which have no direction. Leave the row out."))
        return z

    places = [at for at in range(len(rows)) if at not in rows.bad]
    dim = fitted.dim_out if fitted else rows.vectors.shape[1]
    z, refused = usable_rows(make, rows.vectors[places], dim)
    bad = {**rows.bad, **{places[at]: reason for at, reason in refused.items()}}
    listed = [(rows.ids[at], reason) for at, reason in sorted(bad.items())]
    refuse_rows(source, listed)
    return rows.kept([at for at in places if at not in bad], z.astype(np.float32, copy=False)), listed


def part_digest(rows: CollectionRows) -> int:
    """Fingerprint of ids and vectors in any order, a sum of hashes: those of parts add up, modulo ``DIGESTS``."""
    pairs = zip(rows.ids, np.ascontiguousarray(rows.vectors), strict=True)
    return sum(xxh3_64_intdigest(repr(name).encode() + vector.tobytes()) for name, vector in pairs) % DIGESTS


def verify_target(
    source: AbstractCollection, target: AbstractCollection, ids: Sequence[Id], fitted: AbstractCalibrator
) -> tuple[int, float]:
    """Read back some rows of a finished target.

    Args:
        source: What it was made of.
        target: The calibrated collection.
        ids: Ids of rows of the source; some rows may have been left out.
        fitted: The calibrator.

    Returns:
        How many rows were read back, and the largest distance of a vector from what it should be, both as unit vectors:
        Qdrant keeps no lengths.

    Raises:
        DataError: If the vector or the payload of a row is another.
    """
    rows, _ = calibrated(source, source.fetch(ids), fitted)
    apart = np.linalg.norm(unit_rows(target.vectors_of(rows.ids)) - unit_rows(rows.vectors), axis=1)
    near = max(NEAR, float(np.finfo(target.facts.stored).eps))
    payloads = zip(rows.payload, target.fetch(rows.ids).payload, strict=True)
    for name, far, (one, other) in zip(rows.ids, apart > near, payloads, strict=True):
        if far or (one != other and repr(one) != repr(other)):  # a NaN differs from itself
            raise DataError(
                f"{target.address}: the {'vector' if far else 'payload'} of the row {name!r} is not that of the source."
                " Was the source changed meanwhile? Reindex into another new collection."
            )
    return len(rows), float(apart.max(initial=0))
