"""The training of a flow in a report: bits per dimension by step, and which state was kept, and why."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from bertflow.data.pairs import ANY_SCALE, parse_score
from bertflow.data.tables import open_table
from bertflow.errors import DataError
from bertflow.geometry.explained import HELD_OUT, TRAINING
from bertflow.geometry.report import GeometrySection
from bertflow.moments import Float64
from bertflow.records import read_record
from bertflow.training.record import FitRecord

HISTORY: Mapping[str, str] = {"train/bits_per_dim": "training", "val/bits_per_dim": HELD_OUT}
"""Columns of metrics.csv that are drawn, and their names."""
EQUAL = 1e-4
"""Bits that differ by less are equal: those of a record were computed again."""


def read_history(run: Path | None) -> dict[str, tuple[Float64, Float64]]:
    """Steps and bits per dimension from the metrics.csv of a run, by the rows on which they were measured.

    Raises:
        DataError: If it is not the folder of a run, or fewer than two values of any were logged.
    """
    if run is None or not (path := run / "metrics.csv").is_file():
        raise DataError(f"{run.name if run else 'This'} is not the folder of a training run.")
    table, found = open_table(path), {}
    (step,) = table.require([["step"]], "Is it the log of a training?")
    for column, name in HISTORY.items():
        rows = table.read((step, column)) if column in table.columns else ()
        logged = ((partial(table.bad, number), cells) for number, cells in rows if cells[1])
        points = [[parse_score(cell, ANY_SCALE, bad) for cell in cells] for bad, cells in logged]
        if len(points) > 1:
            steps, bits = np.array(points).T
            found[name] = (steps, bits)
    if not found:
        raise DataError(f"{path} should hold bits per dimension, but fewer than two values were logged. Train longer.")
    return found


def read_kept(run: Path | None) -> FitRecord | None:
    """What a run's report/fit.json says of the state that was kept; None where there is none."""
    path = run and run / "report" / "fit.json"
    return read_record(path, FitRecord, "report on a fit") if path and path.is_file() else None


def show_training(history: Mapping[str, tuple[Float64, Float64]], kept: FitRecord | None = None) -> GeometrySection:
    """Bits per dimension over the steps of the training, with the state that was kept."""
    ends = {name: {"first": bits[0], "last": bits[-1], "least": bits.min()} for name, (_, bits) in history.items()}
    told = "; ".join(
        f"{name} {'fall' if row['last'] < row['first'] else 'do not fall'}, from {row['first']:.3f} to "
        f"{row['last']:.3f}"
        for name, row in ends.items()
    )
    sees = f"Bits per dimension: {told}. Fewer bits are a better density, which is not yet a better similarity."
    numbers, mark = {**ends}, None
    if kept is not None:
        why = why_kept(kept, history)
        sees += f" Kept: {kept.kept}, {why}."
        numbers["kept"] = {"state": kept.kept, "why": why}
        # Lightning counts steps from 0 where it logs, and from 1 where it names a state.
        mark = (max(0.0, float(kept.kept.removeprefix("step ")) - 1) if kept.kept != "start" else 0.0, "kept")
    return GeometrySection(
        sees,
        numbers,
        lambda plots: plots.curves(history, "step of the optimizer", "bits per dimension", mark=mark),
        f"Bits per dimension over the steps of the training: {', '.join(history)}"
        + (f"; a vertical line marks the state that was kept, {kept.kept}." if kept else "."),
        explained=TRAINING,
    )


def why_kept(record: FitRecord, history: Mapping[str, tuple[Float64, Float64]]) -> str:
    """Why a state was kept, in words."""
    if record.held_out_bits is None:
        return "since no rows were held out to choose by"
    if record.kept == "start":
        return "since no step had fewer held-out bits"
    least = history[HELD_OUT][1].min() if HELD_OUT in history else record.held_out_bits
    if record.held_out_bits <= least + EQUAL:
        return f"the fewest held-out bits ({record.held_out_bits:.3f})"
    return "since the recipe keeps the last state, whatever its held-out bits"
