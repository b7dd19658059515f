"""What an approximation costs: the affine stand-in for a flow, and int8 weights; on STS if there is data."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertflow.calibrated import CalibratedEncoder
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import docstring_corpus, docstring_sentences
from bertflow.data.sts import StsPairs, expand_tasks, load_sts
from bertflow.encoder.transformer import SentenceEncoder
from bertflow.evaluation.aggregation import AGGREGATIONS
from bertflow.evaluation.retrieval import evaluate_retrieval
from bertflow.evaluation.sts import score_sets
from bertflow.export.linear import LinearStandIn, linearize
from bertflow.export.onnx_encoder import GRAPH, INT8, OnnxEncoder

STAND_IN_SENTENCES = 5000
"""Docstring sentences that a stand-in is fitted on, a fifth of them held out."""
INT8_SENTENCES = 200
"""Docstring sentences that int8 is compared on."""
RETRIEVAL_PAIRS = 300
"""Docstring pairs that int8 is scored on where there is no other data."""
TASKS = "tuning"
"""STS tasks by default: choices are not made on test sets."""


def scored_sets(options: argparse.Namespace) -> list[StsPairs]:
    """The STS tasks that were asked for; none without --tasks and --data_dir."""
    if not (options.tasks or options.data_dir):
        return []
    data_dir = options.data_dir or "hub"
    return [load_sts(task, data_dir) for task in expand_tasks(options.tasks or TASKS, data_dir)]


def linearized(
    system: CalibratedEncoder, text: str | None, sets: Sequence[StsPairs], progress: bool
) -> tuple[CalibratedEncoder, list[str]]:
    """The stand-in, and what it costs in plain words."""
    if text:
        sentences, source = load_sentences(text), text
    else:
        found = docstring_sentences()
        sentences, source = found[:: max(1, len(found) // STAND_IN_SENTENCES)], "docstrings of what is installed"
    stand_in = linearize(system, sentences, progress=progress)
    calibrator = stand_in.calibrator
    assert isinstance(calibrator, LinearStandIn), "linearize gives nothing else"
    lines = [
        f"R^2 {calibrator.r2:.4f} on {calibrator.facts_['held_out']:,} held-out sentences, fitted on "
        f"{calibrator.facts_['rows']:,} ({source})."
    ]
    if sets:
        scores = _spearman({"flow": system, "stand-in": stand_in}, sets, progress)
        lines += [f"{task}: Spearman x 100 {100 * a:.2f} -> {100 * b:.2f}." for task, (a, b) in scores.items()]
    return stand_in, lines


def int8_sentences() -> list[str]:
    """Some sentences that every machine has."""
    found = docstring_sentences()
    return found[:: max(1, len(found) // INT8_SENTENCES)][:INT8_SENTENCES]


def int8_scores(sets: Sequence[StsPairs], progress: bool) -> Callable[[Path], dict[str, Any]]:
    """Scores the graphs of an ONNX folder: on STS if there is some, else by retrieval among docstring pairs."""

    def scores(folder: Path) -> dict[str, Any]:
        systems: dict[str, SentenceEncoder] = {
            "float32": OnnxEncoder(folder, GRAPH),
            "int8": OnnxEncoder(folder, INT8),
        }
        if sets:
            found = {f"{task} Spearman": pair for task, pair in _spearman(systems, sets, progress).items()}
        else:
            _, pairs = docstring_corpus(n_pairs=RETRIEVAL_PAIRS, n_sentences=0)
            report = evaluate_retrieval(systems, pairs, resamples=0, progress=progress)
            values = [row.value for row in report.rows if row.metric == "hit@1"]
            found = {f"hit@1 among {RETRIEVAL_PAIRS} docstring pairs": (values[0], values[1])}
        return {name: {"float32": a, "int8": b} for name, (a, b) in found.items()}

    return scores


def _spearman(
    systems: Mapping[str, SentenceEncoder], sets: Sequence[StsPairs], progress: bool
) -> dict[str, tuple[float, float]]:
    """For each task, with its aggregation, the two systems' Spearman of cosine."""
    report = score_sets(systems, list(sets), resamples=0, progress=progress)
    found: dict[str, dict[str, list[float]]] = {}
    for row in report.rows:
        if row.metric == report.metric and row.aggregation in AGGREGATIONS:
            found.setdefault(row.task, {}).setdefault(row.aggregation, []).append(row.value)
    # A task whose sub-sets have scales of their own, as tuning, has a mean of correlations and no single one.
    best = {task: next(name for name in AGGREGATIONS if name in values) for task, values in found.items()}
    return {f"{task} ({name})": (found[task][name][0], found[task][name][1]) for task, name in best.items()}
