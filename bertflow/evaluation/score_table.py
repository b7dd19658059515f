"""Numbers of an evaluation: one a row, with how it was made; and the table of them.

A number is never given alone: its row says task, split, aggregation, text form, the interval, what the system saw of
the scored text, and the system's own description. A table has a line a system and a column a task, x 100, in the column
order of the papers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from bertflow.array_types import Hashes
from bertflow.calibration.base import AbstractCalibrator
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts_tasks import STS12_16, SUITES, TASKS, task_title
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
from bertflow.evaluation.aggregation import ScoredTask
from bertflow.evaluation.significance import Difference, Figure, Measurement, Place
from bertflow.tables import Table, interval, number
from bertflow.text_keys import hash_texts

SAME_LABELS: Mapping[str, tuple[str, ...]] = {
    "stsb": STS12_16,
    "stsb-train": STS12_16,
    "stsb-dev": STS12_16,
    "sickr-all": ("sickr",),
    "tuning": ("stsb-dev", "sickr-train", "sickr-trial", "sickr-all"),
}
"""Labels -> the other tasks whose pairs they hold; a task's labels always hold the task itself."""


@dataclass(frozen=True)
class FittedText:
    """Which text a calibrator was fitted on, as far as it says; equal for calibrators of one encoder and one text.

    Attributes:
        n: Number of rows.
        known: Whether the text is known by hashes; else only its moments are.
        key: What tells it apart.
    """

    n: int
    known: bool
    key: bytes

    @classmethod
    def of(cls, calibrator: AbstractCalibrator) -> "FittedText":
        """Ask ``calibrator``."""
        moments, provenance = calibrator.moments_, calibrator.provenance
        hashes = provenance.text_hashes if provenance else None
        return cls(moments.n, hashes is not None, (moments.mean if hashes is None else hashes).tobytes())

    def same(self, other: "FittedText") -> bool | None:
        """Whether it is the same text; None where that is not known."""
        if self == other:
            return True
        return False if self.n != other.n or (self.known and other.known) else None


@dataclass(frozen=True)
class SystemFacts:
    """What a system says about itself.

    Attributes:
        name: Its name in the table.
        description: Its ``describe()``.
        hashes: Hashes of the text it was fitted on; None where that is unknown.
        labels: Names of labeled data it was trained on.
        text: The text that its calibrator was fitted on; None without one.
        embeds: Whether it embeds sentences; a ``PairScorer`` does not.
    """

    name: str
    description: Mapping[str, Any]
    hashes: Hashes | None
    labels: tuple[str, ...]
    text: FittedText | None = None
    embeds: bool = True

    @classmethod
    def of(cls, name: str, system: SentenceEncoder) -> "SystemFacts":
        """Ask ``system``."""
        description, calibrator = system.describe(), system.calibrator
        known = calibrator.provenance.labels if calibrator and calibrator.provenance else ()
        labels = dict.fromkeys([*description.get("labels", ()), *known])
        if labels:
            description = {**description, "labels": list(labels)}
        text = FittedText.of(calibrator) if calibrator else None
        return cls(name, description, system.fitted_hashes(), tuple(labels), text)

    def seen(self, evaluated: Hashes) -> float | None:
        """Share of some texts, given by their hashes, that stood in the fitting text; None where that is unknown."""
        return None if self.hashes is None else float(np.isin(evaluated, self.hashes).mean())

    def fitted_apart(self, other: "SystemFacts") -> str:
        """How much text each of two calibrated systems was fitted on, in words; empty if it is the same text."""
        if self.text is None or other.text is None or (same := self.text.same(other.text)):
            return ""
        rows = {self.name: self.text.n, other.name: other.text.n}
        how = "on text that may differ" if same is None else "on different text"
        return f", fitted {how} ({' and '.join(sorted(f'{name} on {n:,} rows' for name, n in rows.items()))})"

    def label_leak(self, task: str) -> str:
        """The labeled data that holds labels of ``task``; empty where there is none."""
        return next((label for label in self.labels if task == label or task in SAME_LABELS.get(label, ())), "")


def refuse_label_leaks(systems: Sequence[SystemFacts], tasks: Sequence[str]) -> None:
    """Refuse to score a system on pairs whose labels it was trained on.

    Raises:
        DataError: For the first such system and task.
    """
    for system in systems:
        for task in tasks:
            if label := system.label_leak(task):
                raise DataError(
                    f"The system {system.name} was trained on the labels of {label}. They include labels of {task}, so "
                    f"a score on {task} says nothing. Leave {task} out, or give --force: then the score is marked."
                )


def setting(seen: float | None) -> str:
    """The name for a share of seen text: inductive, transductive or unknown."""
    return "unknown" if seen is None else "transductive" if seen else "inductive"


CORRELATIONS = ("_spearman", "_pearson")
"""Endings of the metrics of which a table shows one."""
TITLED_BY_TASK = (*CORRELATIONS, "_auc")
"""Endings of the metrics whose column is titled by the task."""
METRIC_TITLES: Mapping[str, str] = {
    "map": "MAP",
    "mrr": "MRR",
    "random_median_cosine": "random median",
    "random_p95_cosine": "random 95 %",
}
"""Column titles of other metrics, where the name is not the title."""


