"""A row of results: one number, and how it was made.

A number is never given alone: its row says task, split, aggregation, text form, the interval, what the system saw of
the scored text, and the system's own description. Text that was seen without labels is reported (``seen``); systems
that were trained on labels of the scored pairs are refused. STS-B was drawn from STS12-16: 1,003 / 597 / 1,861 / 1,102
/ 197 of their scored pairs are in its train split with their scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.calibrated import CalibratedEncoder
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts_tasks import STS12_16
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
from bertflow.evaluation.significance import Figure
from bertflow.evaluation.tables import setting
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
class SystemFacts:
    """What a system says about itself.

    Attributes:
        name: As the table calls it.
        description: Its ``describe()``.
        hashes: Hashes of the text it was fitted on; None where that is unknown.
        labels: Names of labelled data it was trained on.
    """

    name: str
    description: Mapping[str, Any]
    hashes: NDArray[np.uint64] | None
    labels: tuple[str, ...]

    @classmethod
    def of(cls, name: str, system: SentenceEncoder) -> "SystemFacts":
        """Ask ``system``."""
        description = system.describe()
        labels = dict.fromkeys(description.get("labels", ()))
        if isinstance(system, CalibratedEncoder) and system.calibrator.provenance:
            labels |= dict.fromkeys(system.calibrator.provenance.labels)
        if labels:
            description = {**description, "labels": list(labels)}
        return cls(name, description, system.fitted_hashes(), tuple(labels))

    def seen(self, sentences: Sequence[str]) -> float | None:
        """Share of the distinct ``sentences`` that stood in the fitting text; None where that is unknown."""
        return self.seen_among(hash_texts(sentences))

    def seen_among(self, evaluated: NDArray[np.uint64]) -> float | None:
        """The same, for the distinct text hashes of the sentences."""
        return None if self.hashes is None else float(np.isin(evaluated, self.hashes).mean())

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
class Row:
    """One number.

    Attributes:
        system: As the table calls it.
        task: Task or suite.
        split: Which part of it.
        aggregation: ``all``, ``mean``, ``wmean``, or ``subset`` for one sub-set alone.
        subset: Which sub-set, else empty.
        metric: As mteb spells it: ``cosine_spearman``.
        n: Pairs, or queries.
        value: In [-1, 1] for correlations and cosines, [0, 1] for rates.
        ci_low: Lower end of the 95 % interval; None where nothing was resampled.
        ci_high: Upper end.
        seen: Share of the distinct scored sentences that stood in the fitting text; None where that is unknown.
        setting: ``inductive`` (nothing was seen), ``transductive``, or ``unknown``.
        label_leak: Labelled data the system was trained on that holds labels of this task; a forced score.
        text_form: ``raw`` or ``senteval``.
        source: Where the pairs came from.
        description: The system's ``describe()``.
    """

    system: str
    task: str
    split: str
    aggregation: str
    subset: str
    metric: str
    n: int
    value: float
    ci_low: float | None
    ci_high: float | None
    seen: float | None
    setting: str
    label_leak: str
    text_form: str
    source: str
    description: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON: the description's keys beside the row's; ``seen`` is "unknown" where it is None."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "description"}
        return {**self.description, **own, "seen": "unknown" if self.seen is None else self.seen}


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
        seen = {task: system.seen_among(evaluated) for task, evaluated in hashes.items()}
        for figure in figures:
            interval, sets = figure.interval(at), parts[figure.task]
            rows.append(
                Row(
                    system=system.name,
                    task=figure.task,
                    split=figure.split,
                    aggregation=figure.aggregation,
                    subset=figure.subset,
                    metric=figure.metric,
                    n=figure.n,
                    value=float(figure.values[at]),
                    ci_low=interval.low if interval else None,
                    ci_high=interval.high if interval else None,
                    seen=seen[figure.task],
                    setting=setting(seen[figure.task]),
                    label_leak=system.label_leak(figure.task),
                    text_form="+".join(dict.fromkeys(pairs.text_form for pairs in sets)),
                    source=", ".join(dict.fromkeys(pairs.source for pairs in sets)),
                    description=system.description,
                )
            )
    return rows
