"""Rows of results as a table: a line a system, a column a task, x 100, in the column order of the papers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertflow.data.sts_tasks import SUITES, TASKS
from bertflow.tables import MISSING, Table

if TYPE_CHECKING:
    from bertflow.evaluation.rows import Row

UNSCALED = "_cosine"
"""Ending of the metrics that are printed as they are; all others are x 100."""
CORRELATIONS = ("_spearman", "_pearson")
"""Endings of the metrics of which a table shows one."""
TITLED_BY_TASK = (*CORRELATIONS, "_auc")
"""Endings of the metrics whose column is titled by the task."""
METRIC_TITLES: Mapping[str, str] = {
    "mrr": "MRR",
    "random_median_cosine": "median cosine",
    "random_p95_cosine": "95 % cosine",
}
"""Column titles of other metrics, where the name is not the title."""


@dataclass(frozen=True)
class Column:
    """One column: its title, and which rows fill it."""

    title: str
    task: str
    aggregation: str
    metric: str


def columns(rows: "Sequence[Row]", aggregation: str = "all", metric: str = "cosine_spearman") -> list[Column]:
    """The columns of a table: of the correlations only ``metric``, of other metrics all.

    A task without the aggregation is shown by the first it has, which its title then says.
    """
    found = []
    for task in _in_order(rows):
        own = [row for row in rows if row.task == task and not row.subset]
        metrics = dict.fromkeys(row.metric for row in own)
        for name in (name for name in metrics if name == metric or not name.endswith(CORRELATIONS)):
            has = list(dict.fromkeys(row.aggregation for row in own if row.metric == name))
            chosen = aggregation if aggregation in has else has[0]
            title = METRIC_TITLES.get(name, name) if not name.endswith(TITLED_BY_TASK) else task_title(task)
            found.append(Column(title if chosen == aggregation else f"{title} ({chosen})", task, chosen, name))
    return found


def _in_order(rows: "Sequence[Row]") -> list[str]:
    """Tasks in the order of the papers, others after them as they came, suites last."""
    known = list(TASKS)

    def place(task: str) -> tuple[bool, int]:
        return task in SUITES, known.index(task) if task in known else len(known)

    return sorted(dict.fromkeys(row.task for row in rows), key=place)


def task_title(task: str) -> str:
    """What the papers call a task: "STS-B"; with the split where that is not the test set; "Avg" for a suite."""
    if task in SUITES:
        return "Avg"
    if task not in TASKS:
        return task
    row = TASKS[task]
    return row.title if row.split == "test" or row.title == task else f"{row.title} {row.split}"


def value_table(rows: "Sequence[Row]", shown: Sequence[Column]) -> Table:
    """The values; a score that had to be forced is marked with an exclamation mark."""
    return _table(rows, shown, lambda row: number(row.value, row.metric) + ("!" if row.label_leak else ""))


def interval_table(rows: "Sequence[Row]", shown: Sequence[Column]) -> Table:
    """The 95 % intervals; a dash where nothing was resampled."""
    return _table(rows, shown, lambda row: interval(row.ci_low, row.ci_high, row.metric))


def _table(rows: "Sequence[Row]", shown: Sequence[Column], cell: "Callable[[Row], str]") -> Table:
    by_place = {(row.system, row.task, row.aggregation, row.metric): row for row in rows if not row.subset}
    lines = [
        (system, *(cell(by_place[system, column.task, column.aggregation, column.metric]) for column in shown))
        for system in dict.fromkeys(row.system for row in rows)
    ]
    return Table(("system", *(column.title for column in shown)), tuple(lines))


def setting(seen: float | None) -> str:
    """The name for a share of seen text: inductive, transductive or unknown."""
    if seen is None:
        return "unknown"
    return "transductive" if seen else "inductive"


def number(value: float, metric: str) -> str:
    """A value as tables print it."""
    return f"{value:.2f}" if metric.endswith(UNSCALED) else f"{100 * value:.2f}"


def interval(low: float | None, high: float | None, metric: str) -> str:
    """An interval as tables print it."""
    return MISSING if low is None or high is None else f"{number(low, metric)} to {number(high, metric)}"