@dataclass(frozen=True)
class Row(Measurement):
    """One number of one system.

    Attributes:
        system: Its name in the table.
        value: The number, in [-1, 1] for correlations and cosines, [0, 1] for rates.
        ci_low: Lower end of the 95 % interval; None where nothing was resampled.
        ci_high: Upper end.
        seen: Share of the distinct scored sentences that stood in the fitting text; None where that is unknown.
        label_leak: Labeled data the system was trained on that holds labels of this task; a forced score.
        text_form: ``raw`` or ``senteval``.
        source: Where the pairs came from.
        description: The system's ``describe()``.
    """

    system: str
    value: float
    ci_low: float | None
    ci_high: float | None
    seen: float | None
    label_leak: str
    text_form: str
    source: str
    description: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON: the description's keys beside the row's; ``seen`` is "unknown" where it is None."""
        own = {name: value for name, value in vars(self).items() if name != "description"}
        seen = "unknown" if self.seen is None else self.seen
        return {**self.description, **own, "seen": seen, "setting": setting(self.seen)}


def make_rows(
    systems: Sequence[SystemFacts], figures: Sequence[Figure], parts: Mapping[str, Sequence[Pairs]]
) -> list[Row]:
    """Rows of all systems, in the order of the systems, then of the figures.

    Args:
        systems: The k systems.
        figures: Their figures.
        parts: The pairs of each task, and of each task of each suite, among the figures.
    """
    hashes = {task: hash_texts(unique_sentences(sets)) for task, sets in parts.items()}
    rows = []
    for at, system in enumerate(systems):
        seen = {task: system.seen(evaluated) for task, evaluated in hashes.items()}
        for figure in figures:
            task, sets = figure.task, parts[figure.task]
            measured = [getattr(figure, one.name) for one in fields(Measurement)]
            scored = (system.name, float(figure.values[at]), *figure.interval(at), seen[task], system.label_leak(task))
            form = "+".join(dict.fromkeys(pairs.text_form for pairs in sets))
            source = ", ".join(dict.fromkeys(pairs.source for pairs in sets))
            rows.append(Row(*[*measured, *scored, form, source, system.description]))
    return rows


@dataclass(frozen=True)
class Column:
    """One column: its title, and the place of the numbers that fill it."""

    title: str
    place: Place


@dataclass(frozen=True, repr=False)
class ScoreTable:
    """All numbers of an evaluation.

    Attributes:
        rows: All numbers.
        differences: All pairs of systems.
        systems: What each system says about itself.
        resamples: How often the pairs were resampled.
        seed: Random seed for the bootstrap.
        metric: The metric that tables show.
        tasks: The STS tasks with all similarities, for the predictions.
        aggregation: Aggregation that tables show: a row of ``AGGREGATIONS``.
        mean: The mean over seeds of one flow; tables show it in place of its seeds.
        seeds: Names of the systems that it is the mean of.
    """

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    systems: tuple[SystemFacts, ...]
    resamples: int
    seed: int
    metric: str
    tasks: tuple[ScoredTask, ...] = ()
    aggregation: str = "all"
    mean: SystemFacts | None = None
    seeds: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of the table, in the order of the papers, suites last.

        Of the correlations only ``metric`` is shown, of other metrics all. A task without the aggregation is shown by
        the first it has, which its title then says.
        """
        rank = {task: at for at, task in enumerate([*TASKS, "", *SUITES])}
        has: dict[tuple[str, str], list[str]] = {}
        for task, aggregation, metric in dict.fromkeys(row.place for row in self.rows if not row.subset):
            if metric == self.metric or not metric.endswith(CORRELATIONS):
                has.setdefault((task, metric), []).append(aggregation)
        found = []
        for task, metric in sorted(has, key=lambda one: rank.get(one[0], rank[""])):
            aggregations = has[task, metric]
            chosen = self.aggregation if self.aggregation in aggregations else aggregations[0]
            title = task_title(task) if metric.endswith(TITLED_BY_TASK) else METRIC_TITLES.get(metric, metric)
            how = "" if chosen == self.aggregation else f" ({chosen})"
            found.append(Column(f"{title}{how}", Place(task, chosen, metric)))
        return found

    @cached_property
    def shown(self) -> list[SystemFacts]:
        """The systems of the table: where one flow has several seeds, their mean is the last in place of them."""
        return [one for one in self.systems if one.name not in self.seeds] + ([self.mean] if self.mean else [])

    @cached_property
    def by_place(self) -> dict[tuple[str, Place], Row]:
        """Rows of whole tasks by system and place."""
        return {(row.system, row.place): row for row in self.rows if not row.subset}

    def value(self, system: str, task: str, aggregation: str = "all", metric: str | None = None) -> float:
        """One number, in [-1, 1].

        Raises:
            KeyError: If the report has no such row.
        """
        return self.by_place[system, Place(task, aggregation, metric or self.metric)].value

    def values(self, metric: str) -> dict[str, float]:
        """The number of each system, in [-1, 1], where a single task was scored."""
        return {row.system: row.value for row in self.rows if row.metric == metric and row.aggregation == "all"}

    def compared(self, system: str, other: str) -> list[Difference]:
        """The differences of two systems, on each task and suite, as seen from the first."""
        names = {system, other}
        return [row.seen_from(system) for row in self.differences if {row.first, row.second} == names]

    def table(self, columns: Sequence[Column] | None = None) -> Table:
        """The values, x 100, by default in the own columns; a forced score is marked with an exclamation mark."""
        return self._table(columns, lambda row: number(row.value, row.metric) + ("!" if row.label_leak else ""))

    def intervals(self) -> Table:
        """The 95 % intervals of the same cells; a dash where nothing was resampled."""
        return self._table(None, lambda row: interval(row.ci_low, row.ci_high, row.metric), "95 % interval")

    def _table(self, columns: Sequence[Column] | None, cell: Callable[[Row], str], first: str = "system") -> Table:
        columns = self.columns if columns is None else columns
        lines = [(one.name, *(cell(self.by_place[one.name, column.place]) for column in columns)) for one in self.shown]
        return Table((first, *(column.title for column in columns)), tuple(lines))
