"""Systems are scored on pairs of any kind, and become a report."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
from typing_extensions import TypedDict, Unpack

from bertflow.data.pairs import Pairs
from bertflow.data.sts import expand_tasks, load_sts
from bertflow.data.sts_tasks import suites_of
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.candidate_lists import candidate_figures
from bertflow.evaluation.figures import (
    Float64,
    ScoredTask,
    Sides,
    binary_figures,
    retrieval_figures,
    suite_figures,
    task_figures,
)
from bertflow.evaluation.report import Report
from bertflow.evaluation.rows import SystemFacts, make_rows, refuse_label_leaks
from bertflow.evaluation.seeds import SeveralSeeds
from bertflow.evaluation.significance import Figure, differences, enough
from bertflow.evaluation.systems import encode_sets
from bertflow.progress import working
from bertflow.similarity import SIMILARITIES


class ScoreOptions(TypedDict, total=False):
    """How systems are scored.

    Attributes:
        similarity: cosine, dot, euclidean or manhattan (default: cosine).
        resamples: Number of bootstrap resamples for the intervals; 0 for none (default: 1000).
        seed: Random seed for the bootstrap (default: 0).
        force: Score, and mark, systems that were trained on labels of the scored pairs.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
    """

    similarity: str
    resamples: int
    seed: int
    force: bool
    progress: bool | None


class PairScorer(Protocol):
    """A system that scores pairs, and embeds nothing."""

    def facts(self, name: str) -> SystemFacts:
        """What a report says of it, under its name in tables."""

    def scores(self, pairs: Pairs) -> Float64:
        """How similar it finds each pair (n,)."""


def evaluate_sts(
    systems: Mapping[str, SentenceEncoder],
    tasks: str | Sequence[str] = "sts7",
    data_dir: str | Path = "hub",
    **options: Unpack[ScoreOptions],
) -> Report:
    """Score systems on STS tasks.

    Args:
        systems: Encoders, raw or calibrated, by the name they have in the report. Those that share an encoder share
            its pass over the distinct sentences of all tasks.
        tasks: Tasks and suites, as ``"sts7"``, ``"sts12,stsb"`` or a list; also tables of your own.
        data_dir: The folder of the data, or ``hub``.
        options: ``ScoreOptions``.

    Raises:
        UnknownNameError: For an unknown task or similarity.
        DataError: For data that is missing or damaged, a system trained on the labels, embeddings that are not finite,
            or similarities without variance.
    """
    # Loaded one by one, after the systems were looked at.
    return score_sets(systems, (load_sts(task, data_dir) for task in expand_tasks(tasks, data_dir)), **options)


def evaluate_retrieval(systems: Mapping[str, SentenceEncoder], pairs: Pairs, **options: Unpack[ScoreOptions]) -> Report:
    """Rank all texts for each query, by every system; or the candidates of each query, by MAP and MRR.

    Args:
        systems: Encoders, raw or calibrated, by the name they have in the report.
        pairs: Queries, each with its one right text; of the kind ``candidates`` queries with texts of their own, whose
            target is 1 or 0 (``bertflow.evaluation.candidate_lists``).
        options: ``ScoreOptions``; resamples are drawn among the queries.

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For embeddings that are not finite, or of length zero, or queries without right and wrong candidates.
    """
    return score_sets(systems, [pairs if pairs.kind == "candidates" else replace(pairs, kind="retrieval")], **options)


def evaluate_binary(systems: Mapping[str, SentenceEncoder], pairs: Pairs, **options: Unpack[ScoreOptions]) -> Report:
    """ROC AUC of the similarity, by every system; the options are those of ``evaluate_sts``.

    Resamples are drawn among the positive and among the negative pairs, so that their shares stay.

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For a system trained on the labels, or embeddings that have no similarity.
    """
    return score_sets(systems, [replace(pairs, kind="binary")], **options)


@working("scoring")
def score_sets(
    systems: Mapping[str, SentenceEncoder],
    sets: Iterable[Pairs],
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    progress: bool | None = None,
    scorers: Mapping[str, PairScorer] | None = None,
    seeds: SeveralSeeds | None = None,
) -> Report:
    """Score systems on pairs of any kind, and the mean over ``seeds``; see ``bertflow.evaluate_sts``.

    Where ``resamples`` are too few for the number of tasks, there are more. Scorers are for graded pairs alone.
    """
    if not isinstance(systems, Mapping):
        raise UsageError(
            f"The systems are encoders by their names, as {{'raw': encoder}}; got a {type(systems).__name__}."
        )
    sets, scorers = list(sets), scorers or {}
    resamples = enough(resamples, len(sets))
    facts = [SystemFacts.of(name, system) for name, system in systems.items()]
    facts += [scorer.facts(name) for name, scorer in scorers.items()]
    refuse_label_leaks(facts, [pairs.task for pairs in sets if pairs.kind != "retrieval" and not force])
    tasks: list[ScoredTask] = []
    figures: list[Figure] = []
    for pairs, sides in zip(sets, encode_sets(systems, sets, similarity, progress), strict=True):
        if pairs.kind in FIGURES:
            figures += FIGURES[pairs.kind](pairs, sides, similarity, resamples, seed)
        else:
            tasks.append(_scored(pairs, sides, similarity, scorers))
            figures += task_figures(tasks[-1], resamples, seed)
    parts = {pairs.task: [pairs] for pairs in sets}
    suites = suites_of({task.pairs.task for task in tasks})
    for suite, members in suites.items():
        figures += suite_figures(suite, [task for task in tasks if task.pairs.task in members], resamples, seed)
        parts[suite] = [pairs for pairs in sets if pairs.task in members]
    described = list(facts)
    if seeds:
        figures = [seeds.with_mean(figure, [one.name for one in facts], seed) for figure in figures]
        described.append(seeds.facts(facts))
    return Report(
        rows=tuple(make_rows(described, figures, parts)),
        differences=tuple(differences([one.name for one in described], figures, suites)),
        systems=tuple(facts),
        resamples=resamples,
        seed=seed,
        metric=figures[0].metric,
        tasks=tuple(tasks),
        seeds=seeds,
    )


FIGURES: Mapping[str, Callable[[Pairs, Sides, str, int, int], list[Figure]]] = {
    "retrieval": retrieval_figures,
    "candidates": candidate_figures,
    "binary": binary_figures,
}
"""What is measured on a kind of pairs that are not graded."""


def _scored(pairs: Pairs, sides: Sides, similarity: str, scorers: Mapping[str, PairScorer]) -> ScoredTask:
    paired = SIMILARITIES[similarity].paired
    similarities = {system: paired(first, second) for system, first, second in sides}
    similarities |= {name: scorer.scores(pairs) for name, scorer in scorers.items()}
    for system, scores in similarities.items():
        if np.ptp(scores) == 0:
            raise DataError(
                f"The system {system} finds all {len(scores)} pairs of {pairs.task} equally similar ({scores[0]:g}), "
                "so there is no correlation. Its embeddings have collapsed: fit again."
            )
    return ScoredTask(pairs, similarity, np.stack(list(similarities.values())))
