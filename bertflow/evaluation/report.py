"""A report: every number of an evaluation, and how each was made.

    rows         one number each, with its interval, its protocol and its system's description
    differences  every pair of systems on every task and suite
    tables       the same for reading, in the column order of the papers

Equal input gives equal bytes: nothing here depends on the time or the machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bertflow.data.sts_tasks import SUITES
from bertflow.evaluation.figures import AGGREGATIONS, ScoredTask
from bertflow.evaluation.rows import Row, SystemFacts
from bertflow.evaluation.significance import LEVEL, Difference
from bertflow.evaluation.tables import UNSCALED, Column, columns, interval, interval_table, number, value_table
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


def comparison(rows: Sequence[Row], differences: Sequence[Difference], shown: Sequence[Column]) -> list[str]:
    """The best system against each other one, on the suite if there is one, else on the first column.

    Args:
        rows: All rows.
        differences: All pairs of systems.
        shown: The columns of the table.

    Returns:
        A line for each other system, best first; none for a single system.
    """
    lead = next((column for column in shown if column.task in SUITES), shown[0])
    best, *others = sorted((row for row in rows if _fits(row, lead)), key=lambda row: -row.value)
    lines = []
    for other in others:
        pair = [
            row.seen_from(best.system) for row in differences if {row.first, row.second} == {best.system, other.system}
        ]
        lines.append(_versus(lead, best, other, pair, [column for column in shown if column.task not in SUITES]))
    return lines


def _fits(row: Row | Difference, column: Column) -> bool:
    return (row.task, row.aggregation, row.metric) == (column.task, column.aggregation, column.metric)


def _versus(lead: Column, best: Row, other: Row, pair: Sequence[Difference], tasks: Sequence[Column]) -> str:
    difference = next(row for row in pair if _fits(row, lead))
    text = (
        f"{lead.title}: {best.system} {number(best.value, best.metric)} against {other.system} "
        f"{number(other.value, other.metric)}, difference {number(difference.difference, best.metric)}"
    )
    if difference.separable is None:
        return f"{text}; nothing was resampled, so whether that is chance is not known."
    text += f" (95 % {interval(difference.ci_low, difference.ci_high, best.metric)}): "
    text += "separable" if difference.separable else "not separable"
    if len(tasks) < 2:
        return f"{text}."
    found = [(column.title, row) for column in tasks for row in pair if _fits(row, column)]
    above = sum(bool(row.separable) and row.difference > 0 for _, row in found)
    below = sum(bool(row.separable) and row.difference < 0 for _, row in found)
    same = [title for title, row in found if not row.separable]
    text += f"; task by task above on {above}, below on {below}"
    return f"{text}, not separable on {', '.join(same)}." if same else f"{text}."


def protocol_line(rows: Sequence[Row], shown: Sequence[Column], resamples: int, seed: int) -> str:
    """How all numbers of a table were made."""
    used = [row for row in rows if any(_fits(row, column) for column in shown)]
    metrics = dict.fromkeys(row.metric for row in used)
    scaled = ", ".join(metric for metric in metrics if not metric.endswith(UNSCALED))
    aggregations = "; ".join(
        f"aggregation {name} ({AGGREGATIONS[name].meaning})"
        for name in dict.fromkeys(row.aggregation for row in used)
        if name in AGGREGATIONS
    )
    text_forms = " and ".join(dict.fromkeys(form for row in used for form in row.text_form.split("+")))
    line = f"{scaled} x 100; {aggregations}; {text_forms} text"
    if not resamples:
        return f"{line}; no intervals."
    return (
        f"{line}. 95 % intervals from {resamples:,} bootstrap resamples (seed {seed}): of pairs, BCa; of sentences for "
        f"averages over tasks. Separable: p < {LEVEL} by the paired bootstrap, over the tasks with Holm's correction."
    )


def system_line(system: SystemFacts, rows: Sequence[Row], shown: Sequence[Column]) -> str:
    """How one system was made, and what it saw of the scored text."""
    description = system.description
    parts = [f"encoder {description['encoder']}"] if "encoder" in description else []
    parts += [f"{key.replace('_', ' ')} {description[key]}" for key in ("pooling", "max_length") if key in description]
    if description.get("prompt"):
        parts.append(f"prompt {description['prompt']!r}")
    if "calibrator" in description:
        parts.append(f"{description['calibrator']} fitted on {description['fitted_rows']:,} rows")
    own = [row for row in rows if row.system == system.name and any(_fits(row, column) for column in shown)]
    parts.append(_seen(own))
    if system.labels:
        parts.append(f"trained on the labels of {', '.join(system.labels)}")
    leaks = dict.fromkeys(row.label_leak for row in own if row.label_leak)
    if leaks:
        parts.append(f"TRAINED ON LABELS of {', '.join(leaks)}: scores marked ! are forced and say nothing")
    return f"{system.name}: {', '.join(parts)}."


def _seen(rows: Sequence[Row]) -> str:
    shares = [row.seen for row in rows if row.seen is not None]
    if len(shares) < len(rows):
        return "seen unknown (fitted on bare arrays)"
    low, high = min(shares), max(shares)
    span = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    return f"seen {span} ({'/'.join(dict.fromkeys(row.setting for row in rows))})"
