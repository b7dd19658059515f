"""The best answers for a question, exactly.

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

from bertflow.retrieval.storage import Storage
from bertflow.similarity import unit_rows

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
CELLS = 2**25
"""Scores computed at a time: 128 MB."""
ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""A cosine of d coordinates in float32 has an error of less than d times this."""


@dataclass(frozen=True)
class Phrases:
    """All phrases of an index, the answers in order of their ids.

    Attributes:
        numbers: The number of each phrase; (n,).
        starts: Where the phrases of each answer start; (answers,).
        names: The ids of the answers, rising.
        unit: The embeddings, of length one; (n, dim).
    """

    numbers: Int64
    starts: Int64
    names: tuple[str, ...]
    unit: NDArray[np.floating]

    @classmethod
    def read(cls, storage: Storage, raw: bool = False, dtype: type[np.floating] = np.float32) -> "Phrases":
        """Read all of them into memory.

        Args:
            storage: The index.
            raw: Whether to read the embeddings without the calibrator.
            dtype: Data type of ``unit``.
        """
        rows, names = storage.owners()
        if not len(rows):
            return cls(np.empty(0, np.int64), np.empty(0, np.int64), (), np.empty((0, 0), dtype))
        numbers, owners = rows.T
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        unit = unit_rows(storage.vectors(numbers.tolist(), raw)).astype(dtype)
        return cls(numbers, starts, tuple(names), unit)

    def scores(
        self, questions: NDArray[np.floating]
    ) -> Iterator[tuple[slice, NDArray[np.floating], NDArray[np.floating]]]:
        """Which questions (q, dim), their cosines with all phrases (q, n), and the best of each answer (q, answers)."""
        size = max(1, CELLS // max(1, len(self.numbers)))
        for start in range(0, len(questions), size):
            block = slice(start, min(start + size, len(questions)))
            cosines = questions[block].astype(self.unit.dtype) @ self.unit.T
            yield block, cosines, np.maximum.reduceat(cosines, self.starts, axis=1)


class Search(Protocol):
    """Finds the phrases that the best answers may have; the rows of ``searching.ENGINES`` are such."""

    def refresh(self, storage: Storage) -> None:
        """Read what is stored now."""
        ...

    def candidates(self, questions: Float64, k: int) -> list[Sequence[int]]:
        """For each question (q, dim) of length one the numbers of phrases, among them those of the best k answers."""
        ...


class ExactSearch:
    """All cosines, in memory: exact, and fast enough for tens of thousands of phrases."""

    def __init__(self) -> None:
        self._phrases: Phrases | None = None

    def refresh(self, storage: Storage) -> None:
        """Read all embeddings again."""
        self._phrases = Phrases.read(storage)

    def candidates(self, questions: Float64, k: int) -> list[Sequence[int]]:
        """The phrases that come within rounding of the k-th best answer."""
        phrases = self._phrases
        assert phrases is not None, "refreshed before the first question"
        found: list[Sequence[int]] = []
        for _, cosines, best in phrases.scores(questions):
            margin = phrases.unit.shape[1] * ROUNDING
            thresholds = np.partition(best, -min(k, best.shape[1]), axis=1)[:, -min(k, best.shape[1])] - margin
            found += [phrases.numbers[row >= least].tolist() for row, least in zip(cosines, thresholds, strict=True)]
        return found


@dataclass(frozen=True)
class Hit:
    """An answer that was found.

    Attributes:
        id: Id of the answer.
        score: Cosine of the question with the phrase that matched best, in [-1, 1].
        text: The answer.
        matched: The phrase: the answer's own text, or one of its past questions.
    """

    id: str
    score: float
    text: str
    matched: str


def rank(storage: Storage, question: Float64, candidates: Sequence[int], k: int) -> list[Hit]:
    """The best k answers among some candidates, by score, then by id; ``question`` (dim,) has length one."""
    if not candidates:
        return []
    unit = unit_rows(storage.vectors(candidates))
    # Row by row, not as a matrix product, whose rounding depends on where a row stands.
    scores = (unit * question).sum(1)
    about = storage.phrases(candidates)
    best: dict[str, tuple[float, int]] = {}
    for number, score in zip(candidates, scores.tolist(), strict=True):
        name = about[number][0]
        best[name] = max(best.get(name, (-np.inf, 0)), (score, -number))
    chosen = sorted(best, key=lambda name: (-best[name][0], name))[:k]
    texts = storage.texts(chosen)
    return [Hit(name, best[name][0], texts[name], about[-best[name][1]][1]) for name in chosen]
