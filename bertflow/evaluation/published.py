"""Published figures, as data: with the aggregation they were made under, and where they stand.

Figures under different aggregations are not comparable, so a table of ours is set beside those of its own aggregation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files

from bertflow.data.sts_tasks import SUITES
from bertflow.errors import UnknownNameError
from bertflow.evaluation.tables import Column
from bertflow.records import read_record
from bertflow.tables import MISSING, Table

COLUMNS = SUITES["sts7"]


@dataclass(frozen=True)
class Published:
    """One line of a published table; Spearman x 100.

    Attributes:
        model: As the table calls it, with what it was fitted on.
        aggregation: ``all`` or ``wmean``, of STS12-16; STS-B and SICK-R are the same under both.
        source: Paper and table.
        scores: By task; a task that was not reported is left out.
    """

    model: str
    aggregation: str
    source: str
    scores: dict[str, float]

    @property
    def average(self) -> float | None:
        """The mean over the seven tasks; None where one is missing."""
        return sum(self.scores.values()) / len(COLUMNS) if len(self.scores) == len(COLUMNS) else None


@dataclass(frozen=True)
class PublishedTable:
    """A table of ``published.json``: figures by model, in the order of ``COLUMNS``."""

    aggregation: str
    source: str
    rows: dict[str, list[float | None]]


@cache
def published() -> tuple[Published, ...]:
    """All published lines, in the order of the file ``published.json``."""
    with as_file(files("bertflow.evaluation") / "published.json") as path:
        tables = read_record(path, list[PublishedTable], "list of published tables")
    return tuple(
        Published(model, table.aggregation, table.source, _scores(cells))
        for table in tables
        for model, cells in table.rows.items()
    )


def _scores(cells: Sequence[float | None]) -> dict[str, float]:
    return {task: cell for task, cell in zip(COLUMNS, cells, strict=True) if cell is not None}


def matching(part: str, aggregation: str) -> list[Published]:
    """The lines of one aggregation whose model or source holds ``part``, whatever its case.

    Raises:
        UnknownNameError: If there is none.
    """
    under = [line for line in published() if line.aggregation == aggregation]
    found = [line for line in under if part.casefold() in f"{line.model} {line.source}".casefold()]
    if not under:
        known = ", ".join(dict.fromkeys(line.aggregation for line in published()))
        raise UnknownNameError(f"No figures are published under the aggregation {aggregation}. Known: {known}.")
    if not found:
        models = ", ".join(dict.fromkeys(line.model for line in under))
        raise UnknownNameError(f"No figures published under {aggregation} hold {part!r}. Known: {models}.")
    return found


def published_table(lines: Sequence[Published], shown: Sequence[Column]) -> Table:
    """Published figures in the columns of a table of ours; what was not published is a dash."""
    body = [(f"{line.model} [{line.source}]", *(_cell(line, column.task) for column in shown)) for line in lines]
    return Table(("published", *(column.title for column in shown)), tuple(body))


def _cell(line: Published, task: str) -> str:
    value = line.average if task in SUITES else line.scores.get(task)
    return MISSING if value is None else f"{value:.2f}"
