"""Systems are scored on pairs, and the report: every number of an evaluation, and how each was made.

    rows         one number each, with its interval, its protocol and its system's description
    differences  every pair of systems on every task and suite
    tables       the same for reading, in the column order of the papers

Equal input gives equal bytes: nothing here depends on the time or the machine.
"""

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertflow.data.pairs import Pairs
from bertflow.data.sts_tasks import suites_of
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.candidate_lists import candidate_figures
from bertflow.evaluation.captions import captions, comparison
from bertflow.evaluation.figures import (
    ScoredTask,
    Sides,
    binary_figures,
    retrieval_figures,
    suite_figures,
    task_figures,
)
from bertflow.evaluation.literature import Published, published_rows, published_table
from bertflow.evaluation.rows import (
    Column,
    Row,
    SystemFacts,
    columns,
    interval,
    make_rows,
    number,
    refuse_label_leaks,
)
from bertflow.evaluation.seeds import SeveralSeeds
from bertflow.evaluation.significance import Difference, Figure, differences, enough
from bertflow.evaluation.systems import encode_sets
from bertflow.files import write_text
from bertflow.progress import working
from bertflow.results import AbstractResult
from bertflow.similarity import SIMILARITIES
from bertflow.tables import Section, Table

if TYPE_CHECKING:
    from bertflow.evaluation.ceiling import SupervisedCeiling

VERSIONS = ("bertflow", "torch", "transformers", "numpy", "scipy")


