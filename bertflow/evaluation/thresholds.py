"""Thresholds for continuous integration: ``stsb=70`` fails a run whose score is below 70.00."""

from collections.abc import Collection, Mapping

from bertflow.errors import ThresholdMissedError, UsageError
from bertflow.evaluation.report import Report
from bertflow.evaluation.tables import number


def parse_thresholds(spelling: str) -> dict[str, float]:
    """Thresholds x 100 by task or suite, from ``stsb=70,sts7=65``.

    Raises:
        UsageError: If a part is no task, an equals sign and a number.
    """
    thresholds = {}
    for part in filter(None, (part.strip() for part in spelling.split(","))):
        task, equals, limit = part.partition("=")
        try:
            if not equals:
                raise ValueError
            thresholds[task.strip()] = float(limit)
        except ValueError:
            raise UsageError(f"A threshold is written task=score, as stsb=70; got {part!r}.") from None
    return thresholds


def require_thresholds(
    report: Report, thresholds: Mapping[str, float], systems: Collection[str], aggregation: str = "all"
) -> None:
    """Compare the table's figures with the thresholds.

    Args:
        report: All scores.
        thresholds: x 100, by task or suite.
        systems: Which systems must reach them.
        aggregation: Of the table.

    Raises:
        UsageError: If a threshold names a task that was not scored.
        ThresholdMissedError: If a system falls short; the message lists all that do.
    """
    shown = {column.task: column for column in report.columns(aggregation)}
    for task in thresholds:
        if task not in shown:
            raise UsageError(f"There is a threshold for {task}, which was not scored. Scored: {', '.join(shown)}.")
    missed = []
    for task, limit in thresholds.items():
        for system in systems:
            value = report.value(system, task, shown[task].aggregation, shown[task].metric)
            if 100 * value < limit:
                missed.append(f"{system} scores {number(value, shown[task].metric)} on {task}, below {limit:g}")
    if missed:
        raise ThresholdMissedError(f"{'; '.join(missed)}.")
