"""Scores that an evaluation must reach, as ``--fail_below`` spells them."""

from collections.abc import Collection, Mapping

from bertflow.errors import UsageError, require_between
from bertflow.evaluation.report import Report
from bertflow.tables import number


def parse_thresholds(spelling: str, scored: Collection[str]) -> dict[str, float]:
    """Thresholds x 100 by task or suite, from ``stsb=70,sts7=65``.

    Raises:
        UsageError: If a part is not a task that is scored, an equals sign and a number.
    """
    thresholds = {}
    for part in filter(None, (part.strip() for part in spelling.split(","))):
        task, _, limit = map(str.strip, part.partition("="))
        try:
            thresholds[task] = float(limit)
            require_between(-100, 100, threshold=thresholds[task])
        except ValueError:
            raise UsageError(f"A threshold is written task=score, as stsb=70; got {part!r}.") from None
        if task not in scored:
            raise UsageError(f"There is a threshold for {task}, which is not scored. Scored: {', '.join(scored)}.")
    return thresholds


def shortfalls(report: Report, thresholds: Mapping[str, float], systems: Collection[str]) -> str:
    """Which systems fall short of thresholds (x 100, by scored task or suite), in words; empty if none does."""
    places = {column.place.task: column.place for column in report.columns}
    missed = [
        f"{system} scores {number(value, places[task].metric)} on {task}, below {limit:g}"
        for task, limit in thresholds.items()
        for system in systems
        if 100 * (value := report.value(system, *places[task])) < limit
    ]
    return f"{'; '.join(missed)}." if missed else ""
