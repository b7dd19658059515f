"""Ask an index of known answers: the best answers for a question, and how often they are right."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bertflow.array_types import Floats
from bertflow.calibrated import RECORD
from bertflow.calibration.spelling import RAW
from bertflow.data.corpus import load_answer_labels
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.pairs import Pairs, load_pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import how_many
from bertflow.evaluation.bm25 import BM25, bm25_ranks
from bertflow.evaluation.names import name_of
from bertflow.evaluation.sides import encode_sets
from bertflow.evaluation.significance import Figure, difference
from bertflow.evaluation.systems import SharedPass
from bertflow.evaluation.ungraded import average_precision, candidate_figures, lists_of, mean_figure
from bertflow.files import to_json, write_text
from bertflow.results import AbstractResult
from bertflow.retrieval.collection_index import CollectionIndex
from bertflow.retrieval.index import AnswerIndex
from bertflow.retrieval.ranking import Hit, Right, ranks_of
from bertflow.scoring.domain import UNCHECKED, DomainCheck
from bertflow.tables import Table, interval, number, shortened, write_rows

Opener: TypeAlias = Callable[[], AbstractContextManager[AnswerIndex | CollectionIndex]]
"""What ``bertflow.retrieval.indexing.opener`` gives."""
AS_IT_IS = "index as it is"
"""Name of an index whose queries are not moved, beside the encoder that moves them."""
LONG = 160
"""Characters of a text that a terminal shows."""
DIFFERENCE_KEYS = ("metric", "difference", "ci_low", "ci_high", "p_bootstrap")
"""What ``SearchScores`` says of a ``Difference``."""


@dataclass(frozen=True, repr=False)
class Hits(AbstractResult):
    """The answers that were found for a question, the best first."""

    hits: Sequence[Hit]
    unchecked: bool = False
    """Whether it is not known if the question is in domain of the text that the encoder was fitted on."""

    def __iter__(self) -> Iterator[Hit]:
        """The answers."""
        return iter(self.hits)

    def __len__(self) -> int:
        """Number of answers."""
        return len(self.hits)

    def parts(self, most: int | None = None) -> Iterator[str]:
        """A line an answer, and the past question by which it was found; of a long text the chunk alone.

        In a collection the score is followed by the percent of random pairs of its rows that are less alike.

        Args:
            most: Characters of a text that are shown (default: all).
        """
        texts = [" ".join((hit.text if hit.chunk is None else hit.matched).split()) for hit in self.hits]
        for place, (hit, text) in enumerate(zip(self.hits, texts, strict=True), start=1):
            where = "" if hit.chunk is None else f"[chunk {hit.chunk}, {hit.start}:{hit.stop}]  "
            percent = "" if hit.percentile is None else f"  {hit.percentile:.2f} %"
            yield f"{place}. {hit.score:.3f}{percent}  {hit.id}  {where}{shortened(text, most or len(text))}"
            if hit.chunk is None and hit.matched != hit.text:
                yield f"          found by: {hit.matched}"
        if most and any(len(text) > most for text in texts):
            yield "Long texts are cut; --details shows them whole."
        if any(hit.out_of_domain for hit in self.hits):
            yield (
                "The question is out of domain: it is unlike the text that the encoder was fitted on, so its scores "
                "are not reliable. `bertflow fix` helps, on text that holds such questions as well."
            )
        if not self.hits:
            yield "The index is empty."
        elif self.unchecked:
            yield UNCHECKED

    def answer(self) -> Iterator[str]:
        """All of it, with long texts cut, so that it is seen at once."""
        return self.parts(LONG)

    def to_json(self) -> str:
        """A list of the answers."""
        return to_json(self.as_dict()["hits"])


@dataclass(frozen=True, repr=False)
class SearchScores(AbstractResult):
    """How well an index ranks, raw against calibrated, on questions whose right answers are known.

        hit@k   share of questions with a right answer among the first k
        MRR     mean of 1 / rank of the first right answer
        MAP     mean over questions of the precision at each of their right answers

    For a file of an index, words in common are ranked, too (BM25), without an encoder.

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
        """What was ranked, the scores x 100, and the differences."""
        counted = f"{how_many(self.questions, 'questions')}, {how_many(self.answers, 'answers')}"
        same = self.differences and self.rows[0]["system"] == RAW
        without = " raw: the same pooling without the map." if same else ""
        yield f"{counted}; x 100; ties count against the index.{without}"
        cells: dict[str, list[str]] = {}
        for row in self.rows:
            cells.setdefault(row["system"], [row["system"]]).append(number(row["value"], row["metric"]))
            if not self.differences and row["ci_low"] is not None:
                ends = interval(row["ci_low"], row["ci_high"])
                cells.setdefault(f"{row['system']}, interval", ["  95 % interval"]).append(ends)
        yield Table(("system", *dict.fromkeys(row["metric"] for row in self.rows)), tuple(map(tuple, cells.values())))
        for row in self.differences:
            value, ends = 100 * row["difference"], interval(row["ci_low"], row["ci_high"], "")
            raw, calibrated, *_ = cells
            yield f"{row['metric']}: {calibrated} minus {raw} = {value:+.2f}, 95 % interval {ends}"
        if self.questions_in_index:
            yield f"{self.questions_in_index:,} of the questions are in the index, and find themselves."


