"""A report: every number of an evaluation, and how each was made.

    rows         one number each, with its interval, its protocol and its system's description
    differences  every pair of systems on every task and suite
    tables       the same for reading, in the column order of the papers

Equal input gives equal bytes: nothing here depends on the time or the machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bertflow.evaluation.leaks import SystemFacts
from bertflow.evaluation.meter import ScoredTask
from bertflow.evaluation.rows import Row
from bertflow.evaluation.significance import Difference
from bertflow.evaluation.summary import comparison, protocol_line, system_line
from bertflow.evaluation.tables import Column, columns, interval_table, value_table
from bertflow.files import to_json
from bertflow.tables import Table


@dataclass(frozen=True)
class Report:
    """What ``evaluate_sts`` and ``evaluate_retrieval`` give back.

    Attributes:
        rows: All numbers.
        differences: All pairs of systems.
        systems: What each system says about itself.
        resamples: How often the pairs were resampled.
        seed: Of the resamples.
        metric: The metric that tables show.
        tasks: The STS tasks with all similarities, for the predictions.
    """

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    systems: tuple[SystemFacts, ...]
    resamples: int
    seed: int
    metric: str
    tasks: tuple[ScoredTask, ...] = ()

    @classmethod
    def joined(cls, reports: "Sequence[Report]") -> "Report":
        """Reports on the same systems as one; tables show the first one's metric, and all of the others'."""
        first = reports[0]
        return replace(
            first,
            rows=tuple(row for report in reports for row in report.rows),
            differences=tuple(row for report in reports for row in report.differences),
            tasks=tuple(task for report in reports for task in report.tasks),
        )

    def columns(self, aggregation: str = "all") -> list[Column]:
        """The columns of the report's tables."""
        return columns(self.rows, aggregation, self.metric)

    def table(self, aggregation: str = "all") -> Table:
        """The values, x 100."""
        return value_table(self.rows, self.columns(aggregation))

    def intervals(self, aggregation: str = "all") -> Table:
        """The 95 % intervals of the same cells."""
        return interval_table(self.rows, self.columns(aggregation))

    def captions(self, aggregation: str = "all") -> list[str]:
        """How the numbers of the table were made: one line for all, one for each system."""
        shown = self.columns(aggregation)
        own = [system_line(system, self.rows, shown) for system in self.systems]
        return [protocol_line(self.rows, shown, self.resamples, self.seed), *own]

    def comparison(self, aggregation: str = "all") -> list[str]:
        """What can be told apart, in words: the best system against each other one."""
        return comparison(self.rows, self.differences, self.columns(aggregation))

    def value(self, system: str, task: str, aggregation: str = "all", metric: str | None = None) -> float:
        """One number, in [-1, 1].

        Raises:
            KeyError: If the report has no such row.
        """
        wanted = (system, task, aggregation, metric or self.metric)
        for row in self.rows:
            if (row.system, row.task, row.aggregation, row.metric) == wanted:
                return row.value
        raise KeyError(wanted)

    def as_dict(self) -> Mapping[str, Any]:
        """Everything but the similarities, ready for JSON; correlations in [-1, 1]."""
        return {
            "format": 1,
            "resamples": self.resamples,
            "seed": self.seed,
            "systems": {system.name: dict(system.description) for system in self.systems},
            "rows": [row.as_dict() for row in self.rows],
            "differences": [{**asdict(row), "separable": row.separable} for row in self.differences],
        }

    def to_json(self) -> str:
        """Everything but the similarities; correlations in [-1, 1]."""
        return to_json(self.as_dict())

    def to_markdown(self, aggregation: str = "all") -> str:
        """Tables x 100, what can be told apart, and how each number was made."""
        parts = ["# Scores\n", self.table(aggregation).to_markdown()]
        if self.resamples:
            parts += ["## 95 % intervals\n", self.intervals(aggregation).to_markdown()]
        if lines := self.comparison(aggregation):
            parts += ["## What can be told apart\n", _list(lines)]
        return "\n".join([*parts, "## How these numbers were made\n", _list(self.captions(aggregation))])


def _list(lines: list[str]) -> str:
    return "".join(f"* {line}\n" for line in lines)
