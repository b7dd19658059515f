"""Ask an index of known answers: the best answers for a question, and how often they are right."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.calibrated import RECORD
from bertflow.data.corpus import load_answer_labels
from bertflow.data.pairs import Pairs, load_pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
from bertflow.evaluation.candidate_lists import average_precision, candidate_figures, lists_of
from bertflow.evaluation.figures import mean_figure
from bertflow.evaluation.rows import interval, number
from bertflow.evaluation.significance import Figure, difference
from bertflow.evaluation.systems import encode_sets
from bertflow.files import to_json
from bertflow.results import AbstractResult
from bertflow.retrieval import IndexOptions, Place
from bertflow.retrieval.places import open_index
from bertflow.retrieval.ranking import Hit
from bertflow.scoring.domain import DomainCheck
from bertflow.tables import Table

DIFFERENCE_KEYS = ("metric", "difference", "ci_low", "ci_high", "p_bootstrap")
"""What ``SearchScores`` says of a ``Difference``."""


@dataclass(frozen=True, repr=False)
class Hits(AbstractResult):
    """The answers that were found for a question, the best first."""

    hits: Sequence[Hit]

    def parts(self) -> Iterator[str]:
        """A line an answer, and the past question by which it was found; of a long text the chunk alone.

        In a collection the score is followed by the percent of random pairs of its rows that are less alike.
        """
        for place, hit in enumerate(self.hits, start=1):
            where = "" if hit.chunk is None else f"[chunk {hit.chunk}, {hit.start}:{hit.stop}]  "
            percent = "" if hit.percentile is None else f"  {hit.percentile:.2f} %"
            text = hit.text if hit.chunk is None else hit.matched
            yield f"{place}. {hit.score:.3f}{percent}  {hit.id}  {where}{text}"
            if hit.chunk is None and hit.matched != hit.text:
                yield f"          asked before: {hit.matched}"
        if any(hit.out_of_domain for hit in self.hits):
            yield (
                "The question is out of domain of the text that the encoder was fitted on: scores and percentiles do "
                "not hold for it. Fit it on text of this kind, too."
            )
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


def ask(index: Place, question: str, k: int, engine: str | None, text: str | None, options: IndexOptions) -> Hits:
    """The best answers for a question."""
    with open_index(index, options, engine, text) as opened:
        hits, outside = opened.search(question, k), _is_outside(opened.encoder.raw, question)
    return Hits([replace(hit, out_of_domain=outside) for hit in hits])


def rank_answers(
    index: Place,
    labels: str | Path | Mapping[str, frozenset[str]],
    k: int,
    resamples: int,
    seed: int,
    text: str | None,
    progress: bool | None,
    options: IndexOptions,
) -> SearchScores:
    """How all answers of an index are ranked for questions."""
    right = load_answer_labels(labels) if isinstance(labels, str | Path) else labels
    task, questions = Path(labels).stem if isinstance(labels, str | Path) else "labels", list(right)
    with open_index(index, options, text=text) as opened:
        encoder, rows = opened.encoder, {"raw": opened.phrases(raw=True)}
        if encoder.calibrator is not None:
            rows[opened.identity.calibrator] = opened.phrases()
        known = {name: found for name, found in rows.items() if found is not None}
        missing = {*next(iter(known.values())).missing([name for names in right.values() for name in names])}
        unknown = [(question, name) for question in questions for name in right[question] if name in missing]
        if unknown:
            question, name = unknown[0]
            raise DataError(
                f"{len(unknown)} right answers are not in {opened.path}, {name!r} for {question!r} the first. Add "
                "them, or leave these labels out."
            )
        answers, seen = len(opened), opened.held(questions)
        x = encoder.raw.encode_query(questions, progress=progress)
        ranks = {
            name: found.ranks(x if name == "raw" else encoder.calibrate(x), list(right.values()))
            for name, found in known.items()
        }
    first = np.array([[row[0] for row in rows] for rows in ranks.values()], dtype=np.float64)
    precision = np.array([[average_precision(row) for row in rows] for rows in ranks.values()])
    metrics = {"hit@1": first <= 1, f"hit@{k}": first <= k, "mrr": 1 / first, "map": precision}
    figures = [mean_figure(task, name, values.astype(np.float64), resamples, seed) for name, values in metrics.items()]
    return _scores(figures, list(ranks), answers, seen)


def _is_outside(raw: SentenceEncoder, question: str) -> bool | None:
    """Whether a question is out of domain; None where the folder that the encoder is from has no domain check."""
    if not (recipe := getattr(raw, "recipe", None)):
        return None
    home = Path(recipe["model"])
    check = DomainCheck.find(home.parent if (home.parent / RECORD).exists() else home, raw)
    return None if check is None else bool(check.is_outside(raw.encode_query([question]))[0])


def rank_lists(
    index: Place,
    given: Pairs | str | Path,
    resamples: int,
    seed: int,
    text: str | None,
    progress: bool | None,
    options: IndexOptions,
) -> SearchScores:
    """MAP and MRR of each question's own candidates, by the encoder of the index."""
    pairs = load_pairs(given, "candidates") if isinstance(given, str | Path) else given
    with open_index(index, options, text=text) as opened:
        encoder, name = opened.encoder, opened.identity.calibrator
    systems = {"raw": encoder.raw, **({name: encoder} if encoder.calibrator is not None else {})}
    (sides,) = encode_sets(systems, [pairs], progress=progress)
    figures = candidate_figures(pairs, sides, "cosine", resamples, seed)
    return _scores(figures, list(systems), sum(map(len, lists_of(pairs))), 0)


def _scores(figures: Sequence[Figure], systems: Sequence[str], answers: int, seen: int) -> SearchScores:
    rows, differences = [], []
    for figure in figures:
        for at, system in enumerate(systems):
            value, (low, high) = float(figure.values[at]), figure.interval(at)
            rows.append({"system": system, "metric": figure.metric, "value": value, "ci_low": low, "ci_high": high})
        if len(systems) > 1:
            row = vars(difference(tuple(systems), figure, 1, 0))
            differences.append({name: row[name] for name in DIFFERENCE_KEYS})
    return SearchScores(figures[0].n, answers, seen, rows, differences)