@dataclass(frozen=True, repr=False)
class SearchExample(AbstractResult):
    """Files to try a search on.

    Attributes:
        folder: Where they were written.
        answers: Number of answers, and of questions.
        sentences: Number of other sentences.
        source: Where they are from.
    """

    folder: Path
    answers: int
    sentences: int
    source: str

    def parts(self) -> Iterator[str]:
        """A line a file."""
        yield f"{self.folder / 'answers.jsonl'}: {self.answers} answers, paragraphs of the {self.source}"
        yield f"{self.folder / 'labels.jsonl'}: {self.answers} questions, the line before each paragraph"
        yield f"{self.folder / 'text.txt'}: {self.sentences} other sentences, to fit a calibrator on"


def write_example(folder: Path, answers: int, sentences: int, seed: int) -> SearchExample:
    """Write answers, labels and text from docstrings."""
    text, pairs = docstring_corpus(answers, sentences, seed)
    names = [f"docstrings-{row:05d}" for row in range(len(pairs))]
    write_rows(folder / "answers.jsonl", ("id", "text"), zip(names, pairs.second, strict=True))
    write_rows(folder / "labels.jsonl", ("question", "id"), zip(pairs.first, names, strict=True))
    write_text(folder / "text.txt", "".join(f"{sentence}\n" for sentence in text))
    return SearchExample(folder, len(pairs), len(text), pairs.source)


def ask(opener: Opener, question: str, k: int) -> Hits:
    """The best answers for a question."""
    with opener() as opened:
        encoder, hits = opened.encoder, opened.search(question, k)
        outside = _is_outside(encoder.raw, question)
    unchecked = outside is None and encoder.calibrator is not None
    return Hits([replace(hit, out_of_domain=outside) for hit in hits], unchecked)


def rank_answers(
    opener: Opener, labels: str | Path | Right, k: int, resamples: int, seed: int, progress: bool | None
) -> SearchScores:
    """How all answers of an index are ranked for questions."""
    right = load_answer_labels(labels) if isinstance(labels, str | Path) else labels
    task, questions = Path(labels).stem if isinstance(labels, str | Path) else "labels", list(right)
    with opener() as opened:
        encoder, answers, seen = opened.encoder, len(opened), opened.held(questions)
        x = encoder.raw.encode_query(questions, progress=progress)
        compared = _compared(opened, x)
        found = {name: ranks_of(one, z, right, opened.path) for name, (one, z) in compared.items() if one is not None}
        if isinstance(opened, AnswerIndex):
            found[BM25] = bm25_ranks(opened.answers(), right)
    first = np.array([[row[0] for row in rows] for rows in found.values()], dtype=np.float64)
    precision = np.array([[average_precision(row) for row in rows] for rows in found.values()])
    metrics = {"hit@1": first <= 1, f"hit@{k}": first <= k, "mrr": 1 / first, "map": precision}
    figures = [mean_figure(task, name, values.astype(np.float64), resamples, seed) for name, values in metrics.items()]
    return _scores(figures, list(found), answers, seen)


def _compared(opened: AnswerIndex | CollectionIndex, x: Floats) -> dict[str, tuple[Any, Floats]]:
    """Phrases and queries of each system, of raw queries (q, dim): without and with its calibrator, or as moved."""
    encoder, phrases = opened.encoder, opened.phrases()
    if encoder.calibrator is None:
        return {_plain(encoder): (phrases, x)}
    asked = phrases, encoder.calibrate(x, "query")
    if encoder.role == "query":  # adapted to the index, which stays as it is
        return {AS_IT_IS: (phrases, encoder.calibrate(x)), name_of((encoder.recipe or {}).get("model", encoder)): asked}
    return {RAW: (opened.phrases(raw=True), x), encoder.calibrator.spelled: asked}


def _plain(encoder: SentenceEncoder) -> str:
    """What tables call it without a calibrator: raw; or by its folder, if bertflow wrote that without one."""
    own = SharedPass(encoder)
    return name_of(own.recipe["model"]) if own.saved and own.recipe and not encoder.calibrator else RAW


def _is_outside(raw: SentenceEncoder, question: str) -> bool | None:
    """Whether a question is out of domain; None where the folder that the encoder is from has no domain check."""
    if not (recipe := getattr(raw, "recipe", None)):
        return None
    home = Path(recipe["model"])
    check = DomainCheck.find(home.parent if (home.parent / RECORD).exists() else home, raw)
    return None if check is None else bool(check.is_outside(raw.encode_query([question]))[0])


def rank_lists(
    opener: Opener, given: Pairs | str | Path, resamples: int, seed: int, progress: bool | None
) -> SearchScores:
    """MAP and MRR of each question's own candidates, by the encoder of the index."""
    pairs = load_pairs(given, "candidates")
    with opener() as opened:
        encoder = opened.encoder
    systems = {_plain(encoder): encoder.raw} | ({encoder.calibrator.spelled: encoder} if encoder.calibrator else {})
    (sides,) = encode_sets(systems, [pairs], progress=progress)
    figures = candidate_figures(pairs, sides, "cosine", resamples, seed)
    return _scores(figures, list(systems), sum(map(len, lists_of(pairs))), 0)


def _scores(figures: Sequence[Figure], systems: Sequence[str], answers: int, seen: int) -> SearchScores:
    rows, differences = [], []
    for figure in figures:
        for at, system in enumerate(systems):
            value, (low, high) = float(figure.values[at]), figure.interval(at)
            rows.append({"system": system, "metric": figure.metric, "value": value, "ci_low": low, "ci_high": high})
        if len({*systems} - {BM25}) > 1:
            row = vars(difference(tuple(systems), figure, 1, 0))
            differences.append({name: row[name] for name in DIFFERENCE_KEYS})
    return SearchScores(figures[0].n, answers, seen, rows, differences)
