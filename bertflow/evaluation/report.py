"""The report: the numbers of an evaluation as tables, words and files.

    tables       the scores and their intervals, in the column order of the papers
    words        what differs by more than chance, and how the numbers were made
    sections     what others add, of which a report knows nothing

Equal input gives equal bytes: nothing here depends on the time or the machine.
"""

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bertflow.data.pairs import Pairs
from bertflow.data.sts_tasks import SUITES, TEXT_FORMS, task_title
from bertflow.encoder.pooling import uncalibrated
from bertflow.evaluation.aggregation import AGGREGATIONS
from bertflow.evaluation.bm25 import BM25, bm25_values
from bertflow.evaluation.mteb_files import MAIN_SCORE, mteb_files, predictions_csv
from bertflow.evaluation.names import poolings_differ
from bertflow.evaluation.score_table import CORRELATIONS, METRIC_TITLES, Column, Row, ScoreTable, SystemFacts
from bertflow.evaluation.significance import LEVEL, Place
from bertflow.files import write_text
from bertflow.results import AbstractResult, Parts
from bertflow.tables import REST, UNSCALED, Section, Strong, Table, interval, number

SAID = {True: "significantly better than", False: "no significant difference from", None: "untested against"}
"""Words about a system that is not below another, by whether the difference is separable."""
BELOW = {**SAID, True: "significantly worse than"}
"""Words about a system that is below another."""
IN_FIT = " of the scored text was in the fitting text"
"""Words after a share."""
VERSIONS = ("bertflow", "torch", "transformers", "numpy", "scipy")


