"""The rows of a collection: those that can be used, a calibrator that is fitted to them, and what became of them.

Rows without a vector, with a number that is not finite, or that a calibrator refuses are refused by their id, or left
out (``bertflow.skip_bad``).
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from bertflow.breadth import watch_breadth
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.calibrators import AbstractClosedForm, FlowCalibrator
from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.skipping import leave_out, usable_rows
from bertflow.errors import BadRowsError, DataError, RowError, UsageError, require_directions
from bertflow.moments import Moments
from bertflow.progress import Advance, bar, watched
from bertflow.retrieval.collections import AbstractCollection, CollectionRows, Id, Part
from bertflow.runs.rows import flow_recipe
from bertflow.similarity import unit_rows
from bertflow.training.fitting import fit_flow
from bertflow.training.purpose import Purpose

FLOW_ROWS = 50_000
"""Rows that a flow is fitted to, by default."""
SAMPLE, SAMPLED_PARTS = 1000, 16
"""Rows that are read back in the end, of at most so many parts."""
NEAR = 1e-5
"""How far a vector that is read back may be from what it should be, both as unit vectors; a rounding step of the type
that it is stored as, if that is larger."""
DIGESTS = 2**63
"""Digests of rows are below it."""
Bad = list[tuple[Id, str]]
"""Ids of rows that cannot be used, each with the reason."""


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
    require_directions(getattr(made, "n_components", None), facts.dim)
    share = (asked.fit_rows or (FLOW_ROWS if recipe else facts.n)) / facts.n
    with bar(facts.n, "fitting", progress, "rows") as advance:
        blocks = _sampled(source, parts, share, asked.seed or 0, advance)
        blocks = watch_breadth(blocks, int(share * facts.n)) if made.divides else blocks
        if isinstance(made, AbstractClosedForm):
            return made.fit_moments(Moments.merged(map(Moments.of, blocks)), None)
        x = np.concatenate(list(blocks))
    assert recipe, "a calibrator is a closed form, or a flow"
    options = {"enable_progress_bar": watched() if progress is None else progress}
    return FlowCalibrator.of(fit_flow(x, recipe, asked.seed or 0, options), recipe, Moments.of(x), None)


def _sampled(
    source: AbstractCollection, parts: Sequence[Part], share: float, seed: int, advance: Advance
) -> Iterator[NDArray[np.float32]]:
    """About this share of the rows that can be used, drawn at random."""
    for number, part in enumerate(parts):
        rows = source.read(part)
        draws = np.random.default_rng([seed, number]).random(len(rows))
        places, bad = _usable(rows)
        refuse_rows(source, bad)
        if drawn := [at for at in places if draws[at] < share]:
            yield rows.vectors[drawn]
        advance(len(rows))


def _usable(rows: CollectionRows) -> tuple[list[int], Bad]:
    """The places of vectors that are there and finite, and what is wrong with the others."""
    bad, finite = dict(rows.bad), np.isfinite(rows.vectors)
    for at in np.flatnonzero(~finite.all(1)).tolist():
        bad[at] = f"vectors must be finite, got {rows.vectors[at][~finite[at]][0]}. Leave the row out."
    return [at for at in range(len(rows)) if at not in bad], _listed(rows, bad.items())


def _listed(rows: CollectionRows, bad: Iterable[tuple[int, str]]) -> Bad:
    return [(rows.ids[at], reason) for at, reason in sorted(bad)]


def refuse_rows(source: AbstractCollection, bad: Bad) -> None:
    """Refuse rows, unless bad rows are left out.

    Raises:
        RowError: For the first one.
    """
    for name, reason in bad:
        leave_out(RowError(str(source.address), name, reason, "id"))


def calibrated(
    source: AbstractCollection, rows: CollectionRows, fitted: AbstractCalibrator
) -> tuple[CollectionRows, Bad]:
    """The rows with calibrated vectors, and those that are left out.

    Raises:
        RowError: For the first row that cannot be used, unless bad rows are left out.
    """
    places, bad = _usable(rows)
    z, refused = usable_rows(lambda x: _with_directions(fitted.transform(x)), rows.vectors[places], fitted.dim_out)
    bad = [*bad, *_listed(rows, ((places[at], reason) for at, reason in refused.items()))]
    refuse_rows(source, bad)
    kept = [place for at, place in enumerate(places) if at not in refused]
    return rows.kept(kept, z.astype(np.float32, copy=False)), bad


def part_digest(rows: CollectionRows) -> int:
    """Fingerprint of ids and vectors in any order, a sum of hashes: those of parts add up, modulo ``DIGESTS``."""
    pairs = zip(rows.ids, np.ascontiguousarray(rows.vectors), strict=True)
    return sum(xxh3_64_intdigest(repr(name).encode() + vector.tobytes()) for name, vector in pairs) % DIGESTS


def _with_directions(z: NDArray[np.floating]) -> NDArray[np.floating]:
    if zeros := np.flatnonzero(~z.any(1)).tolist():
        raise BadRowsError(dict.fromkeys(zeros, "comes out as zeros, which have no direction. Leave the row out."))
    return z


def verify_target(
    source: AbstractCollection,
    target: AbstractCollection,
    parts: Sequence[Part],
    counts: range,
    fitted: AbstractCalibrator,
) -> tuple[int, float]:
    """Read back a random sample of a finished target.

    Args:
        source: What it was made of.
        target: The calibrated collection.
        parts: The source, in parts.
        counts: How many rows the target may hold.
        fitted: The calibrator.

    Returns:
        How many rows were read back, and the largest distance of a vector from what it should be, both as unit vectors.

    Raises:
        DataError: If it holds more or fewer rows, or the vector or the payload of a row is another.
    """
    if (n := target.facts.n) not in counts:
        raise DataError(
            f"{target.address} should hold {counts[0]:,} rows, but holds {n:,}. Did others write to it? Reindex into "
            "another new collection."
        )
    draw = random.Random(str(target.address))
    chosen = draw.sample(list(parts), min(SAMPLED_PARTS, len(parts)))
    verified, largest = 0, 0.0
    for part in chosen:
        rows, _ = calibrated(source, source.read(part), fitted)
        places = draw.sample(range(len(rows)), min(len(rows), -(-SAMPLE // len(chosen))))
        if places:
            apart = _distances(source, target, rows.kept(places, rows.vectors[places]))
            verified, largest = verified + len(places), max(largest, float(apart.max()))
    return verified, largest


def _distances(source: AbstractCollection, target: AbstractCollection, rows: CollectionRows) -> NDArray[np.floating]:
    """How far the vectors of some rows (n,) are from what they should be, as unit vectors: Qdrant keeps no lengths."""
    apart = np.linalg.norm(unit_rows(target.vectors_of(rows.ids)) - unit_rows(rows.vectors), axis=1)
    near = max(NEAR, float(np.finfo(target.facts.stored).eps))
    payloads = zip(source.fetch(rows.ids), target.fetch(rows.ids), strict=True)
    same = np.array([one == other or repr(one) == repr(other) for one, other in payloads])  # a NaN differs from itself
    if (wrong := np.flatnonzero((apart > near) | ~same)).size:
        what, name = "vector" if apart[wrong[0]] > near else "payload", rows.ids[wrong[0]]
        raise DataError(
            f"{target.address}: the {what} of the row {name!r} is not that of the source. Was the source changed "
            "meanwhile? Reindex into another new collection."
        )
    return apart
