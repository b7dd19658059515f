"""The report: every number of an evaluation, and how each was made.

    rows         one number each, with its interval, its protocol and its system's description
    differences  every pair of systems on every task and suite
    tables       the same for reading, in the column order of the papers
    words        what can be told apart, and how the numbers were made

Equal input gives equal bytes: nothing here depends on the time or the machine.
"""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from bertflow.data.sts_tasks import SUITES
from bertflow.evaluation.figures import AGGREGATIONS, ScoredTask
from bertflow.evaluation.mteb_files import MAIN_SCORE, mteb_files, predictions_csv
from bertflow.evaluation.rows import UNSCALED, Column, Row, SystemFacts, columns, interval, number, setting
from bertflow.evaluation.seeds import SeveralSeeds
from bertflow.evaluation.significance import A_TEST, LEVEL, Difference
from bertflow.files import write_text
from bertflow.results import AbstractResult
from bertflow.tables import Section, Table

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
        aggregation: Aggregation that tables show: a row of ``AGGREGATIONS``.
        beside: Sections right below the scores, whose columns they have.
        sections: Tables below all.
        data: More numbers for the JSON, by name.
        files: Texts of other files to save, by name.
        below: Thresholds that were missed, in words.
        seeds: The flow that was fitted with several seeds, if there is one; tables show their mean in its place.
    """

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    systems: tuple[SystemFacts, ...]
    resamples: int
    seed: int
    metric: str
    tasks: tuple[ScoredTask, ...] = ()
    aggregation: str = "all"
    beside: tuple[Section, ...] = ()
    sections: tuple[Section, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    below: str = ""
    seeds: SeveralSeeds | None = None

    name: ClassVar[str] = "results"
    title: ClassVar[str] = "Scores"

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of the report's tables."""
        return columns(self.rows, self.aggregation, self.metric)

    @cached_property
    def shown(self) -> list[SystemFacts]:
        """The systems of the tables: where one flow has several seeds, their mean is the last in place of them."""
        if self.seeds is None:
            return list(self.systems)
        others = [one for one in self.systems if one.name not in self.seeds.systems]
        return [*others, self.seeds.facts(self.systems)]

    @cached_property
    def _by_place(self) -> dict[tuple[str, ...], Row]:
        """Rows of whole tasks by system, task, aggregation and metric."""
        return {(row.system, row.task, row.aggregation, row.metric): row for row in self.rows if not row.subset}

    def column(self, column: Column) -> list[Row]:
        """The rows of one column, in the order of the systems."""
        return [self._by_place[one.name, column.task, column.aggregation, column.metric] for one in self.shown]

    def shown_values(self, system: str) -> list[float]:
        """The numbers of one system in the report's columns, in [-1, 1]."""
        return [self.value(system, column.task, column.aggregation, column.metric) for column in self.columns]

    def table(self, shown: Sequence[Column] | None = None) -> Table:
        """The values, x 100, by default in the report's columns; a forced score is marked with an exclamation mark."""
        shown = self.columns if shown is None else shown
        return self._table(shown, lambda row: number(row.value, row.metric) + ("!" if row.label_leak else ""))

    def intervals(self) -> Table:
        """The 95 % intervals of the same cells; a dash where nothing was resampled."""
        return self._table(self.columns, lambda row: interval(row.ci_low, row.ci_high, row.metric))

    def _table(self, shown: Sequence[Column], cell: Callable[[Row], str]) -> Table:
        systems = zip(*(self.column(column) for column in shown), strict=True)
        lines = tuple((rows[0].system, *map(cell, rows)) for rows in systems)
        return Table(("system", *(column.title for column in shown)), lines)

    def comparison(self) -> list[str]:
        """The best system against each other one, on the suite or else the first column; each kind of task apart.

        Where one flow has several seeds, it is their mean that is compared.
        """
        mean = self.seeds.name if self.seeds else None
        lines, metrics = [], {column.task: column.metric for column in reversed(self.columns)}
        for metric in dict.fromkeys(metrics[column.task] for column in self.columns):
            own = [column for column in self.columns if column.metric == metric]
            lead = next((column for column in own if column.task in SUITES), own[0])
            rows = sorted(self.column(lead), key=lambda row: (row.system != mean, -row.value, row.system))
            lines += [_versus(self, lead, rows[0], other) for other in rows[1:]]
        return lines

    def captions(self) -> list[str]:
        """How the numbers of the table were made: one line for all, one for each system."""
        used = [row for row in self.rows if any(column.shows(row) for column in self.columns)]
        return [_protocol(self, used), *(_system_line(system, used) for system in self.shown)]

    def add(
        self,
        *sections: Section,
        beside: Sequence[Section] = (),
        data: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> "Report":
        """The report with more sections, numbers and files, of which it knows nothing; see its attributes."""
        return replace(
            self,
            beside=(*self.beside, *beside),
            sections=(*self.sections, *sections),
            data={**self.data, **(data or {})},
            files={**self.files, **(files or {})},
        )

    def value(self, system: str, task: str, aggregation: str = "all", metric: str | None = None) -> float:
        """One number, in [-1, 1].

        Raises:
            KeyError: If the report has no such row.
        """
        return self._by_place[system, task, aggregation, metric or self.metric].value

    def values(self, metric: str) -> dict[str, float]:
        """The number of each system, in [-1, 1], where a single task was scored."""
        return {row.system: row.value for row in self.rows if row.metric == metric and row.aggregation == "all"}

    def compared(self, system: str, other: str) -> list[Difference]:
        """The differences of two systems, on each task and suite, as seen from the first."""
        names = {system, other}
        return [row.seen_from(system) for row in self.differences if {row.first, row.second} == names]

    def missed(self) -> str:
        """The thresholds that were missed."""
        return self.below

    def parts(self) -> Iterator[Table | Section | str]:
        """Tables x 100, what can be told apart, how each number was made, and the sections."""
        yield self.table()
        yield from (section.table for section in self.beside)
        yield from (*self.comparison(), "", *self.captions())
        yield from self.sections

    def as_dict(self) -> dict[str, Any]:
        """Everything but the similarities, ready for JSON; correlations in [-1, 1]."""
        return {
            "format": 1,
            "resamples": self.resamples,
            "seed": self.seed,
            "systems": {one.name: dict(one.description) for one in (*self.systems, *self.shown)},
            **self.data,
            "rows": [row.as_dict() for row in self.rows],
            "differences": [{**asdict(row), "separable": row.separable} for row in self.differences],
            "sections": [asdict(section) for section in self.sections],
        }

    def to_markdown(self) -> str:
        """Tables x 100, what can be told apart, how each number was made, and the sections."""
        parts = [f"# {self.title}\n", self.table().to_markdown()]
        if self.resamples:
            parts += ["## 95 % intervals\n", self.intervals().to_markdown()]
        parts += [section.to_markdown() for section in self.beside]
        if lines := self.comparison():
            parts += ["## What can be told apart\n", _list(lines)]
        parts += ["## How these numbers were made\n", _list(self.captions())]
        return "\n".join([*parts, *(section.to_markdown() for section in self.sections)])

    def save(self, folder: str | Path) -> Path:
        """Write results.json and results.md, of STS tasks predictions.csv and mteb's files, and what was added."""
        folder, files = super().save(folder), dict(self.files)
        if self.tasks:
            files["predictions.csv"] = predictions_csv(self.systems, self.tasks)
        if self.tasks and self.metric == MAIN_SCORE:
            files |= {f"mteb/{path}": text for path, text in mteb_files(self.systems, self.rows).items()}
        for path, text in files.items():
            write_text(folder / path, text)
        return folder

    def run_facts(self) -> dict[str, Any]:
        """When and where the numbers were made, and with which versions."""
        finished = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return {"finished": finished, "host": platform.node(), "versions": {name: version(name) for name in VERSIONS}}


def _list(lines: list[str]) -> str:
    return "".join(f"* {line}\n" for line in lines)


def _versus(report: Report, lead: Column, best: Row, other: Row) -> str:
    facts = {system.name: system for system in report.shown}
    pair = report.compared(best.system, other.system)
    tasks = [column for column in report.columns if column.task not in SUITES and column.metric == lead.metric]
    difference = next(row for row in pair if lead.shows(row))
    text = (
        f"{lead.title}: {best.system} {number(best.value, best.metric)} against {other.system} "
        f"{number(other.value, other.metric)}, difference {number(difference.difference, best.metric)}"
        f"{facts[best.system].fitted_apart(facts[other.system])}"
    )
    if difference.separable is None:
        return f"{text}; nothing was resampled, so whether that is chance is not known."
    text += f" (95 % {interval(difference.ci_low, difference.ci_high, best.metric)}): {difference.verdict}"
    if len(tasks) < 2:
        return f"{text}."
    found = [(column.title, row) for column in tasks for row in pair if column.shows(row)]
    above = sum(bool(row.separable) and row.difference > 0 for _, row in found)
    below = sum(bool(row.separable) and row.difference < 0 for _, row in found)
    same = [title for title, row in found if not row.separable]
    text += f"; task by task above on {above}, below on {below}"
    return f"{text}, not separable on {', '.join(same)}." if same else f"{text}."


def _protocol(report: Report, used: Sequence[Row]) -> str:
    metrics = dict.fromkeys(row.metric for row in used)
    scaled = ", ".join(metric for metric in metrics if not metric.endswith(UNSCALED))
    aggregations = "; ".join(
        f"aggregation {name} ({AGGREGATIONS[name].meaning})"
        for name in dict.fromkeys(row.aggregation for row in used)
        if name in AGGREGATIONS
    )
    text_forms = " and ".join(dict.fromkeys(form for row in used for form in row.text_form.split("+")))
    line = f"{scaled} x 100; {aggregations}; {text_forms} text"
    if not report.resamples:
        return f"{line}; no intervals."
    of_seeds = f"; also of seeds for the {report.seeds.name}" if report.seeds else ""
    return (
        f"{line}. 95 % intervals from {report.resamples:,} bootstrap resamples (seed {report.seed}; {A_TEST} a task at "
        f"least): of pairs, BCa; of sentences for averages over tasks{of_seeds}. Separable: p < {LEVEL} by the paired "
        "bootstrap, over the tasks with Holm's correction."
    )


def _system_line(system: SystemFacts, used: Sequence[Row]) -> str:
    """How one system was made, and what it saw of the scored text."""
    description = system.description
    told = [key for key in ("encoder", "pooling", "max_length") if key in description]
    parts = [f"{key.replace('_', ' ')} {description[key]}" for key in told]
    if description.get("prompt"):
        parts.append(f"prompt {description['prompt']!r}")
    if "calibrator" in description:
        parts.append(f"{description['calibrator']} fitted on {description['fitted_rows']:,} rows")
    own = [row for row in used if row.system == system.name]
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
        return "seen unknown (the text it was fitted on is not recorded)"
    low, high = min(shares), max(shares)
    span = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    return f"seen {span} ({'/'.join(dict.fromkeys(setting(row.seen) for row in rows))})"
