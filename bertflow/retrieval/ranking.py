"""The best answers in an index for a question, exactly.

An answer has several phrases; its score is the largest cosine of the question with one of them. Scores are computed in
float32, a block of questions at a time, and the k-th largest is found without sorting. Phrases within the rounding
error of float32 of it are candidates; they are scored again in float64, where equal embeddings have equal scores, and
sorted by score, then by id.

    float32 (q, n) --> best phrase of each answer (q, answers) --> candidates --> float64, sorted
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError, UsageError
from bertflow.retrieval.storage import Storage
from bertflow.similarity import unit_rows
from bertflow.text_keys import is_blank

ROWS = 8192
"""Embeddings that are read at a time."""
CELLS = 2**25
"""Scores computed at a time: 128 MB."""
ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""A cosine of d coordinates in float32 has an error of less than d times this."""
Float64 = NDArray[np.float64]
Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Phrases:
    """All phrases of an index, the answers in order of their ids.

    Attributes:
        numbers: The number of each phrase; (n,).
        starts: Where the phrases of each answer start; (answers,).
        names: The ids of the answers, rising.
        unit: The embeddings, of length one; (n, dim).
    """

    numbers: NDArray[np.int64]
    starts: NDArray[np.intp]
    names: tuple[str, ...]
    unit: Floats

    @classmethod
    def read(cls, storage: Storage, raw: bool = False, dtype: type[np.floating] = np.float32) -> "Phrases":
        """Read all of them into memory.

        Args:
            storage: The index.
            raw: Whether to read the embeddings without the calibrator.
            dtype: Data type of ``unit``.
        """
        rows = list(storage.owners())
        numbers, owners = zip(*rows, strict=True) if rows else ((), ())
        names, starts = np.unique(np.array(owners, dtype=object), return_index=True)
        unit = np.empty((0, 0), dtype)
        for start in range(0, len(numbers), ROWS):
            block = unit_rows(storage.vectors(numbers[start : start + ROWS], raw))
            if not start:
                unit = np.empty((len(numbers), block.shape[1]), dtype)
            unit[start : start + ROWS] = block
        return cls(np.array(numbers, dtype=np.int64), starts, tuple(names), unit)

    def scores(self, questions: Floats) -> Iterator[tuple[slice, Floats, Floats]]:
        """Which questions (q, dim), their cosines with all phrases (q, n), and the best of each answer (q, answers)."""
        if self.unit.shape[1] != questions.shape[1]:
            raise DataError(
                f"The index should hold embeddings of width {questions.shape[1]}, but they have {self.unit.shape[1]}. "
                "It is damaged: build it again."
            )
        size = max(1, CELLS // max(1, len(self.numbers)))
        for start in range(0, len(questions), size):
            block = slice(start, min(start + size, len(questions)))
            cosines = questions[block].astype(self.unit.dtype) @ self.unit.T
            yield block, cosines, np.maximum.reduceat(cosines, self.starts, axis=1)

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of some ids that are not there."""
        return sorted({*names}.difference(self.names))

    def ranks(self, questions: Floats, right: Sequence[frozenset[str]]) -> list[NDArray[np.int64]]:
        """Ranks of the right answers of each question (q, dim), rising, from 1; of equal scores wrong ones first."""
        place = {name: at for at, name in enumerate(self.names)}
        found = []
        for block, _, best in self.scores(unit_rows(questions)):
            for row, names in zip(best, right[block], strict=True):
                mine = np.array([place[name] for name in names])
                wrong, falling = np.sort(np.delete(row, mine)), np.sort(row[mine])[::-1]
                found.append(len(wrong) - np.searchsorted(wrong, falling) + np.arange(1, len(mine) + 1))
        return found


class Search(Protocol):
    """Finds the phrases that the best answers may have; the rows of ``places.ENGINES`` are such."""

    def refresh(self, storage: Storage) -> None:
        """Read what is stored now."""
        ...

    def candidates(self, questions: Float64, k: int) -> list[Sequence[int]]:
        """For each question (q, dim) of length one the numbers of phrases, among them those of the best k answers."""
        ...


class ExactSearch:
    """All cosines, in memory: exact, and fast enough for tens of thousands of phrases."""

    _phrases: Phrases

    def refresh(self, storage: Storage) -> None:
        """Read all embeddings again."""
        self._phrases = Phrases.read(storage)

    def candidates(self, questions: Float64, k: int) -> list[Sequence[int]]:
        """The phrases that come within rounding of the k-th best answer."""
        phrases, found = self._phrases, list[Sequence[int]]()
        for _, cosines, best in phrases.scores(questions):
            last = -min(k, best.shape[1])
            thresholds = np.partition(best, last, axis=1)[:, last] - phrases.unit.shape[1] * ROUNDING
            found += [phrases.numbers[row >= least].tolist() for row, least in zip(cosines, thresholds, strict=True)]
        return found


@dataclass(frozen=True)
class Hit:
    """An answer that was found.

    Attributes:
        id: Id of the answer.
        score: Cosine of the question with the phrase that matched best, in [-1, 1].
        text: The answer.
        matched: The phrase: the answer's own text or a chunk of it, or one of its past questions.
        chunk: Number of that chunk, from 0; None if it is none.
        start, stop: Where the chunk stands in the text: ``text[start:stop]``.
        percentile: Percent of random pairs of rows with a lower cosine; None for an index that is a file.
        out_of_domain: Whether the question is out of domain of the text that the encoder was fitted on, so that neither
            scores nor percentiles hold for it; None where the encoder's folder has no domain check.
    """

    id: str
    score: float
    text: str
    matched: str
    chunk: int | None = None
    start: int | None = None
    stop: int | None = None
    percentile: float | None = None
    out_of_domain: bool | None = None


def rank(storage: Storage, question: Float64, candidates: Sequence[int], k: int) -> list[Hit]:
    """The best k answers among some candidates, by score, then by id; ``question`` (dim,) has length one."""
    unit = unit_rows(storage.vectors(candidates))
    # Row by row, not as a matrix product, whose rounding depends on where a row stands.
    scores = (unit * question).sum(1)
    about = storage.phrases(candidates)
    best: dict[str, tuple[float, int]] = {}
    for number, score in zip(candidates, scores.tolist(), strict=True):
        name = about[number][0]
        best[name] = max(best.get(name, (-np.inf, 0)), (score, -number))
    hits = [Hit(name, score, *about[-number][1:]) for name, (score, number) in best.items()]
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))[:k]


def require_questions(questions: Sequence[str], k: int = 1) -> None:
    """Refuse questions without words, and to look for fewer than one answer.

    Raises:
        UsageError: For the first one.
    """
    if k < 1:
        raise UsageError(f"A search gives at least 1 answer, got k = {k}.")
    if empty := [row for row, question in enumerate(questions) if is_blank(question)]:
        raise UsageError(f"A question should have words, but question {empty[0]} is {questions[empty[0]]!r}.")
