"""Systems are scored on pairs, and the report: every number of an evaluation, and how each was made.

    rows         one number each, with its interval, its protocol and its system's description
    differences  every pair of systems on every task and suite
    tables       the same for reading, in the column order of the papers

Equal input gives equal bytes: nothing here depends on the time or the machine.
"""

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertflow.data.pairs import Pairs
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.figures import (
    AGGREGATIONS,
    ScoredTask,
    Sides,
    binary_figures,
    retrieval_figures,
    suite_figures,
    task_figures,
)
from bertflow.evaluation.rows import (
    UNSCALED,
    Column,
    Row,
    SystemFacts,
    columns,
    interval,
    make_rows,
    number,
    refuse_label_leaks,
    setting,
)
from bertflow.evaluation.significance import LEVEL, Difference, Figure, differences
from bertflow.evaluation.systems import encode_sets
from bertflow.evaluation.verification import Published, published_table
from bertflow.files import write_text
from bertflow.results import AbstractResult
from bertflow.similarity import SIMILARITIES
from bertflow.tables import Section, Table

if TYPE_CHECKING:
    from bertflow.evaluation.ceiling import SupervisedCeiling

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
        theirs: Published figures below the table.
        sections: Tables below the scores.
        files: Texts of other files to save, by name.
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
    files: Mapping[str, str] = field(default_factory=dict)
    below: str = ""

    name: ClassVar[str] = "results"
    title: ClassVar[str] = "Scores"

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of the report's tables."""
        return columns(self.rows, self.aggregation, self.metric)

    @cached_property
    def _by_place(self) -> dict[tuple[str, ...], Row]:
        """Rows of whole tasks by system, task, aggregation and metric."""
        return {(row.system, row.task, row.aggregation, row.metric): row for row in self.rows if not row.subset}

    def _column(self, column: Column) -> list[Row]:
        """The rows of one column, in the order of the systems."""
        names = dict.fromkeys(row.system for row in self.rows)
        return [self._by_place[name, column.task, column.aggregation, column.metric] for name in names]

    def table(self, shown: Sequence[Column] | None = None) -> Table:
        """The values, x 100, by default in the report's columns; a forced score is marked with an exclamation mark."""
        shown = self.columns if shown is None else shown
        return self._table(shown, lambda row: number(row.value, row.metric) + ("!" if row.label_leak else ""))

    def intervals(self) -> Table:
        """The 95 % intervals of the same cells; a dash where nothing was resampled."""
        return self._table(self.columns, lambda row: interval(row.ci_low, row.ci_high, row.metric))

    def _table(self, shown: Sequence[Column], cell: Callable[[Row], str]) -> Table:
        systems = zip(*(self._column(column) for column in shown), strict=True)
        lines = tuple((rows[0].system, *map(cell, rows)) for rows in systems)
        return Table(("system", *(column.title for column in shown)), lines)

    def comparison(self) -> list[str]:
        """The best system against each other one, on the suite or else the first column; each kind of task apart."""
        lines, metrics = [], {column.task: column.metric for column in reversed(self.columns)}
        for metric in dict.fromkeys(metrics[column.task] for column in self.columns):
            columns = [column for column in self.columns if column.metric == metric]
            lead = next((column for column in columns if column.task in SUITES), columns[0])
            best, *others = sorted(self._column(lead), key=lambda row: (-row.value, row.system))
            lines += [self._versus(lead, best, other) for other in others]
        return lines

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
            "sections": [asdict(section) for section in self.sections],
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

        folder, files = super().save(folder), dict(self.files)
        if self.tasks:
            files["predictions.csv"] = predictions_csv(self)
        if self.tasks and self.metric == MAIN_SCORE:
            files |= {f"mteb/{path}": text for path, text in mteb_files(self).items()}
        for path, text in files.items():
            write_text(folder / path, text)
        return folder

    def run_facts(self) -> dict[str, Any]:
        """When and where the numbers were made, and with which versions."""
        finished = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return {"finished": finished, "host": platform.node(), "versions": {name: version(name) for name in VERSIONS}}

    def _versus(self, lead: Column, best: Row, other: Row) -> str:
        facts = {system.name: system for system in self.systems}
        pair = self.compared(best.system, other.system)
        tasks = [column for column in self.columns if column.task not in SUITES and column.metric == lead.metric]
        difference = next(row for row in pair if _fits(row, lead))
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
        told = [key for key in ("encoder", "pooling", "max_length") if key in description]
        parts = [f"{key.replace('_', ' ')} {description[key]}" for key in told]
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
    return f"seen {span} ({'/'.join(dict.fromkeys(setting(row.seen) for row in rows))})"


def score_sets(
    systems: Mapping[str, SentenceEncoder],
    sets: Iterable[Pairs],
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    progress: bool | None = None,
    ceilings: "Mapping[str, SupervisedCeiling] | None" = None,
) -> Report:
    """Score systems on pairs of any kind; see ``bertflow.evaluate_sts``. Ceilings are for graded pairs alone."""
    if not isinstance(systems, Mapping):
        raise UsageError(
            f"The systems are encoders by their names, as {{'raw': encoder}}; got a {type(systems).__name__}."
        )
    sets, ceilings = list(sets), ceilings or {}
    facts = [SystemFacts.of(name, system) for name, system in systems.items()]
    facts += [ceiling.facts(name) for name, ceiling in ceilings.items()]
    refuse_label_leaks(facts, [pairs.task for pairs in sets if pairs.kind != "retrieval" and not force])
    tasks: list[ScoredTask] = []
    figures: list[Figure] = []
    for pairs, sides in zip(sets, encode_sets(systems, sets, similarity, progress), strict=True):
        if pairs.kind in FIGURES:
            figures += FIGURES[pairs.kind](pairs, sides, similarity, resamples, seed)
        else:
            tasks.append(_scored(pairs, sides, similarity, ceilings))
            figures += task_figures(tasks[-1], resamples, seed)
    parts = {pairs.task: [pairs] for pairs in sets}
    suites = {name: members for name, members in SUITES.items() if {*members} <= {task.pairs.task for task in tasks}}
    for suite, members in suites.items():
        figures += suite_figures(suite, [task for task in tasks if task.pairs.task in members], resamples, seed)
        parts[suite] = [pairs for pairs in sets if pairs.task in members]
    return Report(
        rows=tuple(make_rows(facts, figures, parts)),
        differences=tuple(differences([one.name for one in facts], figures, suites)),
        systems=tuple(facts),
        resamples=resamples,
        seed=seed,
        metric=figures[0].metric,
        tasks=tuple(tasks),
    )


FIGURES: Mapping[str, Callable[[Pairs, Sides, str, int, int], list[Figure]]] = {
    "retrieval": retrieval_figures,
    "binary": binary_figures,
}
"""What is measured on a kind of pairs that are not graded."""


def _scored(pairs: Pairs, sides: Sides, similarity: str, ceilings: "Mapping[str, SupervisedCeiling]") -> ScoredTask:
    paired = SIMILARITIES[similarity].paired
    similarities = {system: paired(first, second) for system, first, second in sides}
    similarities |= {name: ceiling.scores(pairs) for name, ceiling in ceilings.items()}
    for system, scores in similarities.items():
        if np.ptp(scores) == 0:
            raise DataError(
                f"The system {system} finds all {len(scores)} pairs of {pairs.task} equally similar ({scores[0]:g}), "
                "so there is no correlation. Its embeddings have collapsed: fit again."
            )
    return ScoredTask(pairs, similarity, np.stack(list(similarities.values())))