@dataclass(frozen=True, repr=False)
class Report(ScoreTable, AbstractResult):
    """What ``evaluate`` and its parts give back.

    Attributes:
        plain: What needs no encoder, by the name of its line of the table, below the systems.
        beside: Sections right below the scores, whose columns they have.
        sections: Tables below all.
        data: More numbers for the JSON, by name.
        files: Texts of other files to save, by name.
        below: Thresholds that were missed, in words.
    """

    plain: Mapping[str, Mapping[Place, float]] = field(default_factory=dict)
    beside: tuple[Section, ...] = ()
    sections: tuple[Section, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    below: str = ""

    name = "results"
    title = "Scores"

    def add(
        self,
        *sections: Section,
        beside: Sequence[Section] = (),
        data: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> "Report":
        """The report with more sections, numbers and files, of which it knows nothing; see its attributes."""
        more: dict[str, Any] = {"data": {**self.data, **(data or {})}, "files": {**self.files, **(files or {})}}
        return replace(self, beside=(*self.beside, *beside), sections=(*self.sections, *sections), **more)

    def beside_bm25(self, pairs: Pairs) -> "Report":
        """The report with a line on how words in common rank the texts of some queries."""
        values = bm25_values(pairs)
        places = {Place(pairs.task, "all", metric): value for metric, value in values.items()}
        return replace(self, plain={BM25: places}, data={**self.data, BM25: values})

    def table(self, columns: Sequence[Column] | None = None) -> Table:
        """The values, x 100; below them what needs no encoder."""
        scores, places = super().table(columns), [one.place for one in columns or self.columns]
        plain = ((name, *(number(values.get(place)) for place in places)) for name, values in self.plain.items())
        return replace(scores, lines=(*scores.lines, *plain))

    def comparison(self) -> list[str]:
        """The best system against each other one, on the suite or the first column of a kind; seeds by their mean."""
        return [self._versus(lead, best, other) for lead, best, others in self.leads() for other in others]

    def summary(self) -> Iterator[str]:
        """Which system is best: a line for each kind of task, or for each task where there is no mean over them."""
        for lead, best, others in self.leads(every=True):
            apart: dict[str, list[str]] = {}
            for other in others:
                (one,) = (row for row in self.compared(best.system, other.system) if row.place == lead.place)
                words = (BELOW if one.difference < 0 else SAID)[one.separable]
                apart.setdefault(words, []).append(f"{other.system} ({number(one.difference, best.metric, '+')})")
            said = "; ".join(f"{words} {', '.join(names)}" for words, names in apart.items())
            first = " is best" if best.value > others[0].value else ""
            value, raw = number(best.value, best.metric), self._raw_above([best, *others])
            plain = self.data.get(BM25, {}).get(best.metric, best.value)
            more = f" {BM25}, without an encoder, scores higher still ({number(plain)})." if plain > best.value else ""
            yield f"{lead.title}: {best.system}{first} ({value}), {said}.{self._beaten(lead, best)}{raw}{more}"

    def _beaten(self, lead: Column, best: Row) -> str:
        """On which other single tasks another system is above the best one, in words; empty for none."""
        above = []
        for column in self._tasks(best.metric) if lead.place.task in SUITES else ():
            rows = [self.by_place[one.name, column.place] for one in self.shown]
            top = max(rows, key=lambda row: (row.value, row.system == best.system))
            if top.system != best.system:
                above.append(f"{column.title} ({top.system}, {number(top.value, top.metric)})")
        return f" Another is best on {', '.join(above)}." if above else ""

    def _raw_above(self, rows: Sequence[Row]) -> str:
        """Which calibrated systems are below their encoder without a calibrator, in words; empty if none is."""
        facts = {system.name: system for system in self.shown}
        weights = {name: one.description.get("weights") for name, one in facts.items() if one.embeds}
        calibrated = [row for row in rows if facts[row.system].text]
        for one in sorted((row for row in rows if row not in calibrated), key=lambda row: -row.value):
            own = [row for row in calibrated if weights[row.system] == weights.get(one.system, "")]
            if below := [row.system for row in own if row.value < one.value]:
                own_way = uncalibrated(one.description.get("pooling"))
                return f" Here {one.system} ({own_way}) scores higher than {', '.join(below)}."
        return ""

    def _tasks(self, metric: str) -> list[Column]:
        """The columns of single tasks that are scored by a metric."""
        return [one for one in self.columns if one.place.task not in SUITES and one.place.metric == metric]

    def leads(self, every: bool = False) -> Iterator[tuple[Column, Row, list[Row]]]:
        """The column that counts for a kind of task, the best system and the others; without a mean the first column.

        Args:
            every: All columns where there is no mean.
        """
        metrics = {column.place.task: column.place.metric for column in reversed(self.columns)}
        for metric in dict.fromkeys(metrics[column.place.task] for column in self.columns):
            own = [column for column in self.columns if column.place.metric == metric]
            mean = self.mean.name if self.mean else None
            for lead in [column for column in own if column.place.task in SUITES][:1] or own[: None if every else 1]:
                rows = [self.by_place[one.name, lead.place] for one in self.shown]
                best, *others = sorted(rows, key=lambda row: (row.system != mean, -row.value, row.system))
                if others:
                    yield lead, best, others

    @property
    def _used(self) -> list[Row]:
        places = {column.place for column in self.columns}
        return [row for row in self.rows if row.place in places]

    def captions(self) -> list[str]:
        """How the numbers of the table were made: one line for all, one for each system."""
        used = self._used
        return [self._protocol(used), *(_system_line(system, used) for system in self.shown)]

    def missed(self) -> str:
        """The thresholds that were missed."""
        return self.below

    def parts(self) -> Parts:
        """Tables x 100, what differs, how each number was made, and the sections."""
        yield from [self.table(), *([self.intervals()] if self.resamples else [])]
        yield from (section.table for section in self.beside)
        yield from (*self.comparison(), "", *self.captions())
        yield from self.sections

    def answer(self) -> Parts:
        """What was scored, the tables, the best system against the others, and in a line how the numbers were made."""
        yield f"{self._scale(used := self._used)}."
        yield self.table()
        if self.resamples and len(self.shown) == 1:  # others are compared below
            yield self.intervals()
        yield from (section.table for section in self.beside)
        yield from map(Strong, self.summary())
        poolings = [*dict.fromkeys(row.description["pooling"] for row in used if "pooling" in row.description)]
        yield from poolings_differ(poolings)
        same = f"Pooling {poolings[0]}. " if len(poolings) == 1 else ""
        bm25 = f" {BM25}: words in common." if self.plain else ""
        yield f"{same}{_seen(used)}.{bm25} How each number was made: {REST}."
        yield from self.sections

    def as_dict(self) -> dict[str, Any]:
        """Everything but the similarities, ready for JSON; correlations in [-1, 1]."""
        systems = {one.name: dict(one.description) for one in (*self.systems, *self.shown)}
        made = {"format": 1, "resamples": self.resamples, "seed": self.seed, "systems": systems}
        rows, sections = [row.as_dict() for row in self.rows], [asdict(section) for section in self.sections]
        compared = [{**asdict(row), "separable": row.separable} for row in self.differences]
        return {**made, **self.data, "rows": rows, "differences": compared, "sections": sections}

    def to_markdown(self) -> str:
        """Tables x 100, what differs, how each number was made, and the sections."""
        parts = [f"# {self.title}\n", self.table().to_markdown()]
        if self.resamples:
            parts += ["## 95 % intervals\n", self.intervals().to_markdown()]
        parts += [section.to_markdown() for section in self.beside]
        words = {"Significant differences": self.comparison(), "How these numbers were made": self.captions()}
        for title, lines in words.items():
            parts += [f"## {title}\n", "".join(f"* {line}\n" for line in lines)] if lines else []
        return "\n".join([*parts, *(section.to_markdown() for section in self.sections)])

    def save(self, folder: str | Path) -> Path:
        """Write results.json and results.md, of STS tasks predictions.csv and mteb's files, and what was added."""
        folder, files = super().save(folder), dict(self.files)
        if self.tasks:
            files["predictions.csv"] = predictions_csv(self.systems, self.tasks)
        if self.tasks and self.metric == MAIN_SCORE:
            files |= {f"mteb/{path}": text for path, text in mteb_files(self.systems, self.rows).items()}
        for path, text in files.items():
            write_text(folder / path, text)
        return folder

    def run_facts(self) -> dict[str, Any]:
        """When and where the numbers were made, and with which versions."""
        finished = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return {"finished": finished, "host": platform.node(), "versions": {name: version(name) for name in VERSIONS}}

    def _versus(self, lead: Column, best: Row, other: Row) -> str:
        facts = {system.name: system for system in self.shown}
        differences = {row.place: row for row in self.compared(best.system, other.system)}
        difference, metric = differences[lead.place], best.metric
        text = (
            f"{lead.title}: {best.system} {number(best.value, metric)} against {other.system} "
            f"{number(other.value, metric)}, difference {number(difference.difference, metric)}"
            f"{facts[best.system].fitted_apart(facts[other.system])}"
        )
        if difference.separable is None:
            too_little = "with so few pairs" if self.resamples else "without resamples"
            return f"{text}; {too_little} it is not known whether this is chance."
        text += f" (95 % {interval(difference.ci_low, difference.ci_high, metric)}): {difference.verdict}"
        found = [(column.title, differences[column.place]) for column in self._tasks(metric)]
        if len(found) < 2:
            return f"{text}."
        above = sum(bool(row.separable) and row.difference > 0 for _, row in found)
        below = sum(bool(row.separable) and row.difference < 0 for _, row in found)
        same = [title for title, row in found if not row.separable]
        text += f"; by task better on {above}, worse on {below}"
        return f"{text}, no significant difference on {', '.join(same)}." if same else f"{text}."

    def _scale(self, used: Sequence[Row]) -> str:
        """What the numbers are, and of how many pairs or queries."""
        metrics = [row.metric for row in used if not row.metric.endswith(UNSCALED)]
        scaled = ", ".join(dict.fromkeys(METRIC_TITLES.get(name, name) for name in metrics))
        graded = [row for row in used if row.metric.endswith(CORRELATIONS)]
        made = [f"aggregation {one} ({AGGREGATIONS[one]})" for one in {row.aggregation: 0 for row in graded}]
        forms = " and ".join(dict.fromkeys(TEXT_FORMS[form] for row in graded for form in row.text_form.split("+")))
        counted = {row.task: row.counted for row in reversed(used) if row.task not in SUITES}
        scored = ", ".join(f"{task_title(task)} ({n})" for task, n in reversed(counted.items()))
        return "; ".join(filter(None, [f"{scaled} x 100 of {scored}", *made, forms]))

    def _protocol(self, used: Sequence[Row]) -> str:
        line = self._scale(used)
        if not self.resamples:
            return f"{line}; no intervals."
        of_seeds = f"; also of seeds for the {self.mean.name}" if self.mean else ""
        several = len({row.task for row in used}) > 1
        return (
            f"{line}. Every 95 % interval is from {self.resamples:,} bootstrap resamples of pairs or queries (BCa)"
            f"{', and of sentences for averages over tasks' * several}{of_seeds}; seed {self.seed}. Significant: p < "
            f"{LEVEL} by the paired bootstrap{', corrected over the tasks (Holm)' * several}."
        )


def _system_line(system: SystemFacts, used: Sequence[Row]) -> str:
    """How one system was made, and what it saw of the scored text."""
    description, own = system.description, [row for row in used if row.system == system.name]
    told = [key for key in ("encoder", "pooling", "max_length") if key in description]
    parts = [f"{key.replace('_', ' ')} {description[key]}" for key in told]
    if description.get("prompt"):
        parts.append(f"prompt {description['prompt']!r}")
    if "calibrator" in description:
        parts.append(f"{description['calibrator']} fitted on {description['fitted_rows']:,} rows")
    parts.append(_seen(own))
    if system.labels:
        parts.append(f"trained on the labels of {', '.join(system.labels)}")
    if leaks := dict.fromkeys(row.label_leak for row in own if row.label_leak):
        parts.append(f"TRAINED ON LABELS of {', '.join(leaks)}: scores marked ! are forced and say nothing")
    return f"{system.name}: {', '.join(parts)}."


def _seen(rows: Sequence[Row]) -> str:
    shares = [row.seen for row in rows if row.seen is not None]
    if len(shares) < len(rows):
        return f"it is not recorded how much{IN_FIT}"
    ends = dict.fromkeys(f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return f"{' to '.join(ends)} %{IN_FIT}"
