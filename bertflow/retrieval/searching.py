"""Ask an index of known answers: the best answers for a question, and how often they are right."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.errors import DataError, UsageError
from bertflow.files import to_json
from bertflow.registry import lookup
from bertflow.results import AbstractResult
from bertflow.retrieval.indexing import open_index
from bertflow.tables import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bertflow.evaluation.significance import Figure
    from bertflow.retrieval.index import AnswerIndex
    from bertflow.retrieval.ranking import Hit, Phrases, Search

RAW = "raw"


ENGINES: Mapping[str, tuple[str, str]] = {
    "exact": ("bertflow.retrieval.ranking", "ExactSearch"),
    "usearch": ("bertflow.integrations.usearch", "UsearchSearch"),
}
"""What finds the candidates, by the name that command lines use: module and class of a ``Search``."""


@dataclass(frozen=True, repr=False)
class Hits(AbstractResult):
    """The answers that were found for a question, the best first."""

    hits: "Sequence[Hit]"

    def parts(self) -> Iterator[str]:
        """A line an answer, and the past question by which it was found."""
        for place, hit in enumerate(self.hits, start=1):
            yield f"{place}. {hit.score:.3f}  {hit.id}  {hit.text}"
            if hit.matched != hit.text:
                yield f"          asked before: {hit.matched}"
        if not self.hits:
            yield "The index is empty."

    def to_json(self) -> str:
        """A list of the answers."""
        return to_json(self.as_dict()["hits"])


@dataclass(frozen=True, repr=False)
class SearchScores(AbstractResult):
    """How well an index ranks, raw against calibrated, on questions whose right answers are known.

        hit@k   share of questions with a right answer among the first k
        MRR     mean of 1 / rank of the first right answer
        MAP     mean over questions of the precision at each of their right answers

    Ties are counted against the index: among answers of equal score the wrong ones come first. Raw and calibrated are
    scored on the same questions, so their difference has a paired bootstrap interval.

    Attributes:
        systems: ``raw`` and, if there is one, the calibrator.
        figures: One a metric, for all systems; in [0, 1].
        answers: How many answers were ranked.
        seen: How many of the questions are in the index themselves.
    """

    systems: tuple[str, ...]
    figures: "tuple[Figure, ...]"
    answers: int
    seen: int

    def parts(self) -> Iterator[Table | str]:
        """The scores x 100, what can be told apart, and what was ranked."""
        from bertflow.evaluation.tables import interval, number

        header = ("system", *(figure.metric for figure in self.figures))
        yield Table(
            header,
            tuple(
                (system, *(number(float(figure.values[at]), figure.metric) for figure in self.figures))
                for at, system in enumerate(self.systems)
            ),
        )
        for row in self.differences():
            ends = interval(row["ci_low"], row["ci_high"], "")
            difference = 100 * row["difference"]
            yield f"{row['metric']}: {self.systems[1]} less {RAW} is {difference:+.2f}, 95 % interval {ends}"
        yield f"{self.figures[0].n} questions, {self.answers} answers; x 100; ties count against the index."
        if self.seen:
            yield f"{self.seen} of the questions are in the index themselves, and find themselves there."

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; in [0, 1]."""
        rows = [
            {"system": system, "metric": figure.metric, "value": float(figure.values[at]), **_ends(figure, at)}
            for figure in self.figures
            for at, system in enumerate(self.systems)
        ]
        counts = {"questions": self.figures[0].n, "answers": self.answers, "questions_in_index": self.seen}
        return {**counts, "rows": rows, "differences": self.differences()}

    def differences(self) -> list[dict[str, Any]]:
        """The calibrated system's value minus the raw one's, for each metric; none for a raw index."""
        from bertflow.evaluation.significance import bootstrap_p

        rows: list[dict[str, Any]] = []
        for figure in self.figures if len(self.systems) > 1 else ():
            drawn = figure.replicates[1] - figure.replicates[0]
            value, p = float(figure.values[1] - figure.values[0]), bootstrap_p(drawn) if drawn.size else None
            rows.append({"metric": figure.metric, "difference": value, **_ends(figure, 1, less=0), "p_bootstrap": p})
        return rows


def _ends(figure: "Figure", system: int, less: int | None = None) -> dict[str, float | None]:
    found = figure.interval(system, less)
    return {"ci_low": found.low if found else None, "ci_high": found.high if found else None}


