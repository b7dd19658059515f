"""Does a system look at the surface? Are pairs found similar because they share words rather than meaning?

    rho(similarity, edit distance)      strongly negative: it looks at the surface; gold scores are the measure
    rho(similarity, gold)               on all pairs, and on those that differ by at most four edits

The paper (Li et al. 2020, table 6 and figure 2) does not say what it edits, so both are here: characters and words, of
lower-cased text. Between its gold scores and the edit distance it has -24.61; on the same pairs words give -23.92 and
characters -20.50, and at most four edits are 383 or 16 pairs: it probably counts words, cut in another way.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from bertflow import SentenceEncoder
from bertflow.correlation import FEWEST, spearman
from bertflow.data.pairs import Pairs
from bertflow.evaluation.edits import LEVELS, edit_distance
from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.models import Addition
from bertflow.evaluation.report import Report
from bertflow.evaluation.rows import number, task_title
from bertflow.files import to_json
from bertflow.tables import Section, Table

NEAR = 4
"""Edits of a pair that counts as near."""
GOLD = "gold"
"""Stands among the systems: how the human scores themselves go with edit distance."""


@dataclass(frozen=True)
class LexicalStudy(Addition):
    """Edit distance of some pairs, below the scores.

    Attributes:
        pairs: The paper's are ``stsb-dev``.
        similarity: A row of ``SIMILARITIES``.
    """

    pairs: Pairs
    similarity: str = "cosine"

    def add_to(self, report: Report, systems: Mapping[str, SentenceEncoder], progress: bool | None) -> Report:
        """A section, and lexical.json."""
        found = lexical_table(systems, self.pairs, self.similarity, progress)
        return report.add(found.section(), files={"lexical.json": found.to_json()})


@dataclass(frozen=True)
class LexicalRow:
    """One system, or the gold scores, under one level of edits. Correlations are Spearman's, in [-1, 1].

    Attributes:
        system: As tables call it.
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


@dataclass(frozen=True)
class Lexical:
    """All rows of one task, by level, then by system.

    Systems that are left out were trained on labels of these pairs.
    """

    task: str
    rows: tuple[LexicalRow, ...]
    left_out: tuple[str, ...] = ()

    def table(self) -> Table:
        """A line a system, x 100."""
        by_system = {
            name: [row for row in self.rows if row.system == name]
            for name in dict.fromkeys(row.system for row in self.rows)
        }
        levels = by_system[GOLD]
        distances = [f"edits of {row.level}" for row in levels]
        near = [f"gold, at most {NEAR} {row.level} ({row.near} pairs)" for row in levels]
        lines = [
            (name, *(number(value, "spearman") for value in values))
            for name, rows in by_system.items()
            for values in [(rows[0].gold, *(row.distance for row in rows), *(row.near_gold for row in rows))]
        ]
        return Table((f"lexical, {task_title(self.task)}", "gold", *distances, *near), tuple(lines))

    def section(self) -> Section:
        """The table, and how it was made."""
        n = self.rows[0].n
        lines = [
            f"Spearman x 100 on the {n:,} pairs of {task_title(self.task)}; edits are counted in characters and in "
            "words of lower-cased text. The more negative a system's columns of edits, beside those of gold, the more "
            "it looks at the surface."
        ]
        lines += [f"{name} is left out: it was trained on labels of these pairs." for name in self.left_out]
        return Section("Lexical similarity", self.table(), tuple(lines))

    def to_json(self) -> str:
        """Everything; correlations in [-1, 1]."""
        return to_json({"format": 1, "task": self.task, "at_most": NEAR, "rows": [asdict(row) for row in self.rows]})


def lexical_table(
    systems: Mapping[str, SentenceEncoder], pairs: Pairs, similarity: str = "cosine", progress: bool | None = None
) -> Lexical:
    """How the similarities of every system, and the gold scores, go with the edit distance of the pairs.

    Args:
        systems: By the name they have in the table.
        pairs: The paper's are ``stsb-dev``.
        similarity: A row of ``SIMILARITIES``.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
    """
    report = score_sets(systems, [pairs], similarity, resamples=0, force=True, progress=progress)
    leaks = {row.system for row in report.rows if row.label_leak}
    scores = {GOLD: pairs.target} | dict(zip(systems, report.tasks[0].similarities, strict=True))
    rows = []
    for level, cut in LEVELS.items():
        distances = [edit_distance(cut(a), cut(b)) for a, b in zip(pairs.first, pairs.second, strict=True)]
        rows += [
            _row(name, level, found, pairs.target, np.array(distances))
            for name, found in scores.items()
            if name not in leaks
        ]
    return Lexical(pairs.task, tuple(rows), tuple(name for name in systems if name in leaks))


def _row(
    system: str, level: str, scores: NDArray[np.float64], gold: NDArray[np.float64], distances: NDArray[np.int_]
) -> LexicalRow:
    near = distances <= NEAR
    varied = near.sum() >= FEWEST and np.ptp(gold[near]) > 0 and np.ptp(scores[near]) > 0
    return LexicalRow(
        system,
        level,
        n=len(gold),
        distance=spearman(scores, distances.astype(np.float64)),
        gold=None if system == GOLD else spearman(scores, gold),
        near=int(near.sum()),
        near_gold=spearman(scores[near], gold[near]) if varied and system != GOLD else None,
    )
