"""Pairs of sentences for a report on the geometry: read, embedded by every system, scored.

Pairs come with a human score (an STS task, a table), where the highest fifth of the scale counts as a paraphrase; or
as queries with their right text, which are paraphrase-like by nature.
"""

from collections.abc import Mapping

import numpy as np

from bertflow.calibrated import encode_systems
from bertflow.data.pairs import Pairs, load_pairs
from bertflow.data.sts import expand_tasks, load_sts
from bertflow.data.tables import table_suffix
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import UsageError
from bertflow.evaluation.encoding import row_numbers
from bertflow.evaluation.lexical import LEVELS, edit_distance
from bertflow.evaluation.report import Report
from bertflow.evaluation.tasks import evaluate_retrieval, score_sets
from bertflow.geometry.material import PairCosines, Scores
from bertflow.similarity import SIMILARITIES

ALIKE = 0.8
"""Share of the range of the human scores from which a pair counts as a paraphrase: 4 on the scale from 0 to 5."""


def load_scored_pairs(name: str, data_dir: str) -> Pairs:
    """An STS task, or a table with a human score, or with query and text.

    Raises:
        UsageError: If several tasks are named.
        DataError: For data that is missing or damaged.
    """
    if table_suffix(name):
        return load_pairs(name, ("retrieval", "graded"))
    tasks = expand_tasks(name, data_dir)
    if len(tasks) > 1:
        raise UsageError(f"--pairs takes one task, got {len(tasks)}: {', '.join(tasks)}. Choose one.")
    return load_sts(tasks[0], data_dir)


def cosines_of_pairs(systems: Mapping[str, SentenceEncoder], pairs: Pairs, progress: bool = False) -> PairCosines:
    """The cosine of every pair by every system, and its edit distance in words."""
    sentences = pairs.sentences
    first, second = pairs.rows(row_numbers(sentences))
    cosine, cut = SIMILARITIES["cosine"].paired, LEVELS["words"]
    embeddings = encode_systems(systems, sentences, progress=progress)
    gold, alike, rule = None, np.ones(len(pairs), dtype=bool), "a query and its text"
    if pairs.kind == "graded":
        gold = pairs.target
        bound = gold.min() + ALIKE * np.ptp(gold)
        alike, rule = gold >= bound, f"human score of at least {bound:g}"
    return PairCosines(
        name=pairs.task,
        cosines={name: cosine(x[first], x[second]) for name, x in embeddings.items()},
        alike=alike,
        rule=rule,
        edits=np.array([edit_distance(cut(a), cut(b)) for a, b in zip(pairs.first, pairs.second, strict=True)]),
        gold=gold,
    )


def scores_of_pairs(systems: Mapping[str, SentenceEncoder], pairs: Pairs) -> Scores:
    """Spearman with the human scores, or hit@1 of the queries, with 95 % intervals.

    Raises:
        DataError: If a system was trained on labels of these pairs.
    """
    if pairs.kind == "graded":
        return _scores(score_sets(systems, [pairs]), "cosine_spearman", f"Spearman on {pairs.task}")
    return _scores(evaluate_retrieval(systems, pairs), "hit@1", f"hit@1 on {pairs.task}")


def _scores(report: Report, metric: str, title: str) -> Scores:
    rows = [row for row in report.rows if row.metric == metric and row.aggregation == "all"]
    return Scores(
        title,
        {
            row.system: (row.value, row.ci_low, row.ci_high)
            for row in rows
            if row.ci_low is not None and row.ci_high is not None
        },
    )
