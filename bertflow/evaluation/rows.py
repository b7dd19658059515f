"""A row of results: one number, and how it was made.

No number stands alone: its row says task, split, aggregation, text form, the interval, what the system saw of the
scored text, and the system's own description.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from bertflow.evaluation.figures import Figure
from bertflow.evaluation.leaks import SystemFacts, setting
from bertflow.text_keys import hash_texts


@dataclass(frozen=True)
class Material:
    """The text that a figure was made on.

    Attributes:
        sentences: All of them; repeats do no harm.
        text_form: ``raw`` or ``senteval``; several joined by a plus sign.
        source: Where it came from.
    """

    sentences: Sequence[str]
    text_form: str
    source: str


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
    systems: Sequence[SystemFacts], figures: Sequence[Figure], materials: Mapping[str, Material]
) -> list[Row]:
    """Rows of all systems, in the order of the systems, then of the figures.

    Args:
        systems: The k systems.
        figures: Their figures.
        materials: The text of each task and suite among the figures.
    """
    rows, hashes = [], {task: hash_texts(material.sentences) for task, material in materials.items()}
    for at, system in enumerate(systems):
        seen = {task: system.seen_among(evaluated) for task, evaluated in hashes.items()}
        for figure in figures:
            interval, material = figure.interval(at), materials[figure.task]
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
                    text_form=material.text_form,
                    source=material.source,
                    description=system.description,
                )
            )
    return rows
