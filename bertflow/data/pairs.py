"""Pairs of sentences to learn from, with what there is to learn: a class, a score, or only that they belong together.

    classes    premise, hypothesis, label                      ``bertflow.data.nli``
    scores     sentence1, sentence2, score                     STS tasks, or a table of one's own
    nothing    question, answer; text, paraphrase; two columns of a tsv without a header

A pair that cannot be used is refused with its file and line, not left out: what is dropped in silence is missed later.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.data.sts import expand_tasks, load_sts
from bertflow.data.sts_tasks import TASKS
from bertflow.data.tables import TextTable, open_table, table_suffix
from bertflow.errors import DataError
from bertflow.registry import lookup
from bertflow.text_keys import hash_text

RELATED_COLUMNS = (
    ("query", "text"),
    ("question", "answer"),
    ("text", "paraphrase"),
    ("anchor", "positive"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
)
"""A row is what the columns of two texts that belong together may be called."""
TOP = 5.0
"""The highest score of the STS tasks."""


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """Pairs to learn from; all sequences are of one length.

    Attributes:
        first: Premises, questions, first sentences.
        second: Hypotheses, answers, second sentences.
        targets: The class of each pair (int64), its score as a share of the highest (float32), or None.
        classes: What the classes are called; empty where there are none.
        sources: Tasks or files, as provenance names them.
        dropped: Pairs without a gold label, which were left out.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    targets: NDArray[np.int64] | NDArray[np.float32] | None
    classes: tuple[str, ...]
    sources: tuple[str, ...]
    dropped: int = 0

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.first)

    def digest(self) -> str:
        """One fingerprint for equal pairs with equal targets in the same order."""
        targets = [] if self.targets is None else self.targets.tolist()
        return hashlib.sha256("\0".join((*self.first, *self.second, *map(repr, targets))).encode()).hexdigest()

    def taken(self, rows: Sequence[int] | NDArray[np.int64]) -> "TrainingPairs":
        """Some of the pairs, in the order asked for."""
        targets = None if self.targets is None else self.targets[np.asarray(rows, dtype=np.int64)]
        first, second = tuple(self.first[row] for row in rows), tuple(self.second[row] for row in rows)
        return TrainingPairs(first, second, targets, self.classes, self.sources, self.dropped)

    def of_class(self, name: str) -> "TrainingPairs":
        """The pairs of one class, as pairs that belong together: premises and what they entail.

        Raises:
            UnknownNameError: If there is no such class.
        """
        index = lookup("class", {known: k for k, known in enumerate(self.classes)}, name)
        assert self.targets is not None
        return replace(self.taken(np.flatnonzero(self.targets == index)), targets=None, classes=())

    def without_text(self, hashes: NDArray[np.uint64]) -> "TrainingPairs":
        """The pairs of which no side stands among some text, by the hashes of its keys (``bertflow.text_keys``)."""
        shown = set(hashes.tolist())
        pairs = enumerate(zip(self.first, self.second, strict=True))
        return self.taken([row for row, pair in pairs if not any(hash_text(text) in shown for text in pair)])


def sample(pairs: TrainingPairs, n: int | None, seed: int) -> TrainingPairs:
    """A random sample of ``n`` pairs in their order; all of them if there are no more, or ``n`` is None."""
    if n is None or n >= len(pairs):
        return pairs
    return pairs.taken(np.sort(np.random.default_rng(seed).permutation(len(pairs))[:n]))


def load_related(paths: str | Path | Sequence[str | Path]) -> TrainingPairs:
    """Pairs of texts that belong together: questions and answers, texts and paraphrases.

    Args:
        paths: Tables with columns as in ``RELATED_COLUMNS``; or a tsv of two columns without a header.

    Raises:
        DataError: If a file, a column or a text is missing, or fewer than two pairs are left; with file and line.
    """
    rows: list[tuple[str, str]] = []
    for path in listed(paths):
        table, columns = _two_columns(path)
        for number, (first, second) in table.read(columns):
            where = table.where(number)
            rows.append((text_of(first, columns[0], where), text_of(second, columns[1], where)))
    if len(rows) < 2:
        raise DataError(f"{spelled(paths)} holds {len(rows)} pairs, but contrast needs at least 2. Give more pairs.")
    return TrainingPairs(tuple(a for a, _ in rows), tuple(b for _, b in rows), None, (), names_of(paths))


def load_graded(
    paths: str | Path | Sequence[str | Path] = (),
    tasks: str | Sequence[str] = (),
    data_dir: str | Path | None = None,
    top: float = TOP,
) -> TrainingPairs:
    """Pairs with a human score: STS tasks, or tables with sentence1, sentence2 and score.

    Args:
        paths: Tables of one's own.
        tasks: Names of ``TASKS`` or suites, in ``data_dir``; their names are what the evaluation knows leaks by.
        data_dir: Where the tasks lie.
        top: The highest score of one's own tables; a target is score / top, as the tasks' is score / 5.

    Raises:
        DataError: If a file is missing or damaged, a score is outside 0 to ``top``, or all scores are equal.
        UnknownNameError: If there is no such task.
    """
    first: list[str] = []
    second: list[str] = []
    targets: list[NDArray[np.float64]] = []
    named = list(expand_tasks(tasks, data_dir)) if tasks else []
    for name in [*named, *map(str, listed(paths))]:
        pairs = load_sts(name, data_dir or ".")
        highest = TASKS[name].scale[1] if name in TASKS else top
        if pairs.gold.min() < 0 or pairs.gold.max() > highest:
            raise DataError(
                f"{pairs.source} should be scored from 0 to {highest:g}, but its scores go from {pairs.gold.min():g} "
                f"to {pairs.gold.max():g}. Say the highest score with data.top_score."
            )
        first += pairs.sentence1
        second += pairs.sentence2
        targets.append(pairs.gold / highest)
    scores = np.concatenate(targets).astype(np.float32)
    return TrainingPairs(tuple(first), tuple(second), scores, (), tuple(dict.fromkeys((*named, *names_of(paths)))))


def listed(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """One path or several, as a list."""
    return [Path(path).expanduser() for path in ([paths] if isinstance(paths, str | Path) else paths)]


def spelled(paths: str | Path | Sequence[str | Path]) -> str:
    """The paths in words."""
    return ", ".join(map(str, listed(paths)))


def names_of(paths: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """What provenance calls some files: their names without the ending."""
    return tuple(dict.fromkeys(path.name.removesuffix(".gz").rpartition(".")[0] for path in listed(paths)))


def text_of(cell: Any, column: str, where: str) -> str:
    """A text with its white space collapsed.

    Raises:
        DataError: If there is none.
    """
    text = " ".join(cell.split()) if isinstance(cell, str) else ""
    if not text:
        raise DataError(f"{where}: the column {column} should hold text, got {cell!r}. Leave the pair out.")
    return text


def _two_columns(path: Path) -> tuple[TextTable, tuple[str, ...]]:
    table = open_table(path)
    columns = next((names for choice in RELATED_COLUMNS if (names := table.find(choice))), None)
    if columns is None and len(table.columns) == 2 and table_suffix(path) == ".tsv":
        table = open_table(path, header=False)
        columns = table.columns
    return table, columns or table.require(RELATED_COLUMNS)