@dataclass(frozen=True, repr=False)
class Report(AbstractResult):
    """What ``evaluate`` and its parts give back.

    Attributes:
        rows: All numbers.
        differences: All pairs of systems.
        systems: What each system says about itself.
        resamples: How often the pairs were resampled.
        seed: Random seed for the bootstrap.
        metric: The metric that tables show.
        tasks: The STS tasks with all similarities, for the predictions.
        aggregation: Aggregation that tables show: a row of ``AGGREGATIONS``.
        theirs: Published figures below the table.
        sections: Tables below the scores.
        files: Texts of other files to save, by name.
        below: Thresholds that were missed, in words.
        seeds: The flow that was fitted with several seeds, if there is one; tables show their mean in its place.
    """

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    systems: tuple[SystemFacts, ...]
    resamples: int
    seed: int
    metric: str
    tasks: tuple[ScoredTask, ...] = ()
    aggregation: str = "all"
    theirs: tuple[Published, ...] = ()
    sections: tuple[Section, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    below: str = ""
    seeds: SeveralSeeds | None = None

    name: ClassVar[str] = "results"
    title: ClassVar[str] = "Scores"

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of the report's tables."""
        return columns(self.rows, self.aggregation, self.metric)

    @cached_property
    def shown(self) -> list[SystemFacts]:
        """The systems of the tables: where one flow has several seeds, their mean is the last in place of them."""
        if self.seeds is None:
            return list(self.systems)
        others = [one for one in self.systems if one.name not in self.seeds.systems]
        return [*others, self.seeds.facts(self.systems)]

    @cached_property
    def _by_place(self) -> dict[tuple[str, ...], Row]:
        """Rows of whole tasks by system, task, aggregation and metric."""
        return {(row.system, row.task, row.aggregation, row.metric): row for row in self.rows if not row.subset}

    def column(self, column: Column) -> list[Row]:
        """The rows of one column, in the order of the systems."""
        return [self._by_place[one.name, column.task, column.aggregation, column.metric] for one in self.shown]

    def shown_values(self, system: str) -> list[float]:
        """The numbers of one system in the report's columns, in [-1, 1]."""
        return [self.value(system, column.task, column.aggregation, column.metric) for column in self.columns]

    def table(self, shown: Sequence[Column] | None = None) -> Table:
        """The values, x 100, by default in the report's columns; a forced score is marked with an exclamation mark."""
        shown = self.columns if shown is None else shown
        return self._table(shown, lambda row: number(row.value, row.metric) + ("!" if row.label_leak else ""))

    def intervals(self) -> Table:
        """The 95 % intervals of the same cells; a dash where nothing was resampled."""
        return self._table(self.columns, lambda row: interval(row.ci_low, row.ci_high, row.metric))

    def _table(self, shown: Sequence[Column], cell: Callable[[Row], str]) -> Table:
        systems = zip(*(self.column(column) for column in shown), strict=True)
        lines = tuple((rows[0].system, *map(cell, rows)) for rows in systems)
        return Table(("system", *(column.title for column in shown)), lines)

    def comparison(self) -> list[str]:
        """What can be told apart, in words."""
        return comparison(self)

    def captions(self) -> list[str]:
        """How the numbers of the table were made: one line for all, one for each system."""
        return captions(self)

    def value(self, system: str, task: str, aggregation: str = "all", metric: str | None = None) -> float:
        """One number, in [-1, 1].

        Raises:
            KeyError: If the report has no such row.
        """
        return self._by_place[system, task, aggregation, metric or self.metric].value

    def values(self, metric: str) -> dict[str, float]:
        """The number of each system, in [-1, 1], where a single task was scored."""
        return {row.system: row.value for row in self.rows if row.metric == metric and row.aggregation == "all"}

    def compared(self, system: str, other: str) -> list[Difference]:
        """The differences of two systems, on each task and suite, as seen from the first."""
        names = {system, other}
        return [row.seen_from(system) for row in self.differences if {row.first, row.second} == names]

    def missed(self) -> str:
        """The thresholds that were missed."""
        return self.below

    def parts(self) -> Iterator[Table | Section | str]:
        """Tables x 100, what can be told apart, how each number was made, and the sections."""
        yield self.table()
        if self.theirs:
            yield published_table(self)
        yield from (*self.comparison(), "", *self.captions())
        yield from self.sections

    def as_dict(self) -> dict[str, Any]:
        """Everything but the similarities, ready for JSON; correlations in [-1, 1]."""
        return {
            "format": 1,
            "resamples": self.resamples,
            "seed": self.seed,
            "systems": {one.name: dict(one.description) for one in (*self.systems, *self.shown)},
            **({"seeds": self.seeds.spreads(self.rows)} if self.seeds else {}),
            **({"published": published_rows(self)} if self.theirs else {}),
            "rows": [row.as_dict() for row in self.rows],
            "differences": [{**asdict(row), "separable": row.separable} for row in self.differences],
            "sections": [asdict(section) for section in self.sections],
        }

    def to_markdown(self) -> str:
        """Tables x 100, what can be told apart, how each number was made, and the sections."""
        parts = [f"# {self.title}\n", self.table().to_markdown()]
        if self.resamples:
            parts += ["## 95 % intervals\n", self.intervals().to_markdown()]
        if self.theirs:
            parts += ["## Published figures\n", published_table(self).to_markdown()]
        if lines := self.comparison():
            parts += ["## What can be told apart\n", _list(lines)]
        parts += ["## How these numbers were made\n", _list(self.captions())]
        return "\n".join([*parts, *(section.to_markdown() for section in self.sections)])

    def save(self, folder: str | Path) -> Path:
        """Write results.json and results.md, of STS tasks predictions.csv and mteb's files, and lexical.json."""
        from bertflow.evaluation.mteb_files import MAIN_SCORE, mteb_files, predictions_csv

        folder, files = super().save(folder), dict(self.files)
        if self.tasks:
            files["predictions.csv"] = predictions_csv(self)
        if self.tasks and self.metric == MAIN_SCORE:
            files |= {f"mteb/{path}": text for path, text in mteb_files(self).items()}
        for path, text in files.items():
            write_text(folder / path, text)
        return folder

    def run_facts(self) -> dict[str, Any]:
        """When and where the numbers were made, and with which versions."""
        finished = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return {"finished": finished, "host": platform.node(), "versions": {name: version(name) for name in VERSIONS}}


def _list(lines: list[str]) -> str:
    return "".join(f"* {line}\n" for line in lines)


@working("scoring")
def score_sets(
    systems: Mapping[str, SentenceEncoder],
    sets: Iterable[Pairs],
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    progress: bool | None = None,
    ceilings: "Mapping[str, SupervisedCeiling] | None" = None,
    seeds: SeveralSeeds | None = None,
) -> Report:
    """Score systems on pairs of any kind, and the mean over ``seeds``; see ``bertflow.evaluate_sts``.

    Where ``resamples`` are too few for the number of tasks, there are more. Ceilings are for graded pairs alone.
    """
    if not isinstance(systems, Mapping):
        raise UsageError(
            f"The systems are encoders by their names, as {{'raw': encoder}}; got a {type(systems).__name__}."
        )
    sets, ceilings = list(sets), ceilings or {}
    resamples = enough(resamples, len(sets))
    facts = [SystemFacts.of(name, system) for name, system in systems.items()]
    facts += [ceiling.facts(name) for name, ceiling in ceilings.items()]
    refuse_label_leaks(facts, [pairs.task for pairs in sets if pairs.kind != "retrieval" and not force])
    tasks: list[ScoredTask] = []
    figures: list[Figure] = []
    for pairs, sides in zip(sets, encode_sets(systems, sets, similarity, progress), strict=True):
        if pairs.kind in FIGURES:
            figures += FIGURES[pairs.kind](pairs, sides, similarity, resamples, seed)
        else:
            tasks.append(_scored(pairs, sides, similarity, ceilings))
            figures += task_figures(tasks[-1], resamples, seed)
    parts = {pairs.task: [pairs] for pairs in sets}
    suites = suites_of({task.pairs.task for task in tasks})
    for suite, members in suites.items():
        figures += suite_figures(suite, [task for task in tasks if task.pairs.task in members], resamples, seed)
        parts[suite] = [pairs for pairs in sets if pairs.task in members]
    described = list(facts)
    if seeds:
        figures = [seeds.with_mean(figure, [one.name for one in facts], seed) for figure in figures]
        described.append(seeds.facts(facts))
    return Report(
        rows=tuple(make_rows(described, figures, parts)),
        differences=tuple(differences([one.name for one in described], figures, suites)),
        systems=tuple(facts),
        resamples=resamples,
        seed=seed,
        metric=figures[0].metric,
        tasks=tuple(tasks),
        seeds=seeds,
    )


FIGURES: Mapping[str, Callable[[Pairs, Sides, str, int, int], list[Figure]]] = {
    "retrieval": retrieval_figures,
    "candidates": candidate_figures,
    "binary": binary_figures,
}
"""What is measured on a kind of pairs that are not graded."""


def _scored(pairs: Pairs, sides: Sides, similarity: str, ceilings: "Mapping[str, SupervisedCeiling]") -> ScoredTask:
    paired = SIMILARITIES[similarity].paired
    similarities = {system: paired(first, second) for system, first, second in sides}
    similarities |= {name: ceiling.scores(pairs) for name, ceiling in ceilings.items()}
    for system, scores in similarities.items():
        if np.ptp(scores) == 0:
            raise DataError(
                f"The system {system} finds all {len(scores)} pairs of {pairs.task} equally similar ({scores[0]:g}), "
                "so there is no correlation. Its embeddings have collapsed: fit again."
            )
    return ScoredTask(pairs, similarity, np.stack(list(similarities.values())))
