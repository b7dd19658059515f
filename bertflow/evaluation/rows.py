"""Rows of results: one number, and how it was made; and how a table shows them.

A number is never given alone: its row says task, split, aggregation, text form, the interval, what the system saw of
the scored text, and the system's own description. Text that was seen without labels is reported (``seen``); systems
that were trained on labels of the scored pairs are refused. STS-B was drawn from STS12-16: 1,003 / 597 / 1,861 / 1,102
/ 197 of their scored pairs are in its train split with their scores.

A table has a line a system and a column a task, x 100, in the column order of the papers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts_tasks import STS12_16, SUITES, TASKS
from bertflow.errors import DataError
from bertflow.evaluation.significance import Difference, Figure, Measurement
from bertflow.tables import MISSING
from bertflow.text_keys import hash_texts

if TYPE_CHECKING:
    from bertflow.calibration.base import AbstractCalibrator
    from bertflow.encoder.abstract import SentenceEncoder

SAME_LABELS: Mapping[str, tuple[str, ...]] = {
    "stsb": STS12_16,
    "stsb-train": STS12_16,
    "stsb-dev": STS12_16,
    "sickr-all": ("sickr",),
    "tuning": ("stsb-dev", "sickr-train", "sickr-trial", "sickr-all"),
}
"""Labels -> the other tasks whose pairs they hold; a task's labels always hold the task itself."""


UNSCALED = "_cosine"
"""Ending of the metrics that are printed as they are; all others are x 100."""
CORRELATIONS = ("_spearman", "_pearson")
"""Endings of the metrics of which a table shows one."""
TITLED_BY_TASK = (*CORRELATIONS, "_auc")
"""Endings of the metrics whose column is titled by the task."""
METRIC_TITLES: Mapping[str, str] = {
    "map": "MAP",
    "mrr": "MRR",
    "random_median_cosine": "median cosine",
    "random_p95_cosine": "95 % cosine",
}
"""Column titles of other metrics, where the name is not the title."""


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
    def of(cls, calibrator: "AbstractCalibrator") -> "FittedText":
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
        name: As the table calls it.
        description: Its ``describe()``.
        hashes: Hashes of the text it was fitted on; None where that is unknown.
        labels: Names of labelled data it was trained on.
        text: The text that its calibrator was fitted on; None without one.
        embeds: Whether it embeds sentences; a ``PairScorer`` does not.
    """

    name: str
    description: Mapping[str, Any]
    hashes: NDArray[np.uint64] | None
    labels: tuple[str, ...]
    text: FittedText | None = None
    embeds: bool = True

    @classmethod
    def of(cls, name: str, system: "SentenceEncoder") -> "SystemFacts":
        """Ask ``system``."""
        description, calibrator = system.describe(), system.calibrator
        known = calibrator.provenance.labels if calibrator and calibrator.provenance else ()
        labels = dict.fromkeys([*description.get("labels", ()), *known])
        if labels:
            description = {**description, "labels": list(labels)}
        text = FittedText.of(calibrator) if calibrator else None
        return cls(name, description, system.fitted_hashes(), tuple(labels), text)

    def seen(self, evaluated: NDArray[np.uint64]) -> float | None:
        """Share of some texts, given by their hashes, that stood in the fitting text; None where that is unknown."""
        return None if self.hashes is None else float(np.isin(evaluated, self.hashes).mean())

    def fitted_apart(self, other: "SystemFacts") -> str:
        """On how much text each of two calibrated systems was fitted, in words; empty if it is the same text."""
        if self.text is None or other.text is None or (same := self.text.same(other.text)):
            return ""
        rows = {self.name: self.text.n, other.name: other.text.n}
        how = "on text that may differ" if same is None else "on different text"
        return f", fitted {how} ({' and '.join(sorted(f'{name} on {n:,} rows' for name, n in rows.items()))})"

    def label_leak(self, task: str) -> str:
        """The labelled data that holds labels of ``task``; empty where there is none."""
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
                    f"The system {system.name} was trained on the labels of {label}, which hold labels of {task}, so "
                    f"a score on {task} would say nothing. Leave {task} out, or force it: the score is then marked."
                )


@dataclass(frozen=True)
class Row(Measurement):
    """One number of one system.

    Attributes:
        system: As the table calls it.
        value: In [-1, 1] for correlations and cosines, [0, 1] for rates.
        ci_low: Lower end of the 95 % interval; None where nothing was resampled.
        ci_high: Upper end.
        seen: Share of the distinct scored sentences that stood in the fitting text; None where that is unknown.
        label_leak: Labelled data the system was trained on that holds labels of this task; a forced score.
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
    rows, hashes = [], {task: hash_texts(unique_sentences(sets)) for task, sets in parts.items()}
    for at, system in enumerate(systems):
        seen = {task: system.seen(evaluated) for task, evaluated in hashes.items()}
        for figure in figures:
            task, value = figure.task, (float(figure.values[at]), *figure.interval(at))
            measured = (task, figure.split, figure.aggregation, figure.subset, figure.metric, figure.n)
            text_form = "+".join(dict.fromkeys(pairs.text_form for pairs in parts[task]))
            source = ", ".join(dict.fromkeys(pairs.source for pairs in parts[task]))
            how: dict[str, Any] = {"text_form": text_form, "source": source, "description": system.description}
            leak = system.label_leak(task)
            rows.append(Row(*measured, system.name, *value, seen=seen[task], label_leak=leak, **how))
    return rows