def search(
    index: "str | Path | AnswerIndex",
    question: str,
    k: int = 5,
    *,
    model: str | Path | None = None,
    device: str = "auto",
    engine: str = "exact",
) -> Hits:
    """Rank the answers for a question.

    Args:
        index: File that `search build` wrote.
        question: The question.
        k: How many answers.
        model: Where the encoder of the index is now (default: where it was).
        device: cpu, cuda, ... or auto.
        engine: exact, or usearch for very many phrases.

    Raises:
        UsageError: If ``k`` is below 1, or the question is empty.
        DataError: If the index cannot be used.
    """
    module, kind = lookup("engine", ENGINES, engine)
    finder: Search = getattr(import_module(module), kind)()
    with open_index(index, model, device, finder) as opened:
        return Hits(opened.search(question, k))


def evaluate_search(
    index: "str | Path | AnswerIndex",
    labels: "str | Path | Mapping[str, frozenset[str]]",
    *,
    k: int = 5,
    resamples: int = 1000,
    seed: int = 0,
    model: str | Path | None = None,
    device: str = "auto",
    progress: bool | None = None,
) -> SearchScores:
    """Compute hit@k, MRR and MAP on questions whose answers are known.

    Args:
        index: File that `search build` wrote.
        labels: A table with question and id.
        k: For hit@k, beside hit@1.
        resamples: Bootstrap resamples of the questions; 0 for none.
        seed: Random seed for the bootstrap.
        model: Where the encoder of the index is now (default: where it was).
        device: cpu, cuda, ... or auto.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        DataError: If a right answer is not in the index, or the index cannot be used.
    """
    if resamples < 0 or k < 1:
        raise UsageError(f"--resamples should be 0 or more and -k 1 or more, got {resamples} and {k}.")
    import numpy as np

    from bertflow.data.answers import load_answer_labels
    from bertflow.evaluation.tasks import mean_figure
    from bertflow.text_keys import text_key

    right = load_answer_labels(labels) if isinstance(labels, str | Path) else labels
    task, questions = Path(labels).stem if isinstance(labels, str | Path) else "labels", list(right)
    with open_index(index, model, device) as opened:
        unknown = [(question, name) for question in questions for name in right[question] if name not in opened]
        if unknown:
            question, name = unknown[0]
            raise DataError(
                f"{len(unknown)} right answers are not in {opened.path}, {name!r} for {question!r} the first. Add "
                "them, or leave these labels out."
            )
        encoder = opened.encoder
        x = encoder.raw.encode_query(questions, progress=progress)
        embedded = {RAW: (x, opened.phrases(raw=True))}
        if encoder.calibrator is not None:
            embedded[opened.identity.calibrator] = (encoder.calibrate(x), opened.phrases())
        keys = {text_key(text) for answer in opened.answers() for text in answer.phrases}
        answers = len(opened)
    ranks = [answer_ranks(phrases, y, list(right.values())) for y, phrases in embedded.values()]
    first = np.array([[row[0] for row in rows] for rows in ranks], dtype=np.float64)
    precision = np.array([[average_precision(row) for row in rows] for rows in ranks])
    metrics = {"hit@1": first <= 1, f"hit@{k}": first <= k, "mrr": 1 / first, "map": precision}
    figures = [mean_figure(task, name, one.astype(np.float64), resamples, seed) for name, one in metrics.items()]
    seen = sum(text_key(question) in keys for question in questions)
    return SearchScores(tuple(embedded), tuple(figures), answers, seen)


def answer_ranks(
    phrases: "Phrases", questions: "NDArray[np.floating]", right: Sequence[frozenset[str]]
) -> "list[NDArray[np.int64]]":
    """For each question (q, dim) the ranks of its right answers, rising, from 1; wrong answers of equal score first."""
    import numpy as np

    from bertflow.similarity import unit_rows

    place = {name: at for at, name in enumerate(phrases.names)}
    found = []
    for block, _, best in phrases.scores(unit_rows(questions)):
        for row, names in zip(best, right[block], strict=True):
            mine = np.array([place[name] for name in names])
            wrong = np.sort(np.delete(row, mine))
            falling = np.sort(row[mine])[::-1]
            found.append(len(wrong) - np.searchsorted(wrong, falling) + np.arange(1, len(mine) + 1))
    return found


def average_precision(ranks: "NDArray[np.int64]") -> float:
    """Mean precision at the ranks of the right answers, which rise."""
    return sum(place / rank for place, rank in enumerate(ranks.tolist(), start=1)) / len(ranks)
