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

from bertflow.evaluation.rows import Row, SystemFacts
from bertflow.evaluation.significance import Figure, generator


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
        return f"flow of {self.flow}, {len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"

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
            figure: Of k systems.
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
        return replace(
            figure,
            values=np.append(figure.values, mean),
            replicates=np.vstack([figure.replicates, np.take_along_axis(replicates, drawn, axis=0).mean(0)]),
            influence=influence,
            between=None if between is None else np.pad(between, (0, 1), constant_values=np.nan),
        )

    def spreads(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Of each task, aggregation, sub-set and metric: every seed's value, their mean and standard deviation."""
        found: dict[tuple[str, ...], list[float]] = {}
        for row in rows:
            if row.system in self.systems:
                found.setdefault((row.task, row.aggregation, row.subset, row.metric), []).append(row.value)
        names = ("task", "aggregation", "subset", "metric")
        return [
            dict(zip(names, place, strict=True))
            | {
                "seeds": self.seeds,
                "values": values,
                "mean": float(np.mean(values)),
                "standard_deviation": spread(values),
            }
            for place, values in found.items()
        ]


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation, with n - 1; None of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
