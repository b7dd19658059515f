"""A report: every number of an evaluation, and how each was made.

    rows         one number each, with its interval, its protocol and its system's description
    differences  every pair of systems on every task and suite
    tables       the same for reading, in the column order of the papers

Equal input gives equal bytes: nothing here depends on the time or the machine.
"""

import platform
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertflow.data.sts_tasks import SUITES
from bertflow.errors import UsageError
from bertflow.evaluation.figures import AGGREGATIONS, ScoredTask
from bertflow.evaluation.rows import Row, SystemFacts
from bertflow.evaluation.significance import LEVEL, Difference
from bertflow.evaluation.tables import (
    UNSCALED,
    Column,
    columns,
    interval,
    interval_table,
    number,
    value_table,
)
from bertflow.evaluation.verification import Published, published_table
from bertflow.files import write_text
from bertflow.results import AbstractResult
from bertflow.tables import Section, Table

if TYPE_CHECKING:
    from bertflow.evaluation.lexical import Lexical

VERSIONS = ("bertflow", "torch", "transformers", "numpy", "scipy")


@dataclass(frozen=True, repr=False)
class Report(AbstractResult):
    """What ``evaluate`` and its parts give back.

    Attributes:
        rows: All numbers.
        differences: All pairs of systems.
        systems: What each system says about itself.
        resamples: How often the pairs were resampled.
        seed: Random seed for the bootstrap.
        metric: The metric that tables show.
        tasks: The STS tasks with all similarities, for the predictions.
        aggregation: Of the tables: a row of ``AGGREGATIONS``.
        theirs: Published figures below the table.
        sections: Tables below the scores.
        lexical: How the systems go with edit distance, if that was asked for.
        below: Thresholds that were missed, in words.
    """

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    systems: tuple[SystemFacts, ...]
    resamples: int
    seed: int
    metric: str
    tasks: tuple[ScoredTask, ...] = ()
    aggregation: str = "all"
    theirs: tuple[Published, ...] = ()
    sections: tuple[Section, ...] = ()
    lexical: "Lexical | None" = None
    below: str = ""

    name: ClassVar[str] = "results"
    title: ClassVar[str] = "Scores"

    @classmethod
    def joined(cls, reports: "Sequence[Report]") -> "Report":
        """Reports on the same systems as one; tables show the first one's metric, and all of the others'."""
        return replace(
            reports[0],
            rows=tuple(row for report in reports for row in report.rows),
            differences=tuple(row for report in reports for row in report.differences),
            tasks=tuple(task for report in reports for task in report.tasks),
        )

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of the report's tables."""
        return columns(self.rows, self.aggregation, self.metric)

    def table(self) -> Table:
        """The values, x 100."""
        return value_table(self.rows, self.columns)

    def intervals(self) -> Table:
        """The 95 % intervals of the same cells."""
        return interval_table(self.rows, self.columns)

    def comparison(self) -> list[str]:
        """The best system against each other one, on the suite if there is one, else on the first column."""
        lead = next((column for column in self.columns if column.task in SUITES), self.columns[0])
        best, *others = sorted((row for row in self.rows if _fits(row, lead)), key=lambda row: -row.value)
        return [self._versus(lead, best, other) for other in others]

    def captions(self) -> list[str]:
        """How the numbers of the table were made: one line for all, one for each system."""
        return [self._protocol(), *map(self._system_line, self.systems)]

    @property
    def _shown(self) -> list[Row]:
        return [row for row in self.rows if any(_fits(row, column) for column in self.columns)]

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

    def shortfalls(self, thresholds: Mapping[str, float], systems: Collection[str]) -> str:
        """Which systems fall short of thresholds (x 100, by task or suite), in words; empty if none does.

        Raises:
            UsageError: If a threshold names a task that was not scored.
        """
        shown = {column.task: column for column in self.columns}
        missed = []
        for task, limit in thresholds.items():
            if task not in shown:
                raise UsageError(f"There is a threshold for {task}, which was not scored. Scored: {', '.join(shown)}.")
            for system in systems:
                value = self.value(system, task, shown[task].aggregation, shown[task].metric)
                if 100 * value < limit:
                    missed.append(f"{system} scores {number(value, shown[task].metric)} on {task}, below {limit:g}")
        return f"{'; '.join(missed)}." if missed else ""

    def missed(self) -> str:
        """The thresholds that were missed."""
        return self.below

    def parts(self) -> Iterator[Table | Section | str]:
        """Tables x 100, what can be told apart, how each number was made, and the sections."""
        yield self.table()
        if self.theirs:
            yield published_table(self.theirs, self.columns)
        yield from (*self.comparison(), "", *self.captions())
        yield from self.sections

    def as_dict(self) -> dict[str, Any]:
        """Everything but the similarities, ready for JSON; correlations in [-1, 1]."""
        return {
            "format": 1,
            "resamples": self.resamples,
            "seed": self.seed,
            "systems": {system.name: dict(system.description) for system in self.systems},
            "rows": [row.as_dict() for row in self.rows],
            "differences": [{**asdict(row), "separable": row.separable} for row in self.differences],
        }

    def to_markdown(self) -> str:
        """Tables x 100, what can be told apart, how each number was made, and the sections."""
        parts = [f"# {self.title}\n", self.table().to_markdown()]
        if self.resamples:
            parts += ["## 95 % intervals\n", self.intervals().to_markdown()]
        if lines := self.comparison():
            parts += ["## What can be told apart\n", _list(lines)]
        parts += ["## How these numbers were made\n", _list(self.captions())]
        return "\n".join([*parts, *(section.to_markdown() for section in self.sections)])

    def save(self, folder: str | Path) -> Path:
        """Write results.json and results.md, of STS tasks predictions.csv and mteb's files, and lexical.json."""
        from bertflow.evaluation.mteb_files import MAIN_SCORE, mteb_files, predictions_csv

        folder = super().save(folder)
        if self.lexical:
            write_text(folder / "lexical.json", self.lexical.to_json())
        if self.tasks:
            write_text(folder / "predictions.csv", predictions_csv(self))
            for path, text in mteb_files(self).items() if self.metric == MAIN_SCORE else ():
                write_text(folder / "mteb" / path, text)
        return folder

    def run_facts(self) -> dict[str, Any]:
        """When and where the numbers were made, and with which versions."""
        finished = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return {"finished": finished, "host": platform.node(), "versions": {name: version(name) for name in VERSIONS}}

    def _versus(self, lead: Column, best: Row, other: Row) -> str:
        names = {best.system, other.system}
        pair = [row.seen_from(best.system) for row in self.differences if {row.first, row.second} == names]
        tasks = [column for column in self.columns if column.task not in SUITES]
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

    def _protocol(self) -> str:
        used = self._shown
        metrics = dict.fromkeys(row.metric for row in used)
        scaled = ", ".join(metric for metric in metrics if not metric.endswith(UNSCALED))
        aggregations = "; ".join(
            f"aggregation {name} ({AGGREGATIONS[name].meaning})"
            for name in dict.fromkeys(row.aggregation for row in used)
            if name in AGGREGATIONS
        )
        text_forms = " and ".join(dict.fromkeys(form for row in used for form in row.text_form.split("+")))
        line = f"{scaled} x 100; {aggregations}; {text_forms} text"
        if not self.resamples:
            return f"{line}; no intervals."
        return (
            f"{line}. 95 % intervals from {self.resamples:,} bootstrap resamples (seed {self.seed}): of pairs, BCa; of "
            f"sentences for averages over tasks. Separable: p < {LEVEL} by the paired bootstrap, over the tasks with "
            "Holm's correction."
        )

    def _system_line(self, system: SystemFacts) -> str:
        """How one system was made, and what it saw of the scored text."""
        description = system.description
        parts = [f"encoder {description['encoder']}"] if "encoder" in description else []
        parts += [
            f"{key.replace('_', ' ')} {description[key]}" for key in ("pooling", "max_length") if key in description
        ]
        if description.get("prompt"):
            parts.append(f"prompt {description['prompt']!r}")
        if "calibrator" in description:
            parts.append(f"{description['calibrator']} fitted on {description['fitted_rows']:,} rows")
        own = [row for row in self._shown if row.system == system.name]
        parts.append(_seen(own))
        if system.labels:
            parts.append(f"trained on the labels of {', '.join(system.labels)}")
        leaks = dict.fromkeys(row.label_leak for row in own if row.label_leak)
        if leaks:
            parts.append(f"TRAINED ON LABELS of {', '.join(leaks)}: scores marked ! are forced and say nothing")
        return f"{system.name}: {', '.join(parts)}."


def _list(lines: list[str]) -> str:
    return "".join(f"* {line}\n" for line in lines)


def _fits(row: Row | Difference, column: Column) -> bool:
    return (row.task, row.aggregation, row.metric) == (column.task, column.aggregation, column.metric)


def _seen(rows: Sequence[Row]) -> str:
    shares = [row.seen for row in rows if row.seen is not None]
    if len(shares) < len(rows):
        return "seen unknown (fitted on bare arrays)"
    low, high = min(shares), max(shares)
    span = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    return f"seen {span} ({'/'.join(dict.fromkeys(row.setting for row in rows))})"
