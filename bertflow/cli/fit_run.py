"""What ``bertflow fit`` does: read the rows, fit, write a calibrator folder, say what it was fitted on.

center, standardize, abtt, whitening     one pass: moments of blocks, merged over blocks and ranks
flow                                     that pass, then training in batches drawn from all rows
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.linear import AbstractLinearCalibrator
from bertflow.calibration.spelling import parse_calibrator
from bertflow.cli.embed_progress import progress
from bertflow.cli.fit_source import Source, any_order, name_of, open_source, provenance_of
from bertflow.errors import DataError, UsageError
from bertflow.moments import Moments
from bertflow.progress import Advance
from bertflow.store.locks import place
from bertflow.store.store import EmbeddingStore

OF_FLOW = ("preset", "seed")


def fit(options: argparse.Namespace) -> int:
    """Fit what the command line asks for; returns the exit code.

    Raises:
        UsageError: If the calibrator is spelled wrongly, or an option is not its own.
        DataError: If the rows cannot be used; the message names file and row.
    """
    calibrator = parse_calibrator(options.calibrator)
    _refuse(options, calibrator)
    source = open_source(options)
    begin = time.monotonic()
    with ranks() as (rank, world), progress("fitting", source.n // world) as advance:
        moments = merged_over_ranks(moments_of_share(source, rank, world, advance), rank, world)
        if rank:
            return 0
        fitted = _fitted(calibrator, source, moments, options)
        fitted.provenance_ = provenance_of(source)
        fitted.save(options.output)
    _summarize(fitted, source, options, time.monotonic() - begin)
    return 0


def moments_of_share(source: Source, rank: int, world: int, advance: Advance) -> Moments | None:
    """Moments of this rank's share of the rows; None where there are fewer rows than ranks."""
    start, stop = (source.n * share // world for share in (rank, rank + 1))
    moments: Moments | None = None
    for block in source.blocks(start=start, stop=stop):
        seen = Moments.of(block)
        moments = seen if moments is None else moments.merge(seen)
        advance(len(block))
    return moments


def merged_over_ranks(mine: Moments | None, rank: int, world: int) -> Moments:
    """The moments of all rows, on every rank."""
    parts = [mine]
    if world > 1:
        parts = [None] * world
        dist.all_gather_object(parts, mine)
    return Moments.merged(part for part in parts if part is not None)


@contextmanager
def ranks() -> Iterator[tuple[int, int]]:
    """Which of the processes that torchrun started this is, and of how many; one alone needs no others.

    Raises:
        UsageError: If this is one of several that do not know how to find each other.
    """
    rank, world = place()
    if world == 1 or "MASTER_ADDR" not in os.environ:
        if rank:
            raise UsageError(f"Process {rank} of {world} cannot find the others: MASTER_ADDR is not set. Use torchrun.")
        yield 0, 1
        return
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        yield rank, world
    finally:
        dist.destroy_process_group()


def _refuse(options: argparse.Namespace, calibrator: AbstractCalibrator) -> None:
    if options.output.exists() and not (options.output.is_dir() and not any(options.output.iterdir())):
        raise DataError(f"{options.output} should not exist or be an empty folder, but it is there. Name another.")
    if isinstance(calibrator, FlowCalibrator):
        if place()[1] > 1:
            raise UsageError("A flow is trained over several processes by `bertflow train`. Use it, or one process.")
        return
    for name in OF_FLOW:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is for a flow, but {options.calibrator} has none. Leave it out.")


def _fitted(
    calibrator: AbstractCalibrator, source: Source, moments: Moments, options: argparse.Namespace
) -> AbstractCalibrator:
    if isinstance(calibrator, AbstractLinearCalibrator):
        return calibrator.fit_moments(moments)
    assert isinstance(calibrator, FlowCalibrator), "a calibrator is linear, or a flow"
    from bertflow.training.fit import fit_flow  # heavier still
    from bertflow.training.presets import resolve

    kept = calibrator.n_components
    recipe = resolve(options.preset or "default", {} if kept == "auto" else {"n_components": kept})
    with any_order(source, options.output) as rows:
        bar = {"enable_progress_bar": sys.stderr.isatty()}
        fitted = fit_flow(rows, recipe, random_state=options.seed or 0, trainer=bar)
    return FlowCalibrator.of(fitted, recipe, moments, None)


def _summarize(fitted: AbstractCalibrator, source: Source, options: argparse.Namespace, seconds: float) -> None:
    n = fitted.moments_.n
    given = "store" if isinstance(source, EmbeddingStore) else "vectors"
    known = f"text and encoder of {name_of(source)}" if given == "store" else "plain vectors: text and encoder unknown"
    print(f"calibrator  {options.output}: {options.calibrator}, {fitted.dim_in} -> {fitted.dim_out}")
    print(f"fitted on   {n:,} rows, {known}")
    print(f"took        {seconds:.1f} s, {n / seconds:,.0f} rows a second")
    print(
        f"\nnext: bertflow transform --calibrator {options.output} --{given} {name_of(source)} --output calibrated.npy"
    )
