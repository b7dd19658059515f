"""Ask an index of known answers: the best answers for a question, and how often they are right."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from bertflow.data.corpus import load_answer_labels
from bertflow.errors import MOST_RESAMPLES, DataError, require_between, require_seed
from bertflow.files import require_files, to_json
from bertflow.registry import lookup
from bertflow.results import AbstractResult
from bertflow.retrieval import Index, IndexOptions, open_index, require_index
from bertflow.tables import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bertflow.retrieval.ranking import Hit

ENGINES: Mapping[str, str] = {
    "exact": "bertflow.retrieval.ranking.ExactSearch",
    "usearch": "bertflow.integrations.usearch.UsearchSearch",
}
"""What finds the candidates, by the name that command lines use: the class of a ``Search``."""
DIFFERENCE_KEYS = ("metric", "difference", "ci_low", "ci_high", "p_bootstrap")
"""What ``SearchScores`` says of a ``Difference``."""


@dataclass(frozen=True, repr=False)
class Hits(AbstractResult):
    """The answers that were found for a question, the best first."""

    hits: "Sequence[Hit]"

    def parts(self) -> Iterator[str]:
        """A line an answer, and the past question by which it was found; of a long text the chunk alone."""
        for place, hit in enumerate(self.hits, start=1):
            where = "" if hit.chunk is None else f"[chunk {hit.chunk}, {hit.start}:{hit.stop}]  "
            yield f"{place}. {hit.score:.3f}  {hit.id}  {where}{hit.text if hit.chunk is None else hit.matched}"
            if hit.chunk is None and hit.matched != hit.text:
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
        questions: Number of questions.
        answers: Number of answers that were ranked.
        questions_in_index: How many of the questions are in the index themselves.
        rows: System, metric, value and its 95 % interval, in [0, 1].
        differences: The calibrated system's value minus the raw one's, for each metric; none for a raw index.
    """

    questions: int
    answers: int
    questions_in_index: int
    rows: Sequence[Mapping[str, Any]]
    differences: Sequence[Mapping[str, Any]]

    def parts(self) -> Iterator[Table | str]:
        """The scores x 100, what can be told apart, and what was ranked."""
        from bertflow.evaluation.rows import interval, number

        cells: dict[str, list[str]] = {}
        for row in self.rows:
            cells.setdefault(row["system"], [row["system"]]).append(number(row["value"], row["metric"]))
        yield Table(("system", *dict.fromkeys(row["metric"] for row in self.rows)), tuple(map(tuple, cells.values())))
        for row in self.differences:
            value, ends = 100 * row["difference"], interval(row["ci_low"], row["ci_high"], "")
            raw, calibrated = cells
            yield f"{row['metric']}: {calibrated} less {raw} is {value:+.2f}, 95 % interval {ends}"
        yield f"{self.questions} questions, {self.answers} answers; x 100; ties count against the index."
        if self.questions_in_index:
            yield f"{self.questions_in_index} of the questions are in the index themselves, and find themselves there."


def search(index: Index, question: str, k: int = 5, *, engine: str = "exact", **options: Unpack[IndexOptions]) -> Hits:
    """Rank the answers for a question.

    Args:
        index: File that `search build` wrote.
        question: The question.
        k: How many answers.
        engine: exact, or usearch for very many phrases.
        options: ``IndexOptions``.

    Raises:
        UsageError: If ``k`` is below 1, or the question is empty.
        DataError: If the index cannot be used.
    """
    require_between(1, k=k)
    finder = resolve_name(lookup("engine", ENGINES, engine))
    with open_index(index, options, finder()) as opened:
        return Hits(opened.search(question, k))


def evaluate_search(
    index: Index,
    labels: "str | Path | Mapping[str, frozenset[str]]",
    *,
    k: int = 5,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool | None = None,
    **options: Unpack[IndexOptions],
) -> SearchScores:
    """Compute hit@k, MRR and MAP on questions whose answers are known.

    Args:
        index: File that `search build` wrote.
        labels: A table with question and id.
        k: For hit@k, beside hit@1.
        resamples: Bootstrap resamples of the questions; 0 for none.
        seed: Random seed for the bootstrap.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``IndexOptions``.

    Raises:
        DataError: If a right answer is not in the index, or the index cannot be used.
    """
    require_between(0, MOST_RESAMPLES, resamples=resamples)
    require_between(1, k=k)
    require_seed(seed)
    require_files(labels)
    require_index(index, options)
    import numpy as np

    from bertflow.evaluation.figures import mean_figure
    from bertflow.evaluation.significance import difference
    from bertflow.text_keys import text_key

    right = load_answer_labels(labels) if isinstance(labels, str | Path) else labels
    task, questions = Path(labels).stem if isinstance(labels, str | Path) else "labels", list(right)
    with open_index(index, options) as opened:
        unknown = [(question, name) for question in questions for name in right[question] if name not in opened]
        if unknown:
            question, name = unknown[0]
            raise DataError(
                f"{len(unknown)} right answers are not in {opened.path}, {name!r} for {question!r} the first. Add "
                "them, or leave these labels out."
            )
        encoder = opened.encoder
        x = encoder.raw.encode_query(questions, progress=progress)
        embedded = {"raw": (x, opened.phrases(raw=True))}
        if encoder.calibrator is not None:
            embedded[opened.identity.calibrator] = (encoder.calibrate(x), opened.phrases())
        keys = {text_key(text) for answer in opened.answers() for text in answer.phrases}
        answers = len(opened)
    ranks = [phrases.ranks(y, list(right.values())) for y, phrases in embedded.values()]
    first = np.array([[row[0] for row in rows] for rows in ranks], dtype=np.float64)
    precision = np.array([[average_precision(row) for row in rows] for rows in ranks])
    metrics = {"hit@1": first <= 1, f"hit@{k}": first <= k, "mrr": 1 / first, "map": precision}
    rows, differences = [], []
    for metric, values in metrics.items():
        figure = mean_figure(task, metric, values.astype(np.float64), resamples, seed)
        for at, system in enumerate(embedded):
            value, (low, high) = float(figure.values[at]), figure.interval(at)
            rows.append({"system": system, "metric": metric, "value": value, "ci_low": low, "ci_high": high})
        if len(embedded) > 1:
            row = vars(difference(tuple(embedded), figure, 1, 0))
            differences.append({name: row[name] for name in DIFFERENCE_KEYS})
    seen = sum(text_key(question) in keys for question in questions)
    return SearchScores(len(questions), answers, seen, rows, differences)


def average_precision(ranks: "NDArray[np.int64]") -> float:
    """Mean precision at the ranks of the right answers, which rise."""
    return sum(place / rank for place, rank in enumerate(ranks.tolist(), start=1)) / len(ranks)
