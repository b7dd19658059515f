"""Binary tasks: do pairs that belong together get a higher similarity than pairs that do not?

The area under the ROC curve is the share of (positive, negative) couples that are in the right order, ties counting
half: 0.5 is chance, whatever the share of positives. It is the paper's measure for QNLI.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bertflow.correlation import MidRanks
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.evaluation.bootstrap import generator, pair_weights
from bertflow.evaluation.encoding import encode_sets
from bertflow.evaluation.figures import Figure
from bertflow.evaluation.leaks import SystemFacts, refuse_label_leaks
from bertflow.evaluation.report import Report
from bertflow.evaluation.rows import Material, make_rows
from bertflow.evaluation.significance import differences
from bertflow.similarity import SIMILARITIES

Float64 = NDArray[np.float64]


def evaluate_binary(
    systems: Mapping[str, SentenceEncoder],
    pairs: Pairs,
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
) -> Report:
    """ROC AUC of the similarity, by every system; the arguments are those of ``evaluate_sts``.

    Resamples are drawn among the positive and among the negative pairs, so that their shares stay.

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For a system trained on the labels, or embeddings that have no similarity.
    """
    facts = [SystemFacts.of(name, system) for name, system in systems.items()]
    if not force:
        refuse_label_leaks(facts, [pairs.task])
    [sides] = encode_sets(systems, [pairs], similarity, progress)
    scores = np.stack([SIMILARITIES[similarity].paired(first, second) for _, first, second in sides])
    figure = auc_figure(pairs, f"{similarity}_auc", scores, resamples, seed)
    return Report(
        rows=tuple(make_rows(facts, [figure], {pairs.task: Material(pairs.sentences, "raw", pairs.source)})),
        differences=tuple(differences(list(systems), [figure])),
        systems=tuple(facts),
        resamples=resamples,
        seed=seed,
        metric=figure.metric,
    )


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
    """The area for each row of ``weights`` (rows, n), in [0, 1]."""
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
