"""What a report says in words: what can be told apart, and how its numbers were made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bertflow.data.sts_tasks import SUITES
from bertflow.evaluation.figures import AGGREGATIONS
from bertflow.evaluation.rows import UNSCALED, Column, Row, SystemFacts, interval, number, setting
from bertflow.evaluation.significance import A_TEST, LEVEL

if TYPE_CHECKING:
    from bertflow.evaluation.report import Report


def comparison(report: "Report") -> list[str]:
    """The best system against each other one, on the suite or else the first column; each kind of task apart.

    Where one flow has several seeds, it is their mean that is compared.
    """
    mean = report.seeds.name if report.seeds else None
    lines, metrics = [], {column.task: column.metric for column in reversed(report.columns)}
    for metric in dict.fromkeys(metrics[column.task] for column in report.columns):
        columns = [column for column in report.columns if column.metric == metric]
        lead = next((column for column in columns if column.task in SUITES), columns[0])
        rows = sorted(report.column(lead), key=lambda row: (row.system != mean, -row.value, row.system))
        lines += [_versus(report, lead, rows[0], other) for other in rows[1:]]
    return lines


def captions(report: "Report") -> list[str]:
    """How the numbers of the table were made: one line for all, one for each system."""
    used = [row for row in report.rows if any(column.shows(row) for column in report.columns)]
    return [_protocol(report, used), *(_system_line(system, used) for system in report.shown)]


def _versus(report: "Report", lead: Column, best: Row, other: Row) -> str:
    facts = {system.name: system for system in report.shown}
    pair = report.compared(best.system, other.system)
    tasks = [column for column in report.columns if column.task not in SUITES and column.metric == lead.metric]
    difference = next(row for row in pair if lead.shows(row))
    text = (
        f"{lead.title}: {best.system} {number(best.value, best.metric)} against {other.system} "
        f"{number(other.value, other.metric)}, difference {number(difference.difference, best.metric)}"
        f"{facts[best.system].fitted_apart(facts[other.system])}"
    )
    if difference.separable is None:
        return f"{text}; nothing was resampled, so whether that is chance is not known."
    text += f" (95 % {interval(difference.ci_low, difference.ci_high, best.metric)}): {difference.verdict}"
    if len(tasks) < 2:
        return f"{text}."
    found = [(column.title, row) for column in tasks for row in pair if column.shows(row)]
    above = sum(bool(row.separable) and row.difference > 0 for _, row in found)
    below = sum(bool(row.separable) and row.difference < 0 for _, row in found)
    same = [title for title, row in found if not row.separable]
    text += f"; task by task above on {above}, below on {below}"
    return f"{text}, not separable on {', '.join(same)}." if same else f"{text}."


def _protocol(report: "Report", used: Sequence[Row]) -> str:
    metrics = dict.fromkeys(row.metric for row in used)
    scaled = ", ".join(metric for metric in metrics if not metric.endswith(UNSCALED))
    aggregations = "; ".join(
        f"aggregation {name} ({AGGREGATIONS[name].meaning})"
        for name in dict.fromkeys(row.aggregation for row in used)
        if name in AGGREGATIONS
    )
    text_forms = " and ".join(dict.fromkeys(form for row in used for form in row.text_form.split("+")))
    line = f"{scaled} x 100; {aggregations}; {text_forms} text"
    if not report.resamples:
        return f"{line}; no intervals."
    of_seeds = f"; also of seeds for the {report.seeds.name}" if report.seeds else ""
    return (
        f"{line}. 95 % intervals from {report.resamples:,} bootstrap resamples (seed {report.seed}; {A_TEST} a task at "
        f"least): of pairs, BCa; of sentences for averages over tasks{of_seeds}. Separable: p < {LEVEL} by the paired "
        "bootstrap, over the tasks with Holm's correction."
    )


def _system_line(system: SystemFacts, used: Sequence[Row]) -> str:
    """How one system was made, and what it saw of the scored text."""
    description = system.description
    told = [key for key in ("encoder", "pooling", "max_length") if key in description]
    parts = [f"{key.replace('_', ' ')} {description[key]}" for key in told]
    if description.get("prompt"):
        parts.append(f"prompt {description['prompt']!r}")
    if "calibrator" in description:
        parts.append(f"{description['calibrator']} fitted on {description['fitted_rows']:,} rows")
    own = [row for row in used if row.system == system.name]
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
        return "seen unknown (the text it was fitted on is not recorded)"
    low, high = min(shares), max(shares)
    span = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    return f"seen {span} ({'/'.join(dict.fromkeys(setting(row.seen) for row in rows))})"
