"""How well an index ranks: questions whose right answers are known, raw against calibrated.

    hit@k   share of questions with a right answer among the first k
    MRR     mean of 1 / rank of the first right answer
    MAP     mean over questions of the precision at each of their right answers

Ties are counted against the index: among answers of equal score the wrong ones stand first. Raw and calibrated are
scored on the same questions, so their difference has a paired bootstrap interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError
from bertflow.evaluation.figures import Figure
from bertflow.evaluation.significance import bootstrap_p, generator, pair_weights
from bertflow.evaluation.tables import interval, number
from bertflow.retrieval.embedding import calibrate
from bertflow.retrieval.index import AnswerIndex
from bertflow.retrieval.ranking import Phrases
from bertflow.similarity import unit_rows
from bertflow.tables import Table
from bertflow.text_keys import text_key

Float64 = NDArray[np.float64]
RAW = "raw"


@dataclass(frozen=True)
class SearchScores:
    """Scores of one index.

    Attributes:
        systems: ``raw`` and, where there is one, the calibrator.
        figures: One a metric, for all systems; in [0, 1].
        answers: How many answers were ranked.
        seen: How many of the questions stand in the index themselves.
    """

    systems: tuple[str, ...]
    figures: tuple[Figure, ...]
    answers: int
    seen: int

    def table(self) -> Table:
        """The scores x 100."""
        header = ("system", *(figure.metric for figure in self.figures))
        rows = [
            (system, *(number(float(figure.values[at]), figure.metric) for figure in self.figures))
            for at, system in enumerate(self.systems)
        ]
        return Table(header, tuple(rows))

    def lines(self) -> list[str]:
        """What can be told apart, and what was ranked."""
        n = self.figures[0].n
        lines = [
            f"{difference['metric']}: {self.systems[1]} less {RAW} is {100 * difference['difference']:+.2f}, 95 % "
            f"interval {interval(difference['ci_low'], difference['ci_high'], '')}"
            for difference in self._differences()
        ]
        lines.append(f"{n} questions, {self.answers} answers; x 100; ties count against the index.")
        if self.seen:
            lines.append(f"{self.seen} of the questions stand in the index themselves, and find themselves there.")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; in [0, 1]."""
        rows = [
            {"system": system, "metric": figure.metric, "value": float(figure.values[at]), **_ends(figure, at)}
            for figure in self.figures
            for at, system in enumerate(self.systems)
        ]
        return {
            "questions": self.figures[0].n,
            "answers": self.answers,
            "questions_in_index": self.seen,
            "rows": rows,
            "differences": self._differences(),
        }

    def _differences(self) -> list[dict[str, Any]]:
        if len(self.systems) < 2:
            return []
        return [
            {
                "metric": figure.metric,
                "difference": float(figure.values[1] - figure.values[0]),
                **_ends(figure, 1, less=0),
                "p_bootstrap": bootstrap_p(figure.replicates[1] - figure.replicates[0])
                if figure.replicates.size
                else None,
            }
            for figure in self.figures
        ]


def score(
    index: AnswerIndex,
    labels: Mapping[str, frozenset[str]],
    k: int,
    resamples: int,
    seed: int,
    task: str,
    progress: bool = False,
) -> SearchScores:
    """Rank all answers for each question, raw and calibrated.

    Args:
        index: Opened with its encoder.
        labels: For each question the ids of its right answers.
        k: Of hit@k, beside hit@1.
        resamples: Bootstrap resamples of the questions; 0 for none.
        seed: Of the resamples.
        task: What the labels are called; resamples depend on it.
        progress: Show a bar on stderr.

    Raises:
        DataError: If a right answer is not in the index.
    """
    questions = list(labels)
    unknown = [(question, name) for question in questions for name in labels[question] if name not in index]
    if unknown:
        question, name = unknown[0]
        raise DataError(
            f"{len(unknown)} right answers are not in {index.path}, {name!r} for {question!r} the first. Add them, or "
            "leave these labels out."
        )
    x = index.encoder.raw.encode(questions, progress=progress)
    embedded = {RAW: (x, index.phrases(raw=True))}
    z = calibrate(index.encoder, x)
    if z is not None:
        embedded[index.identity.calibrator] = (z, index.phrases())
    ranks = [right_ranks(phrases, y, list(labels.values())) for y, phrases in embedded.values()]
    names = {"hit@1": 1, f"hit@{k}": k}
    metrics = {name: np.stack([[row[0] <= place for row in rows] for rows in ranks]) for name, place in names.items()}
    metrics["mrr"] = np.stack([[1 / row[0] for row in rows] for rows in ranks])
    metrics["map"] = np.stack([[average_precision(row) for row in rows] for rows in ranks])
    figures = [_figure(task, name, values.astype(np.float64), resamples, seed) for name, values in metrics.items()]
    return SearchScores(tuple(embedded), tuple(figures), len(index), _seen(index, questions))


def right_ranks(
    phrases: Phrases, questions: NDArray[np.floating], right: Sequence[frozenset[str]]
) -> list[NDArray[np.int64]]:
    """For each question (q, dim) the ranks of its right answers, rising, from 1; wrong answers of equal score first."""
    place = {name: at for at, name in enumerate(phrases.names)}
    found = []
    for block, _, best in phrases.scores(unit_rows(questions)):
        for row, names in zip(best, right[block], strict=True):
            mine = np.array([place[name] for name in names])
            wrong = np.sort(np.delete(row, mine))
            falling = np.sort(row[mine])[::-1]
            found.append(len(wrong) - np.searchsorted(wrong, falling) + np.arange(1, len(mine) + 1))
    return found


def average_precision(ranks: NDArray[np.int64]) -> float:
    """Mean precision at the ranks of the right answers, which rise."""
    return float((np.arange(1, len(ranks) + 1) / ranks).mean())


def _figure(task: str, metric: str, by_question: Float64, resamples: int, seed: int) -> Figure:
    """The mean of a number (systems, n) over the questions."""
    n = by_question.shape[1]
    everything = (np.arange(n, dtype=np.intp),)
    means = [rows @ by_question.T / n for rows in pair_weights(everything, resamples, generator(seed, task))]
    replicates = np.concatenate([np.empty((0, len(by_question))), *means]).T
    values = by_question.mean(1)
    return Figure(task, "test", "all", "", metric, n, values, replicates, influence=by_question - values[:, None])


def _ends(figure: Figure, system: int, less: int | None = None) -> dict[str, float | None]:
    found = figure.interval(system, less)
    return {"ci_low": found.low if found else None, "ci_high": found.high if found else None}


def _seen(index: AnswerIndex, questions: Sequence[str]) -> int:
    keys = {text_key(text) for answer in index.answers() for text in answer.phrases}
    return sum(text_key(question) in keys for question in questions)
