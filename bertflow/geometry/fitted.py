"""A fitted flow in a report: how its training went and which state was kept, and whether its latent is a Gaussian.

For z ~ N(0, I) of d dimensions |z|^2 / d has the quantiles of chi-square with d degrees of freedom, over d: the points
of the plot then lie on the diagonal. If they rise more steeply, some embeddings lie far out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from bertflow.array_types import Float64, Floats
from bertflow.data.columns import parse_score
from bertflow.data.tables import open_table
from bertflow.errors import DataError
from bertflow.geometry.report import GeometrySection, attributes, listed
from bertflow.records import read_record
from bertflow.tables import Table
from bertflow.training.record import FitRecord, Gaussianity, gaussianity

LEVELS = np.linspace(0.01, 0.99, 99)
"""Probabilities of the quantiles."""
MIDDLE = [4, 94]
"""Places of 5 and 95 % among them."""
DEPARTURES: Mapping[str, str] = {
    "mean": "means",
    "covariance": "covariances",
    "sampling": "by chance",
    "variance": "variances",
    "skewness": "skewness",
    "kurtosis": "kurtosis",
    "norm_ks": "lengths",
}
"""Departures of a latent from N(0, I), and their titles."""
HELD_OUT = "held out"
TRAINING: Mapping[str, str] = {
    "bits per dimension": "How many bits the flow needs to say where an embedding lies, over the dimension. The "
    "lower, the better it describes the cloud.",
    HELD_OUT: "Rows that were not trained on. Where their line rises while that of training falls, the flow learns its "
    "rows by heart.",
}
HISTORY: Mapping[str, str] = {"train/bits_per_dim": "training", "val/bits_per_dim": HELD_OUT}
"""Columns of metrics.csv that are drawn, and their names."""
EQUAL = 1e-4
"""Bits that differ by less are equal: those of a record were computed again."""
History = Mapping[str, tuple[Float64, Float64]]
"""Steps and bits per dimension, by the rows on which they were measured."""


def length_quantiles(z: Floats) -> tuple[Float64, Float64]:
    """Quantiles (99,) of |z|^2 / dim: those of chi-square, and those of the rows z (n, dim)."""
    z = np.asarray(z, dtype=np.float64)
    dim = z.shape[1]
    return stats.chi2(dim).ppf(LEVELS) / dim, np.quantile(np.square(z).sum(1) / dim, LEVELS)


def length_spread(expected: Float64, observed: Float64) -> float:
    """Distance of the 5 % and 95 % quantiles over that of chi-square; 1 for a Gaussian, above 1 heavy tails."""
    return float(np.ptp(observed[MIDDLE]) / np.ptp(expected[MIDDLE]))


def show_latents(latents: Mapping[str, Floats], order: Sequence[str]) -> GeometrySection:
    """Quantiles of the squared length of the latent, and the departures of its moments.

    Args:
        latents: Rows z (n, dim) of each system that should map to a Gaussian.
        order: All systems of the report, so that each has one color throughout.
    """
    quantiles = {name: length_quantiles(z) for name, z in latents.items()}
    spreads = {name: length_spread(*pair) for name, pair in quantiles.items()}
    departures = {name: vars(gaussianity(z)) for name, z in latents.items()}
    return GeometrySection(
        "A Gaussian would lie on the grey line. The width of the middle 90 % of the squared lengths, over "
        f"that of chi-square, is {listed(spreads, 1)}; above 1 some embeddings lie far out.",
        {
            name: {"spread": spreads[name], "expected": pair[0], "observed": pair[1], "departures": departures[name]}
            for name, pair in quantiles.items()
        },
        lambda plots: plots.curves(
            quantiles,
            "quantile of chi-square / degrees of freedom",
            "quantile of squared length / dim",
            reference="a Gaussian",
            order=order,
        ),
        f"Quantiles of the squared length of the latent against those of chi-square, for {', '.join(latents)}.",
        Table(
            ("system", *DEPARTURES.values()),
            tuple((name, *(f"{found[key]:.3f}" for key in DEPARTURES)) for name, found in departures.items()),
        ),
        explained={title: attributes(Gaussianity)[name] for name, title in DEPARTURES.items()},
    )


def read_history(run: Path | None) -> History:
    """What the metrics.csv of a run says.

    Raises:
        DataError: If it is not the folder of a run, or fewer than two values of any were logged.
    """
    if run is None or not (path := run / "metrics.csv").is_file():
        raise DataError(f"{run.name if run else 'This'} is not the folder of a training run.")
    table, found = open_table(path), {}
    (step,) = table.require([["step"]], "Is it the log of a training?")
    for column, name in HISTORY.items():
        rows = table.usable((step, column), lambda row: row) if column in table.columns else ()
        points = [[parse_score(row, at) for at in range(2)] for row in rows if row.cells[1]]
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


def show_training(history: History, kept: FitRecord | None = None) -> GeometrySection:
    """Bits per dimension over the steps of the training, with the state that was kept."""
    numbers = {name: {"first": bits[0], "last": bits[-1], "least": bits.min()} for name, (_, bits) in history.items()}
    told = "; ".join(
        f"{name} {'fall' if row['last'] < row['first'] else 'do not fall'}, from {row['first']:.3f} to "
        f"{row['last']:.3f}"
        for name, row in numbers.items()
    )
    sees = f"Bits per dimension: {told}. Fewer bits are a better density, which is not yet a better similarity."
    alt, mark = f"Bits per dimension over the steps of the training: {', '.join(history)}", None
    if kept is not None:
        why = why_kept(kept, history)
        sees += f" Kept: {kept.kept}, {why}."
        alt += f"; a vertical line marks the state that was kept, {kept.kept}"
        numbers["kept"] = {"state": kept.kept, "why": why}
        # Lightning counts steps from 0 where it logs, and from 1 where it names a state.
        mark = (max(0.0, float(kept.kept.removeprefix("step ").replace("start", "0")) - 1), "kept")
    return GeometrySection(
        sees,
        numbers,
        lambda plots: plots.curves(history, "step of the optimizer", "bits per dimension", mark=mark),
        f"{alt}.",
        explained=TRAINING,
    )


def why_kept(record: FitRecord, history: History) -> str:
    """Why a state was kept, in words."""
    if record.held_out_bits is None:
        return "since no rows were held out to choose by"
    if record.kept == "start":
        return "since no step had fewer held-out bits"
    least = history[HELD_OUT][1].min() if HELD_OUT in history else record.held_out_bits
    if record.held_out_bits <= least + EQUAL:
        return f"the fewest held-out bits ({record.held_out_bits:.3f})"
    return "since the recipe keeps the last state, whatever its held-out bits"
