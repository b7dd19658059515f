"""What the numbers say, in words: which systems can be told apart, and how each number was made."""

from collections.abc import Sequence

from bertflow.data.sts_tasks import SUITES
from bertflow.evaluation.aggregation import AGGREGATIONS
from bertflow.evaluation.leaks import SystemFacts
from bertflow.evaluation.rows import Row
from bertflow.evaluation.significance import LEVEL, Difference
from bertflow.evaluation.tables import UNSCALED, Column, interval, number


def comparison(rows: Sequence[Row], differences: Sequence[Difference], shown: Sequence[Column]) -> list[str]:
    """The best system against each other one, on the suite if there is one, else on the first column.

    Args:
        rows: All rows.
        differences: All pairs of systems.
        shown: The columns of the table.

    Returns:
        A line for each other system, best first; none for a single system.
    """
    lead = next((column for column in shown if column.task in SUITES), shown[0])
    best, *others = sorted((row for row in rows if _fits(row, lead)), key=lambda row: -row.value)
    lines = []
    for other in others:
        pair = [
            row.seen_from(best.system) for row in differences if {row.first, row.second} == {best.system, other.system}
        ]
        lines.append(_versus(lead, best, other, pair, [column for column in shown if column.task not in SUITES]))
    return lines


def _fits(row: Row | Difference, column: Column) -> bool:
    return (row.task, row.aggregation, row.metric) == (column.task, column.aggregation, column.metric)


def _versus(lead: Column, best: Row, other: Row, pair: Sequence[Difference], tasks: Sequence[Column]) -> str:
    difference = next(row for row in pair if _fits(row, lead))
    text = (
        f"{lead.title}: {best.system} {number(best.value, best.metric)} against {other.system} "
        f"{number(other.value, other.metric)}, difference {number(difference.difference, best.metric)}"
    )
    if difference.separable is None:
        return f"{text}; nothing was resampled, so whether that is chance is not known."
    text += f" (95 % {interval(difference.ci_low, difference.ci_high, best.metric)}): "
    text += "separable" if difference.separable else "not separable"
    if len(tasks) < 2:
        return f"{text}."
    found = [(column.title, row) for column in tasks for row in pair if _fits(row, column)]
    above = sum(bool(row.separable) and row.difference > 0 for _, row in found)
    below = sum(bool(row.separable) and row.difference < 0 for _, row in found)
    same = [title for title, row in found if not row.separable]
    text += f"; task by task above on {above}, below on {below}"
    return f"{text}, not separable on {', '.join(same)}." if same else f"{text}."


def protocol_line(rows: Sequence[Row], shown: Sequence[Column], resamples: int, seed: int) -> str:
    """How all numbers of a table were made."""
    used = [row for row in rows if any(_fits(row, column) for column in shown)]
    metrics = dict.fromkeys(row.metric for row in used)
    scaled = ", ".join(metric for metric in metrics if not metric.endswith(UNSCALED))
    aggregations = "; ".join(
        f"aggregation {name} ({AGGREGATIONS[name].meaning})"
        for name in dict.fromkeys(row.aggregation for row in used)
        if name in AGGREGATIONS
    )
    text_forms = " and ".join(dict.fromkeys(form for row in used for form in row.text_form.split("+")))
    line = f"{scaled} x 100; {aggregations}; {text_forms} text"
    if not resamples:
        return f"{line}; no intervals."
    return (
        f"{line}. 95 % intervals from {resamples:,} bootstrap resamples (seed {seed}): of pairs, BCa; of sentences for "
        f"averages over tasks. Separable: p < {LEVEL} by the paired bootstrap, over the tasks with Holm's correction."
    )


def system_line(system: SystemFacts, rows: Sequence[Row], shown: Sequence[Column]) -> str:
    """How one system was made, and what it saw of the scored text."""
    description = system.description
    parts = [f"encoder {description['encoder']}"] if "encoder" in description else []
    parts += [f"{key.replace('_', ' ')} {description[key]}" for key in ("pooling", "max_length") if key in description]
    if description.get("prompt"):
        parts.append(f"prompt {description['prompt']!r}")
    if "calibrator" in description:
        parts.append(f"{description['calibrator']} fitted on {description['fitted_rows']:,} rows")
    own = [row for row in rows if row.system == system.name and any(_fits(row, column) for column in shown)]
    parts.append(_seen(own))
    if system.labels:
        parts.append(f"trained on the labels of {', '.join(system.labels)}")
    leaks = dict.fromkeys(row.label_leak for row in own if row.label_leak)
    if leaks:
        parts.append(f"TRAINED ON LABELS of {', '.join(leaks)}: scores marked ! are forced and say nothing")
    return f"{system.name}: {', '.join(parts)}."


def _seen(rows: Sequence[Row]) -> str:
    shares = [row.seen for row in rows if row.seen is not None]
    if len(shares) < len(rows):
        return "seen unknown (fitted on bare arrays)"
    low, high = min(shares), max(shares)
    span = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    return f"seen {span} ({'/'.join(dict.fromkeys(row.setting for row in rows))})"
