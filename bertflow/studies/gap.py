"""Which share of the gap between raw and the supervised ceiling does a label-free system close?

    share = (system - raw) / (ceiling - raw)

A share of a gap that may be zero says nothing. So a share is given only where the ceiling is separably above raw and
above every label-free system: no share is above 100 %, and where a system is below raw the table says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertflow import SentenceEncoder
from bertflow.data.pairs import Pairs
from bertflow.evaluation.models import Addition
from bertflow.evaluation.report import Report
from bertflow.evaluation.rows import Column, interval, number
from bertflow.studies.ceiling import CEILING, RAW, SupervisedCeiling, ceilings_of
from bertflow.tables import MISSING, Section, Table

BELOW = "below raw"
"""Where a share would be negative."""


@dataclass(frozen=True)
class CeilingStudy(Addition):
    """The ceiling of each raw encoder among the systems, and which share of its gap the others close.

    Attributes:
        labelled: By task, the labelled pairs of other tasks that it is predicted from.
    """

    labelled: Mapping[str, Pairs]

    def scorers(
        self, systems: Mapping[str, SentenceEncoder], sets: Sequence[Pairs], progress: bool | None
    ) -> Mapping[str, SupervisedCeiling]:
        """The ceilings."""
        return ceilings_of(systems, sets, self.labelled, progress)

    def add_to(self, report: Report, *_: Any) -> Report:
        """The shares."""
        return report.add(*gap_sections(report))


def gap_sections(report: Report) -> list[Section]:
    """A section for each ceiling of a report."""
    found = [facts.name for facts in report.systems if facts.name == CEILING or facts.name.startswith(f"{CEILING} of ")]
    return [gap_section(report, RAW + name.removeprefix(CEILING), name) for name in found]


def gap_section(report: Report, raw: str, ceiling: str) -> Section:
    """The share of the gap between raw and the ceiling that each label-free system of the same weights closes.

    A share is shown where the ceiling is above raw and above every such system: where the 95 % intervals of the paired
    differences lie above zero. Else there is a dash, and the reason in words.

    Args:
        report: Scores of all of them.
        raw: Name of the system at 0 %.
        ceiling: Name of the system at 100 %.
    """
    columns = [column for column in report.columns if column.metric == report.metric]
    weights = {facts.name: facts.description.get("weights") for facts in report.shown if not facts.labels}
    names = [name for name in weights if name not in (raw, ceiling) and weights[name] == weights[raw]]
    reasons = {column: _reason(report, ceiling, (raw, *names), column) for column in columns}

    def cell(system: str, column: Column) -> str:
        if reasons[column]:
            return MISSING
        value, low, high = (report.value(name, column.task, column.aggregation) for name in (system, raw, ceiling))
        return f"{100 * (value - low) / (high - low):.0f} %" if value >= low else BELOW

    lines = [(name, *(cell(name, column) for column in columns)) for name in names]
    return Section(
        f"What share of the gap between {raw} and {ceiling} is closed",
        Table((f"{raw} to {ceiling}", *(column.title for column in columns)), tuple(lines)),
        (
            f"{ceiling} predicts the gold scores from both embeddings of a pair by kernel ridge regression, fitted to "
            "labels of the task itself, by cross-validation with folds that share no sentence. The others saw no "
            "labels.",
            *filter(None, reasons.values()),
        ),
    )


def _reason(report: Report, ceiling: str, others: Sequence[str], column: Column) -> str:
    """Why there are no shares in a column; empty if the ceiling is above all others."""
    place = (column.task, column.aggregation, column.metric)
    found = [
        row
        for other in others
        for row in report.compared(ceiling, other)
        if (row.task, row.aggregation, row.metric) == place
    ]
    if any(row.ci_low is None for row in found):
        return f"{column.title}: no share. Without resamples it is not known whether {ceiling} is above the others."
    open_to_chance = [row for row in found if row.ci_low is not None and row.ci_low <= 0]
    if not open_to_chance:
        return ""
    closest = min(open_to_chance, key=lambda row: row.difference)
    value, other = (report.value(name, column.task, column.aggregation) for name in (ceiling, closest.second))
    return (
        f"{column.title}: no share, since {ceiling} ({number(value, column.metric)}) is not separably above "
        f"{closest.second} ({number(other, column.metric)}): difference {number(closest.difference, column.metric)}, "
        f"95 % {interval(closest.ci_low, closest.ci_high, column.metric)}."
    )
