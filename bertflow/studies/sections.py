"""Sections that a report may have besides the scores: shares of the ceiling, and lexical similarity.

The supervised ceiling: which share of the gap between raw and the ceiling does a label-free system close?

    share = (system - raw) / (ceiling - raw)

A share of a gap that may be zero says nothing. So a share is given only where the ceiling is separably above raw and
above every label-free system: no share is above 100 %, and where a system is below raw the table says so.

Lexical similarity: are pairs found similar because they share words rather than meaning?

    rho(similarity, edit distance)      strongly negative: it looks at the surface; gold scores are the measure
    rho(similarity, gold)               on all pairs, and on those that differ by at most four edits

The paper (Li et al. 2020, table 6 and figure 2) does not say what it edits, so both are here: characters and words, of
lower-cased text. Between its gold scores and the edit distance it has -24.61; on the same pairs words give -23.92 and
characters -20.50, and at most four edits are 383 or 16 pairs: it probably counts words, cut in another way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertflow.correlation import FEWEST, spearman
from bertflow.data.pairs import Pairs
from bertflow.data.sts_tasks import task_title
from bertflow.evaluation.edits import LEVELS, edits_of
from bertflow.evaluation.evaluating import Addition, PairScorer, score_sets
from bertflow.evaluation.report import Report
from bertflow.evaluation.score_table import Column
from bertflow.evaluation.sides import Systems
from bertflow.files import to_json
from bertflow.studies.ceiling import CEILING, RAW, ceilings_of
from bertflow.tables import MISSING, Section, Table, interval, number

BELOW = "below raw"
"""Text in place of a negative share."""
NEAR = 4
"""Edits of a pair that counts as near."""
GOLD = "gold"
"""Name among the systems: how the human scores themselves go with edit distance."""


@dataclass(frozen=True)
class CeilingStudy(Addition):
    """The ceiling of each raw encoder among the systems, and which share of its gap the others close.

    Attributes:
        labeled: Task -> the labeled pairs of other tasks that it is predicted from.
    """

    labeled: Mapping[str, Pairs]

    def scorers(self, systems: Systems, sets: Sequence[Pairs], progress: bool | None) -> Mapping[str, PairScorer]:
        """The ceilings."""
        return ceilings_of(systems, sets, self.labeled, progress)

    def add_to(self, report: Report, *_: Any) -> Report:
        """A section for each ceiling."""
        names = [facts.name for facts in report.systems if f"{facts.name} ".startswith(f"{CEILING} ")]
        return report.add(*(gap_section(report, RAW + name.removeprefix(CEILING), name) for name in names))


def gap_section(report: Report, raw: str, ceiling: str) -> Section:
    """The share of the gap between raw and the ceiling that each label-free system of the same weights closes.

    A share is shown where the ceiling is above raw and above every such system: where the 95 % intervals of the paired
    differences lie above zero. Else there is a dash, and the reason in words.

    Args:
        report: Scores of all of them.
        raw: Name of the system at 0 %.
        ceiling: Name of the system at 100 %.
    """
    columns = [column for column in report.columns if column.place.metric == report.metric]
    weights = {facts.name: facts.description.get("weights") for facts in report.shown if not facts.labels}
    names = [name for name in weights if name not in (raw, ceiling) and weights[name] == weights[raw]]
    reasons = {column: _reason(report, ceiling, (raw, *names), column) for column in columns}

    def cell(system: str, column: Column) -> str:
        value, low, high = (report.value(name, *column.place) for name in (system, raw, ceiling))
        if reasons[column]:
            return MISSING
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
    compared = [row for other in others for row in report.compared(ceiling, other) if row.place == column.place]
    if any(row.ci_low is None for row in compared):
        return f"{column.title}: no share. Without resamples it is not known whether {ceiling} is above the others."
    open_to_chance = [row for row in compared if row.ci_low is not None and row.ci_low <= 0]
    if not open_to_chance:
        return ""
    closest = min(open_to_chance, key=lambda row: row.difference)
    value, other = (number(report.value(name, *column.place)) for name in (ceiling, closest.second))
    return (
        f"{column.title}: no share, since {ceiling} ({value}) is not separably above {closest.second} ({other}): "
        f"difference {number(closest.difference)}, 95 % {interval(closest.ci_low, closest.ci_high)}."
    )


@dataclass(frozen=True)
class LexicalStudy(Addition):
    """Edit distance of some pairs, below the scores.

    Attributes:
        pairs: The paper's are ``stsb-dev``.
        similarity: A row of ``SIMILARITIES``.
    """

    pairs: Pairs
    similarity: str = "cosine"

    def add_to(self, report: Report, systems: Systems, progress: bool | None) -> Report:
        """A section, and lexical.json."""
        rows = list(lexical_rows(systems, self.pairs, self.similarity, progress))
        left_out = [name for name in systems if name not in {row.system for row in rows}]
        written = {"format": 1, "task": self.pairs.task, "at_most": NEAR, "rows": [asdict(row) for row in rows]}
        section = lexical_section(task_title(self.pairs.task), rows, left_out)
        return report.add(section, files={"lexical.json": to_json(written)})


@dataclass(frozen=True)
class LexicalRow:
    """One system, or the gold scores, under one level of edits. Correlations are Spearman's, in [-1, 1].

    Attributes:
        system: Its name in tables.
        level: A row of ``LEVELS``.
        n: Pairs.
        distance: Correlation of similarity and edit distance.
        gold: Correlation of similarity and gold score; None of the gold scores with themselves.
        near: Pairs of at most ``NEAR`` edits.
        near_gold: Correlation with the gold scores among those; None where there are too few, or no variance.
    """

    system: str
    level: str
    n: int
    distance: float
    gold: float | None
    near: int
    near_gold: float | None


def lexical_rows(systems: Systems, pairs: Pairs, similarity: str, progress: bool | None) -> Iterator[LexicalRow]:
    """How the similarities of the gold scores, and of every system, go with the edit distance of the pairs.

    Systems that were trained on labels of these pairs are left out.
    """
    report = score_sets(systems, [pairs], similarity, resamples=0, force=True, progress=progress)
    leaks, gold = {row.system for row in report.rows if row.label_leak}, pairs.target
    scores = {GOLD: gold} | dict(zip(systems, report.tasks[0].similarities, strict=True))
    for level in LEVELS:
        distances = edits_of(pairs, level)
        near = distances <= NEAR
        for name, found in scores.items():
            if name not in leaks:
                varied = near.sum() >= FEWEST and np.ptp(gold[near]) > 0 and np.ptp(found[near]) > 0
                with_gold = None if name == GOLD else spearman(found, gold)
                near_gold = spearman(found[near], gold[near]) if varied and name != GOLD else None
                distance = spearman(found, distances)
                yield LexicalRow(name, level, len(gold), distance, with_gold, int(near.sum()), near_gold)


def lexical_section(title: str, rows: Sequence[LexicalRow], left_out: Sequence[str] = ()) -> Section:
    """A line a system, x 100, on the task of this title, and how the numbers were made."""
    by_system = {row.system: [one for one in rows if one.system == row.system] for row in rows}
    levels = by_system[GOLD]
    near = [f"gold, {row.near} pairs" for row in levels]
    header = (f"lexical, {title}", "gold", *(f"edits of {row.level}" for row in levels), *near)
    table = tuple(
        (name, *map(number, (own[0].gold, *(row.distance for row in own), *(row.near_gold for row in own))))
        for name, own in by_system.items()
    )
    how = (
        f"Spearman x 100 on the {rows[0].n:,} pairs of {title}; edits are counted in characters and in words of "
        "lower-cased text. The more negative a system's columns of edits, beside those of gold, the more it looks at "
        f"the surface. The last columns are of pairs at most {NEAR} characters, or words, apart."
    )
    without = (f"{name} is left out: it was trained on labels of these pairs." for name in left_out)
    return Section("Lexical similarity", Table(header, table), (how, *without))
