"""Tasks: systems are scored on pairs, by pairs of one kind.

    STS          graded pairs       Spearman and Pearson of the similarity with the human scores
    retrieval    queries, texts     hit@1: share of queries whose right text is most similar; MRR: mean of 1 / its rank
    binary       labelled pairs     area under the ROC curve

In retrieval, ties are counted against the system: the rank of the right text is one more than the number of other texts
that are at least as similar, so that a collapsed encoder finds nothing. Beside it are the median and the 95th
percentile of the cosine of random pairs of texts, which should lie near zero: they say whether a threshold means
anything. It guards against calibrators that help STS and harm search.

The area under the ROC curve is the share of (positive, negative) couples that are in the right order, ties counting
half: 0.5 is chance, whatever the share of positives. It is the paper's measure for QNLI.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bertflow.correlation import MidRanks
from bertflow.data.pairs import Pairs
from bertflow.data.sts import expand_tasks, load_sts
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.encoding import Embeddings, encode_sets
from bertflow.evaluation.figures import ScoredTask, suite_figures, task_figures
from bertflow.evaluation.report import Report
from bertflow.evaluation.rows import SystemFacts, make_rows, refuse_label_leaks
from bertflow.evaluation.significance import Figure, differences, generator, pair_weights
from bertflow.similarity import SIMILARITIES, unit_rows

Float64 = NDArray[np.float64]
BLOCK = 256
"""Queries that are ranked at a time: 256 x 10,000 texts take 20 MB."""
RANDOM_PAIRS = 20_000
"""Random pairs of texts whose cosine is looked at."""


def evaluate_sts(
    systems: Mapping[str, SentenceEncoder],
    tasks: str | Sequence[str] = "sts7",
    data_dir: str | Path = "hub",
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    progress: bool | None = None,
) -> Report:
    """Score systems on STS tasks.

    Args:
        systems: Encoders, raw or calibrated, by the name they have in the report. Those that share an encoder share
            its pass over the distinct sentences of all tasks.
        tasks: Tasks and suites, as ``"sts7"``, ``"sts12,stsb"`` or a list; also tables of your own.
        data_dir: The folder of the data, or ``hub``.
        similarity: A row of ``SIMILARITIES``: cosine, dot, euclidean or manhattan.
        resamples: Number of bootstrap resamples for the intervals; 0 for none.
        seed: Random seed for the bootstrap.
        force: Score, and mark, systems that were trained on labels of the scored pairs.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        UnknownNameError: For an unknown task or similarity.
        DataError: For data that is missing or damaged, a system trained on the labels, embeddings that are not finite,
            or similarities without variance.
    """
    _require_named(systems)
    sets = [load_sts(task, data_dir) for task in expand_tasks(tasks, data_dir)]
    return score_sets(systems, sets, similarity, resamples, seed, force, progress)


def score_sets(
    systems: Mapping[str, SentenceEncoder],
    sets: Sequence[Pairs],
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    progress: bool | None = None,
) -> Report:
    """Score systems on graded pairs that are loaded already; see ``evaluate_sts``."""
    facts = _facts(systems, [] if force else sets)
    encoded = encode_sets(systems, sets, similarity, progress)
    tasks = [_scored(pairs, sides, similarity) for pairs, sides in zip(sets, encoded, strict=True)]
    parts = {pairs.task: [pairs] for pairs in sets}
    figures = [figure for task in tasks for figure in task_figures(task, resamples, seed)]
    suites = {name: members for name, members in SUITES.items() if set(members) <= set(parts)}
    for suite, members in suites.items():
        figures += suite_figures(suite, [task for task in tasks if task.pairs.task in members], resamples, seed)
        parts[suite] = [pairs for pairs in sets if pairs.task in members]
    return Report(
        rows=tuple(make_rows(facts, figures, parts)),
        differences=tuple(differences(list(systems), figures, suites)),
        systems=tuple(facts),
        resamples=resamples,
        seed=seed,
        metric=f"{similarity}_spearman",
        tasks=tuple(tasks),
    )


def evaluate_retrieval(
    systems: Mapping[str, SentenceEncoder],
    pairs: Pairs,
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    progress: bool | None = None,
) -> Report:
    """Rank all texts for each query, by every system.

    Args:
        systems: Encoders, raw or calibrated, by the name they have in the report.
        pairs: Queries, each with its one right text.
        similarity: A row of ``SIMILARITIES``.
        resamples: Number of bootstrap resamples of the queries, for the intervals; 0 for none.
        seed: Random seed for the bootstrap and the random pairs.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For embeddings that are not finite, or of length zero.
    """
    _require_named(systems)
    [sides] = encode_sets(systems, [pairs], similarity, progress)
    by_system = [
        (right_ranks(queries, texts, similarity), random_pair_cosines(texts, generator(seed, "random pairs")))
        for _, queries, texts in sides
    ]
    ranks, cosines = (np.stack(found) for found in zip(*by_system, strict=True))
    figures = [
        mean_figure(pairs.task, "hit@1", (ranks == 1).astype(np.float64), resamples, seed),
        mean_figure(pairs.task, "mrr", 1 / ranks, resamples, seed),
    ]
    for metric, values in (
        ("random_median_cosine", np.median(cosines, axis=1)),
        ("random_p95_cosine", np.quantile(cosines, 0.95, axis=1)),
    ):
        nothing = np.empty((len(values), 0))
        figures.append(Figure(pairs.task, "test", "all", "", metric, cosines.shape[1], values, nothing))
    return _report(systems, pairs, figures, resamples, seed)


def evaluate_binary(
    systems: Mapping[str, SentenceEncoder],
    pairs: Pairs,
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    progress: bool | None = None,
) -> Report:
    """ROC AUC of the similarity, by every system; the arguments are those of ``evaluate_sts``.

    Resamples are drawn among the positive and among the negative pairs, so that their shares stay.

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For a system trained on the labels, or embeddings that have no similarity.
    """
    _facts(systems, [] if force else [pairs])
    [sides] = encode_sets(systems, [pairs], similarity, progress)
    scores = np.stack([SIMILARITIES[similarity].paired(first, second) for _, first, second in sides])
    return _report(systems, pairs, [auc_figure(pairs, f"{similarity}_auc", scores, resamples, seed)], resamples, seed)


def _require_named(systems: object) -> None:
    if not isinstance(systems, Mapping):
        raise UsageError(
            f"The systems are encoders by their names, as {{'raw': encoder}}; got a {type(systems).__name__}."
        )


def _facts(systems: Mapping[str, SentenceEncoder], sets: Sequence[Pairs]) -> list[SystemFacts]:
    """What the systems say about themselves; those that saw labels of the sets are refused."""
    _require_named(systems)
    facts = [SystemFacts.of(name, system) for name, system in systems.items()]
    refuse_label_leaks(facts, [pairs.task for pairs in sets])
    return facts


def _report(
    systems: Mapping[str, SentenceEncoder], pairs: Pairs, figures: Sequence[Figure], resamples: int, seed: int
) -> Report:
    """The report of one task; tables show the metric of the first figure."""
    facts = _facts(systems, [])
    return Report(
        rows=tuple(make_rows(facts, figures, {pairs.task: [pairs]})),
        differences=tuple(differences(list(systems), figures)),
        systems=tuple(facts),
        resamples=resamples,
        seed=seed,
        metric=figures[0].metric,
    )


def _scored(pairs: Pairs, sides: Iterable[tuple[str, Embeddings, Embeddings]], similarity: str) -> ScoredTask:
    paired = SIMILARITIES[similarity].paired
    similarities = {system: paired(first, second) for system, first, second in sides}
    for system, scores in similarities.items():
        if np.ptp(scores) == 0:
            raise DataError(
                f"The system {system} finds all {len(scores)} pairs of {pairs.task} equally similar ({scores[0]:g}), "
                "so there is no correlation. Its embeddings have collapsed: fit again."
            )
    return ScoredTask(pairs, similarity, np.stack(list(similarities.values())))


def right_ranks(
    queries: NDArray[np.floating], texts: NDArray[np.floating], similarity: str = "cosine"
) -> NDArray[np.intp]:
    """The rank of text i for query i, among all texts, from 1; ties against it. (n, dim), (n, dim) -> (n,)."""
    if similarity == "cosine":  # scaled once, not once a block
        queries, texts, similarity = unit_rows(queries), unit_rows(texts), "dot"
    matrix = SIMILARITIES[similarity].matrix
    ranks = np.empty(len(queries), dtype=np.intp)
    for start in range(0, len(queries), BLOCK):
        scores = matrix(queries[start : start + BLOCK], texts)
        right = np.diagonal(scores, offset=start)
        ranks[start : start + BLOCK] = (scores >= right[:, None]).sum(1)
    return ranks


def random_pair_cosines(x: NDArray[np.floating], rng: np.random.Generator) -> Float64:
    """Cosines of random pairs of different rows."""
    first = rng.integers(0, len(x), RANDOM_PAIRS)
    second = (first + rng.integers(1, len(x), RANDOM_PAIRS)) % len(x)
    return SIMILARITIES["cosine"].paired(x[first], x[second])


def mean_figure(task: str, metric: str, by_query: Float64, resamples: int, seed: int) -> Figure:
    """The mean of a number (k, n) over the queries."""
    n = by_query.shape[1]
    everything = (np.arange(n, dtype=np.intp),)
    means = [rows @ by_query.T / n for rows in pair_weights(everything, resamples, generator(seed, task))]
    replicates = np.concatenate([np.empty((0, len(by_query))), *means]).T
    values = by_query.mean(1)
    return Figure(task, "test", "all", "", metric, n, values, replicates, influence=by_query - values[:, None])


def auc_figure(pairs: Pairs, metric: str, scores: Float64, resamples: int, seed: int) -> Figure:
    """The area under the ROC curve of each row of ``scores`` (k, n), with its resamples."""
    positive = pairs.target == 1
    groups = [np.flatnonzero(positive), np.flatnonzero(~positive)]
    ranks = [MidRanks(row) for row in scores]
    drawn = [
        np.stack([weighted_auc(row, positive, weights) for row in ranks])
        for weights in pair_weights(groups, resamples, generator(seed, pairs.task))
    ]
    ones = np.ones((1, len(positive)))
    values = np.concatenate([weighted_auc(row, positive, ones) for row in ranks])
    replicates = np.concatenate([np.empty((len(scores), 0)), *drawn], axis=1)
    influence = np.stack([placements(row, positive) for row in scores])
    return Figure(pairs.task, "own", "all", "", metric, len(positive), values, replicates, influence)


def weighted_auc(ranks: MidRanks, positive: NDArray[np.bool_], weights: Float64) -> Float64:
    """The area for each row of ``weights`` (rows, n), in [0, 1]; scikit-learn's takes one row at a time."""
    above = weights[:, positive].sum(1)
    below = weights[:, ~positive].sum(1)
    # A score is 2 rank / total - 1. The mean rank of the positives, less their mean rank among themselves, counts the
    # negatives below them.
    total = above + below
    mean_score = np.einsum("rn,rn->r", weights[:, positive], ranks.under(weights)[:, positive]) / above
    return ((mean_score + 1) * total / 2 - above / 2) / below


def placements(scores: Float64, positive: NDArray[np.bool_]) -> Float64:
    """What each pair adds to the area (n,): its share of couples in the right order, less the mean, over its kind's n.

    Source: DeLong et al. 1988, "Comparing the areas under two or more correlated ROC curves", section 3.
    """
    all_ranks, result = rankdata(scores), np.empty(len(scores))
    for kind in (positive, ~positive):
        others = len(scores) - kind.sum()
        lower = (all_ranks[kind] - rankdata(scores[kind])) / others  # share of the other kind that lies below
        share = lower if kind is positive else 1 - lower
        result[kind] = (share - share.mean()) / kind.sum()
    return result
