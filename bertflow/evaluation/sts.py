"""STS: does the similarity of two embeddings rank pairs as people do?

tasks -> distinct sentences -> embeddings, one pass an encoder -> similarities -> figures -> Report
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import expand_tasks, load_sts
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
from bertflow.evaluation.encoding import Embeddings, encode_sets
from bertflow.evaluation.figures import suite_figures, task_figures
from bertflow.evaluation.leaks import SystemFacts, refuse_label_leaks
from bertflow.evaluation.meter import ScoredTask
from bertflow.evaluation.report import Report
from bertflow.evaluation.rows import Material, make_rows
from bertflow.evaluation.significance import differences
from bertflow.similarity import SIMILARITIES


def evaluate_sts(
    systems: Mapping[str, SentenceEncoder],
    tasks: str | Sequence[str] = "sts7",
    data_dir: str | Path = "hub",
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
) -> Report:
    """Score systems on STS tasks.

    Args:
        systems: Encoders, raw or calibrated, by the name they have in the report. Those that share an encoder share
            its pass over the distinct sentences of all tasks.
        tasks: Tasks and suites, as ``"sts7"``, ``"sts12,stsb"`` or a list; also tables of your own.
        data_dir: The folder of the data, or ``hub``.
        similarity: A row of ``SIMILARITIES``: cosine, dot, euclidean or manhattan.
        resamples: Bootstrap resamples for the intervals; 0 for none.
        seed: Of the resamples.
        force: Score, and mark, systems that were trained on labels of the scored pairs.
        progress: Show a bar on stderr.

    Raises:
        UnknownNameError: For an unknown task or similarity.
        DataError: For data that is missing or damaged, a system trained on the labels, embeddings that are not finite,
            or similarities without variance.
    """
    sets = [load_sts(task, data_dir) for task in expand_tasks(tasks, data_dir)]
    return score_sets(systems, sets, similarity, resamples, seed, force, progress)


def score_sets(
    systems: Mapping[str, SentenceEncoder],
    sets: Sequence[Pairs],
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    progress: bool = False,
) -> Report:
    """Score systems on pairs that are loaded already; see ``evaluate_sts``."""
    facts = [SystemFacts.of(name, system) for name, system in systems.items()]
    if not force:
        refuse_label_leaks(facts, [pairs.task for pairs in sets])
    encoded = encode_sets(systems, sets, similarity, progress)
    tasks = [_scored(pairs, sides, similarity) for pairs, sides in zip(sets, encoded, strict=True)]
    materials = {pairs.task: _material([pairs]) for pairs in sets}
    figures = [figure for task in tasks for figure in task_figures(task, resamples, seed)]
    suites = {name: members for name, members in SUITES.items() if set(members) <= set(materials)}
    for suite, members in suites.items():
        figures += suite_figures(suite, [task for task in tasks if task.pairs.task in members], resamples, seed)
        materials[suite] = _material([pairs for pairs in sets if pairs.task in members])
    return Report(
        rows=tuple(make_rows(facts, figures, materials)),
        differences=tuple(differences([system.name for system in facts], figures, suites)),
        systems=tuple(facts),
        resamples=resamples,
        seed=seed,
        metric=f"{similarity}_spearman",
        tasks=tuple(tasks),
    )


def _material(sets: Sequence[Pairs]) -> Material:
    return Material(
        sentences=unique_sentences(sets),
        text_form="+".join(dict.fromkeys(pairs.text_form for pairs in sets)),
        source=", ".join(dict.fromkeys(pairs.source for pairs in sets)),
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
