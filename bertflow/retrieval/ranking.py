"""The best answers in an index for a question, exactly.

An answer has several phrases; its score is the largest cosine of the question with one of them. Scores are computed in
float32, a block of questions at a time, and the k-th largest is found without sorting. Phrases within the rounding
error of float32 of it are candidates; they are scored again in float64, where equal embeddings have equal scores, and
sorted by score, then by id. The rows of a collection are read a part at a time (``Scan``).

    float32 (q, n) --> best phrase of each answer (q, answers) --> candidates --> float64, sorted
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from bertflow.array_types import Float64, Floats, Int64, Intp
from bertflow.data.corpus import chunks
from bertflow.data.lines import is_blank
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError, how_many, require_between, shown
from bertflow.retrieval.collections import AbstractCollection, AbstractOpened
from bertflow.retrieval.storage import ROWS, Storage
from bertflow.scoring.random_pairs import FEWEST
from bertflow.similarity import COSINE, TIE, unit_rows

CELLS = 2**25
"""Scores computed at a time: 128 MB."""
ROUNDING = 4 * float(np.finfo(np.float32).eps)
"""A cosine of d coordinates in float32 has an error of less than d times this."""
TOGETHER, GROUPS, PAIRS = 16, 128, 50_000
"""Numbers for random pairs: rows that are read at one place, places, and pairs. No pair is of rows at one place, which
may be of one document."""

Right: TypeAlias = Mapping[str, frozenset[str]]
"""Questions, each with the ids of its right answers."""


@dataclass(frozen=True)
class Phrases:
    """Phrases that are in memory: all of an index, the answers in order of their ids; or rows of a collection.

    Attributes:
        names: The ids of the answers.
        starts: Where the phrases of each answer start; (answers,).
        unit: The embeddings, of length one; (n, dim).
        numbers: The number of each phrase of an index; (n,).
    """

    names: Sequence[str]
    starts: Intp
    unit: Floats
    numbers: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    def __iter__(self) -> Iterator["Phrases"]:
        yield self

    @classmethod
    def read(cls, storage: Storage, raw: bool = False, dtype: type[np.floating] = np.float32) -> "Phrases":
        """Read all of them into memory.

        Args:
            storage: The index.
            raw: Whether to read the embeddings without the calibrator.
            dtype: Data type of ``unit``.
        """
        rows = list(storage.owners())
        numbers = np.array([number for number, _ in rows], np.int64)
        names, starts = np.unique(np.array([name for _, name in rows], object), return_index=True)
        unit = np.empty((0, 0), dtype)
        for part in chunks(np.argsort(numbers).tolist(), ROWS):  # as they lie in the file
            block = unit_rows(storage.vectors(numbers[part].tolist(), raw))
            if not len(unit):
                unit = np.empty((len(numbers), block.shape[1]), dtype)
            unit[part] = block
        return cls(tuple(names), starts, unit, numbers)


def scores(phrases: Phrases, questions: Floats) -> Iterator[tuple[int, Floats, Floats]]:
    """The first of some questions (q, dim), their cosines with all phrases (q, n), and the best of each answer."""
    unit = phrases.unit
    if unit.shape[1] != questions.shape[1]:
        raise DataError(
            f"The index should hold embeddings of width {questions.shape[1]}, but they have {unit.shape[1]}. "
            "It is damaged: build it again."
        )
    size = max(1, CELLS // max(1, len(unit)))
    for start in range(0, len(questions), size):
        cosines = questions[start : start + size].astype(unit.dtype) @ unit.T
        yield start, cosines, np.maximum.reduceat(cosines, phrases.starts, axis=1)


@dataclass(frozen=True)
class Scan:
    """The rows of a collection, read a part at a time; each is an answer, and those without a vector are left out."""

    collection: AbstractCollection
    rows: int = ROWS

    def __iter__(self) -> Iterator[Phrases]:
        for part in self.collection.parts(self.rows):
            read = self.collection.read(part)
            if kept := [at for at in range(len(read)) if at not in read.bad]:
                names = [str(read.ids[at]) for at in kept]
                yield Phrases(names, np.arange(len(kept)), unit_rows(read.vectors[kept]))

    def random_cosines(self) -> Float64:
        """Cosines of random pairs of rows, rising; none where there are too few rows.

        Source: Places are drawn with the same chance, so every row is.
        """
        rng = np.random.default_rng(0)
        parts = self.collection.parts(TOGETHER)
        chosen = sorted(rng.permutation(len(parts))[:GROUPS].tolist())
        read = [self.collection.read(parts[at]) for at in chosen]
        kept = [np.delete(rows.vectors, list(rows.bad), axis=0) for rows in read]
        group = np.repeat(np.arange(len(kept)), [len(x) for x in kept])
        if len(group) < FEWEST:
            return np.empty(0)
        x = unit_rows(np.concatenate(kept))
        first, second = rng.integers(0, len(x), (2, PAIRS))
        apart = group[first] != group[second]
        return np.sort(COSINE.paired(x[first[apart]], x[second[apart]]))


def ranks_of(source: Iterable[Phrases], questions: Floats, right: Right, where: object) -> list[Int64]:
    """Ranks of the right answers of each question (q, dim), rising, from 1; of equal scores wrong ones first.

    All embeddings are read twice: for the scores of the right answers, and for how many others are above them.

    Args:
        source: What is ranked: some phrases at a time.
        questions: The embeddings of the questions.
        right: The ids of the right answers of each question.
        where: What the source is called, for messages.

    Raises:
        DataError: If a right answer is not there.
    """
    unit, names = unit_rows(questions), list(right.values())
    lacking, own = [set(each) for each in names], [np.empty(0) for _ in names]
    above = [np.zeros(len(each), np.int64) for each in names]
    for count in (False, True):
        for some in source:
            at = {name: place for place, name in enumerate(some.names)}
            for start, _, best in scores(some, unit):
                for question, row in enumerate(best, start):
                    mine = [at[name] for name in names[question] if name in at]
                    if count:
                        row[mine] = -np.inf
                        above[question] += (row >= own[question][:, None] - TIE).sum(1)
                    else:
                        own[question] = np.concatenate([own[question], row[mine]])
                        lacking[question] -= at.keys()
        own = [np.sort(one)[::-1] for one in own]
        if unknown := [(question, min(left)) for question, left in zip(right, lacking, strict=True) if left]:
            asked, name = unknown[0]
            raise DataError(
                f"{where} lacks {how_many(sum(map(len, lacking)), 'right answers')}: {name!r} for {asked!r} is the "
                "first. Add what is missing, leave these labels out, or build the index with the column of ids "
                "(--columns)."
            )
    return [wrong + np.arange(1, len(wrong) + 1) for wrong in above]


class Search(Protocol):
    """Finds the phrases that the best answers may have; a row of ``indexing.ENGINES``."""

    def refresh(self, storage: Storage) -> None:
        """Read what is stored now."""

    def candidates(self, questions: Float64, k: int) -> list[Sequence[int]]:
        """Numbers of phrases for each question (q, dim) of length one; those of the best k answers are among them."""


class ExactSearch:
    """All cosines, in memory: exact, and fast enough for tens of thousands of phrases."""

    _phrases: Phrases

    def refresh(self, storage: Storage) -> None:
        """Read all embeddings again."""
        self._phrases = Phrases.read(storage)

    def candidates(self, questions: Float64, k: int) -> list[Sequence[int]]:
        """The phrases that come within rounding of the k-th best answer."""
        phrases, found = self._phrases, list[Sequence[int]]()
        for _, cosines, best in scores(phrases, questions):
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
    require_between(1, k=k)
    if other := [question for question in questions if not isinstance(question, str)]:
        raise UsageError(f"A question should be text, got {shown(other[0])}. Search once for each question.")
    if empty := [row for row, question in enumerate(questions) if is_blank(question)]:
        raise UsageError(f"A question should have words, but question {empty[0]} is {questions[empty[0]]!r}.")


class AbstractIndex(AbstractOpened):
    """What is asked in words: answers in a file, or the rows of a collection.

    Attributes:
        encoder: Embeds questions and answers; raw or calibrated.
    """

    encoder: SentenceEncoder

    @abstractmethod
    def _ranked(self, questions: Float64, k: int) -> list[list[Hit]]:
        """The best ``k`` answers for the embeddings (q, dim) of some questions, which have length one."""

    def search(self, question: str, k: int = 5) -> list[Hit]:
        """The best answers for a question, the best first; fewer than ``k`` where there are fewer.

        Raises:
            UsageError: If ``k`` is below 1, or the question is empty.
        """
        return self.search_many([question], k)[0]

    def search_many(self, questions: Sequence[str], k: int = 5, progress: bool | None = None) -> list[list[Hit]]:
        """The best answers for each of several questions.

        Raises:
            UsageError: If ``k`` is below 1, or a question is empty.
        """
        require_questions(questions, k)
        return self._ranked(unit_rows(self.encoder.encode_query(questions, progress=progress)), k)
