"""Published figures beside ours: those of the tasks that are scored, and what differs.

Figures under different protocols are not comparable, so each line says what of its protocol differs: aggregation, text
form, similarity, pooling or length. Which encoder it was, and what it was fitted on, the name of its model says.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import Any

import numpy as np

from bertflow.data.pairs import Pairs
from bertflow.data.sts_tasks import STS12_16, SUITES
from bertflow.errors import DataError, UnknownNameError, UsageError
from bertflow.evaluation.aggregation import ScoredTask
from bertflow.evaluation.evaluating import Addition
from bertflow.evaluation.report import Report
from bertflow.evaluation.score_table import Column
from bertflow.records import read_record
from bertflow.tables import Section, Table, number


@dataclass(frozen=True)
class Published:
    """One line of a published table; Spearman x 100.

    Attributes:
        model: Its name in the table, with the text it was fitted on.
        aggregation: ``all`` or ``wmean``, of STS12-16; STS-B and SICK-R are the same under both.
        source: Paper and table.
        scores: Scores by task, all of ``sts7``.
        pooling: A spelling; empty where it is not among our rows, or not given.
        max_length: Longest sentence in tokens; None where no sentence was cut, or the source does not say.
        similarity: Its name in the table.
    """

    model: str
    aggregation: str
    source: str
    scores: dict[str, float]
    pooling: str = ""
    max_length: int | None = None
    similarity: str = "cosine"

    def score(self, task: str) -> float:
        """The figure of a task, or the mean over the seven tasks for their suite."""
        return sum(self.scores.values()) / len(self.scores) if task in SUITES else self.scores[task]


@cache
def published() -> tuple[Published, ...]:
    """All published lines, in the order of the file ``published.json``."""
    with as_file(files("bertflow.studies") / "published.json") as path:
        return tuple(read_record(path, list[Published], "list of published figures"))


def matching(part: str, tasks: Sequence[str]) -> list[Published]:
    """The lines whose model or source holds ``part``, whatever its case.

    Args:
        part: Some text; empty for all lines.
        tasks: What is scored.

    Raises:
        UnknownNameError: If there is none.
        UsageError: If none of the tasks has published figures.
    """
    found = [line for line in published() if part.casefold() in f"{line.model} {line.source}".casefold()]
    if not found:
        models = ", ".join(dict.fromkeys(line.model for line in published()))
        raise UnknownNameError(f"No published figures hold {part!r}. Known: {models}.")
    if not any(task in line.scores for line in found for task in tasks):
        raise UsageError(
            f"The published figures are those of {', '.join(found[0].scores)}, and none of these tasks is scored. "
            "Add one to tasks, or leave published out."
        )
    return found


@dataclass(frozen=True)
class PublishedFigures(Addition):
    """Published figures of the scored tasks, below ours.

    Attributes:
        lines: Lines of published tables.
    """

    lines: Sequence[Published]

    def add_to(self, report: Report, *_: Any) -> Report:
        """A table in the columns of ours, lines of our protocol first; the same for the JSON, in [-1, 1]."""
        columns = columns_of(report)
        tasks = [column.place.task for column in columns]
        scores = [{task: round(line.score(task) / 100, 6) for task in tasks} for line in self.lines]
        found = [(line, own, unlike(line, report)) for line, own in zip(self.lines, scores, strict=True)]
        table = tuple(
            (f"{line.model} [{line.source}]", *map(number, own.values()), other or "as ours")
            for line, own, other in sorted(found, key=lambda one: bool(one[2]))
        )
        written = [{**asdict(line), "scores": own, "differs": other} for line, own, other in found]
        header = ("published", *(column.title for column in columns), "protocol")
        return report.add(beside=[Section("Published figures", Table(header, table))], data={"published": written})


def columns_of(report: Report) -> list[Column]:
    """The columns of a table of ours that have published figures: tasks and their mean, under Spearman."""
    known = (*SUITES["sts7"], "sts7")
    return [one for one in report.columns if one.place.task in known and one.place.metric.endswith("_spearman")]


def unlike(line: Published, report: Report) -> str:
    """What of a line's protocol differs from ours, in words; empty if nothing does.

    Aggregation and text form are those of STS12-16: STS-B and SICK-R have one sub-set each, and were read as they are.
    """
    places = {column.place for column in columns_of(report)}
    rows = [row for row in report.rows if row.place in places]
    years = [row for row in rows if row.task in STS12_16]
    ours = [(row.description.get("pooling"), row.description.get("max_length")) for row in rows]
    found = []
    if any(row.aggregation != line.aggregation for row in years):
        found.append(f"aggregation {line.aggregation}")
    if any("raw" in row.text_form for row in years):
        found.append("text of STS12-16 as SentEval tokenized it")
    if report.metric != f"{line.similarity}_spearman":
        found.append(f"similarity {line.similarity}")
    if line.pooling not in [pooling for pooling, _ in ours]:
        found.append(f"pooling {line.pooling or 'of its own'}")
    elif line.max_length and (line.pooling, line.max_length) not in ours:
        found.append(f"max length {line.max_length}")
    return ", ".join(found)


def with_subsets(pairs: Pairs, aggregation: str) -> Pairs:
    """Pairs that name the sub-sets over which their figure was published.

    Raises:
        DataError: If they have no such aggregation.
    """
    partitions = ScoredTask(pairs, "cosine", np.empty((0, len(pairs)))).partitions()
    if all(reading.aggregation != aggregation for _, readings in partitions for reading in readings):
        raise DataError(
            f"The figure of {pairs.task} is {aggregation}, over its sub-sets, but {pairs.source} does not name them. "
            "Give a folder with the packages of SemEval or SentEval."
        )
    return pairs
