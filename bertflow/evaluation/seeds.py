"""One flow with several seeds: is a score the recipe's, or one seed's luck?

    the run's text, embedded once -> the same recipe with the next seeds -> a system for each -> their mean

The seed decides the rows that are held out, the flow's first weights and the order of the rows. A score of the recipe
is the mean over seeds; its spread, with n - 1, is that of one fit. Both the pairs and the seeds are samples, so the
interval of the mean resamples both, independently of each other:

    pairs (or sentences, or queries)   as for every other system, with the same weights: differences are paired
    seeds                              n - 1 of the n, with replacement, the same ones for every task

The plain bootstrap of n seeds has (n - 1) / n of the variance of their mean, a fifth too little for five; n - 1 draws
have all of it. So few seeds still make an interval too short where they differ more than the pairs' noise, as a normal
one is beside Student's: with normal noise, 95 % intervals of 5 seeds cover 94 % if a seed's spread is at most that of
the pairs, 93 % at twice that, and 86 % without noise of pairs (simulated).

Source: Owen 2007, "The pigeonhole bootstrap", for two crossed samples; McCarthy & Snowden 1985, "The
bootstrap and finite population sampling", for n - 1 draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertflow.affine import AffineMap
from bertflow.calibration.flow import FlowCalibrator
from bertflow.errors import UsageError, how_many
from bertflow.evaluation.report import Report
from bertflow.evaluation.score_table import Column, SystemFacts
from bertflow.evaluation.significance import Figure, generator
from bertflow.evaluation.systems import SharedPass
from bertflow.maps import fitted_map
from bertflow.tables import MISSING, Section, Table, interval, number


@dataclass(frozen=True)
class SeveralSeeds:
    """One flow with several seeds.

    Attributes:
        flow: Name of the system that was given.
        seeds: The given one first.
        systems: Names of the systems, in the order of the seeds.
    """

    flow: str
    seeds: tuple[int, ...]
    systems: tuple[str, ...]

    @property
    def name(self) -> str:
        """What tables call the mean."""
        return f"flow of {self.flow}, {how_many(len(self.seeds), 'seeds')}"

    def facts(self, systems: Sequence[SystemFacts]) -> SystemFacts:
        """What the mean says about itself: the same as the given system, with all seeds."""
        given = next(facts for facts in systems if facts.name == self.flow)
        spelling = given.description["calibrator"].replace(
            f"random_state={self.seeds[0]}", f"random_state={list(self.seeds)}"
        )
        return replace(given, name=self.name, description={**given.description, "calibrator": spelling})

    def with_mean(self, figure: Figure, systems: Sequence[str], seed: int) -> Figure:
        """The figure with the mean over seeds as one more system.

        Args:
            figure: Figure of k systems.
            systems: Their names.
            seed: Random seed for the bootstrap.
        """
        members = [systems.index(name) for name in self.systems]
        values, replicates = figure.values[members], figure.replicates[members]
        n, resamples = replicates.shape
        drawn = generator(seed, "seeds").integers(0, n, (max(1, n - 1), resamples))
        mean, influence, between = values.mean(), figure.influence, figure.between
        if influence is not None:  # the seeds' own stand beside those of the pairs
            of_pairs = np.vstack([influence, influence[members].mean(0)])
            of_seeds = np.vstack([np.zeros((len(influence), n)), (values - mean) / n])
            influence = np.hstack([of_pairs, of_seeds])
        values = np.append(figure.values, mean)
        replicates = np.vstack([figure.replicates, np.take_along_axis(replicates, drawn, axis=0).mean(0)])
        between = None if between is None else np.pad(between, (0, 1), constant_values=np.nan)
        return replace(figure, values=values, replicates=replicates, influence=influence, between=between)

    def add_to(self, report: Report) -> Report:
        """The report with each seed's scores, their mean and spread, and the mean minus each other system."""

        def line(title: str, values: Sequence[float | None]) -> tuple[str, ...]:
            cells = (number(one, column.place.metric) for one, column in zip(values, report.columns, strict=True))
            return title, *cells

        header = [column.title for column in report.columns]
        scores = [[report.by_place[name, one.place].value for one in report.columns] for name in self.systems]
        lines = [line(str(seed), row) for seed, row in zip(self.seeds, scores, strict=True)]
        by_column = list(zip(*scores, strict=True))
        lines += [line("mean", [*map(float, map(np.mean, by_column))])]
        lines += [line("standard deviation", [*map(spread, by_column)])]
        words = f"Seed {self.seeds[0]} is {self.flow} itself. The standard deviation (n - 1) is that of one fit."
        found = [Section(f"Seeds of the flow of {self.flow}", Table(("seed", *header), tuple(lines)), (words,))]
        if others := [facts.name for facts in report.shown if facts.name != self.name]:
            cells = ((name, *(self._less(report, name, column) for column in report.columns)) for name in others)
            words = "95 % intervals, of pairs and of seeds." if report.resamples else "Nothing was resampled."
            found.append(
                Section(f"{self.name}, minus each other system", Table(("minus", *header), tuple(cells)), (words,))
            )
        return report.add(*found, data={"seeds": self.spreads(report)})

    def spreads(self, report: Report) -> list[dict[str, Any]]:
        """Values of every seed, with mean and standard deviation, for each task, aggregation, sub-set and metric."""
        found: dict[tuple[str, ...], list[float]] = {}
        for row in report.rows:
            if row.system in self.systems:
                found.setdefault((row.task, row.aggregation, row.subset, row.metric), []).append(row.value)
        names = ("task", "aggregation", "subset", "metric", "seeds", "values", "mean", "standard_deviation")
        rows = ((*place, self.seeds, one, float(np.mean(one)), spread(one)) for place, one in found.items())
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _less(self, report: Report, other: str, column: Column) -> str:
        """The mean minus another system in a column, with its interval."""
        row = next((row for row in report.compared(self.name, other) if row.place == column.place), None)
        if row is None:
            return MISSING
        ends = interval(row.ci_low, row.ci_high, row.metric)
        return number(row.difference, row.metric) + ("" if ends == MISSING else f" ({ends})")


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation, with n - 1; None of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def the_flow(systems: Sequence[SharedPass]) -> tuple[int, FlowCalibrator]:
    """Which of some systems is a flow that a seed has decided.

    Raises:
        UsageError: If none is, or several are, or its fit was interrupted.
    """
    found = [(at, one.calibrator) for at, one in enumerate(systems) if isinstance(one.calibrator, FlowCalibrator)]
    names = ", ".join(f"{one.name} ({type(one.calibrator).__name__ if one.calibrator else 'raw'})" for one in systems)
    if len(found) != 1:
        raise UsageError(
            f"seeds fits one flow again, but {len(found) or 'none'} of {names} {'are' if found else 'is a'} "
            f"flow{'s' if found else ''}. Only a flow depends on a seed; give a run of `bertflow train`."
        )
    at, calibrator = found[0]
    if isinstance(fitted_map(calibrator.map), AffineMap):
        raise UsageError(f"The flow of {systems[at].name} is an affine map, so it has no seeds. Leave seeds out.")
    if calibrator.facts_["interrupted"]:
        raise UsageError(f"The fit of {systems[at].name} was interrupted. Finish it with --resume auto.")
    return at, calibrator
