"""What a system saw of what it is scored on: text, by share, and labels, by name.

Text that was seen without labels is said (``seen``); labels of the scored pairs are refused. STS-B was drawn from
STS12-16: 1,003 / 597 / 1,861 / 1,102 / 197 of their scored pairs stand in its train split with their scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.calibrated import CalibratedEncoder
from bertflow.data.sts_tasks import STS12_16
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
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


def setting(seen: float | None) -> str:
    """The name of what ``seen`` means: inductive, transductive or unknown."""
    if seen is None:
        return "unknown"
    return "transductive" if seen else "inductive"


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