@dataclass(frozen=True)
class Column:
    """One column: its title, and which rows fill it."""

    title: str
    task: str
    aggregation: str
    metric: str

    def shows(self, row: "Row | Difference") -> bool:
        """Whether ``row`` stands in this column."""
        return (row.task, row.aggregation, row.metric) == (self.task, self.aggregation, self.metric)


def columns(rows: Sequence[Row], aggregation: str = "all", metric: str = "cosine_spearman") -> list[Column]:
    """The columns of a table, in the order of the papers, suites last.

    Of the correlations only ``metric`` is shown, of other metrics all. A task without the aggregation is shown by the
    first it has, which its title then says.
    """
    found, order = [], list(TASKS)
    tasks = sorted(
        dict.fromkeys(row.task for row in rows),
        key=lambda task: (task in SUITES, order.index(task) if task in order else len(order)),
    )
    for task in tasks:
        own = [row for row in rows if row.task == task and not row.subset]
        metrics = dict.fromkeys(row.metric for row in own)
        for name in (name for name in metrics if name == metric or not name.endswith(CORRELATIONS)):
            has = list(dict.fromkeys(row.aggregation for row in own if row.metric == name))
            chosen = aggregation if aggregation in has else has[0]
            title = METRIC_TITLES.get(name, name) if not name.endswith(TITLED_BY_TASK) else task_title(task)
            found.append(Column(title if chosen == aggregation else f"{title} ({chosen})", task, chosen, name))
    return found


def task_title(task: str) -> str:
    """What the papers call a task: "STS-B"; with the split where that is not the test set; "Avg" for a suite."""
    if task in SUITES:
        return "Avg"
    if task not in TASKS:
        return task
    row = TASKS[task]
    return row.title if row.split == "test" or row.title == task else f"{row.title} {row.split}"


def setting(seen: float | None) -> str:
    """The name for a share of seen text: inductive, transductive or unknown."""
    if seen is None:
        return "unknown"
    return "transductive" if seen else "inductive"


def number(value: float | None, metric: str = "") -> str:
    """A value as tables print it, x 100 for all but some metrics; a dash where there is none."""
    if value is None:
        return MISSING
    return f"{value:.2f}" if metric.endswith(UNSCALED) else f"{100 * value:.2f}"


def interval(low: float | None, high: float | None, metric: str = "") -> str:
    """An interval as tables print it."""
    return MISSING if low is None or high is None else f"{number(low, metric)} to {number(high, metric)}"
