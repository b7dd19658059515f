"""What an approximation costs: an affine stand-in for a flow, and int8 weights.

    z = flow(x)  ~  (x - shift) @ weight          least squares on some text, judged on other text

A flow is a module of bertflow, for which sentence-transformers asks for a flag and which many servers do not run. Where
its linear part does most of the work, a built-in ``Dense`` does almost as well; R^2 on held-out text says how much is
lost. With data, both approximations are scored on STS; without, int8 is scored by retrieval among docstring pairs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.affine import AffineMap, whitening_map
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.calibrators import AbstractLinearCalibrator
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import docstring_corpus, docstring_sentences
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.figures import AGGREGATIONS
from bertflow.evaluation.tasks import evaluate_retrieval, score_sets
from bertflow.export.onnx_encoder import GRAPH, INT8, OnnxEncoder
from bertflow.export.onnx_graph import Int8Loss, write_int8, write_loss
from bertflow.moments import Moments

HELD_OUT = 0.2
"""Share of the text that R^2 is measured on."""
LEAST_ROWS = 10
"""Sentences below which a held-out R^2 says nothing."""
STAND_IN_SENTENCES = 5000
"""Docstring sentences that a stand-in is fitted on, a fifth of them held out."""
INT8_SENTENCES = 200
"""Docstring sentences on which int8 is compared."""
RETRIEVAL_PAIRS = 300
"""Docstring pairs on which int8 is scored where there is no other data."""


class LinearStandIn(AbstractLinearCalibrator):
    """An affine map that replaces another calibrator; made by ``linearize``.

    Args:
        of: The calibrator that it replaces.
        r2: Share of the variance of z, over all directions, that it explains on held-out text.
    """

    def __init__(self, of: str = "", r2: float = 0.0) -> None:
        self.of = of
        self.r2 = r2

    def _affine(self) -> AffineMap:
        raise UsageError("A stand-in is made from a flow with linearize(system, sentences), and is not fitted to rows.")


def linearize(
    system: CalibratedEncoder, sentences: Sequence[str], seed: int = 0, progress: bool | None = None
) -> CalibratedEncoder:
    """The same encoder with an affine map instead of its calibrator.

    Args:
        system: An encoder and its flow.
        sentences: Text to fit on; a fifth of it is held out.
        seed: Random seed for the split.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Returns:
        An encoder whose calibrator's ``r2`` is the held-out R^2; its moments and provenance are the flow's.

    Raises:
        UsageError: If the calibrator is affine already.
        DataError: If there are too few sentences.
    """
    calibrator = system.calibrator
    if isinstance(calibrator.map, AffineMap):
        raise UsageError(f"--linearize is for a flow, but {type(calibrator).__name__} is affine already. Leave it out.")
    distinct = list(dict.fromkeys(sentences))
    if len(distinct) < LEAST_ROWS:
        raise DataError(f"A stand-in needs at least {LEAST_ROWS} sentences, got {len(distinct)}. Give more text.")
    x = system.raw.encode(distinct, progress=progress)
    z = system.calibrate(x).astype(np.float64)
    order = np.random.default_rng(seed).permutation(len(x))
    held, fitted = np.split(order, [max(1, int(HELD_OUT * len(x)))])
    affine = least_squares(x[fitted].astype(np.float64), z[fitted])
    described = str(system.describe()["calibrator"])
    stand_in = LinearStandIn(described, r2(z[held], (x[held] - affine.shift.numpy()) @ affine.weight.numpy()))
    stand_in.map_, stand_in.moments_, stand_in.provenance_ = affine, calibrator.moments_, calibrator.provenance
    stand_in.n_features_in_, stand_in.facts_ = calibrator.dim_in, {"held_out": len(held), "rows": len(fitted)}
    return CalibratedEncoder(system.raw, stand_in)


def least_squares(x: NDArray[np.float64], z: NDArray[np.float64]) -> AffineMap:
    """The affine map with the least squared error from rows x (n, dim_in) to rows z (n, dim_out).

    Directions without variance are left out, as in whitening: regression on whitened x is one product.
    """
    moments = Moments.of(x)
    white = whitening_map(moments)
    whitened: NDArray[np.float64] = (x - moments.mean) @ white.weight.numpy()
    mean = z.mean(0)
    weight = white.weight.numpy() @ (whitened.T @ (z - mean) / (whitened * whitened).sum(0)[:, None])
    inverse = np.linalg.pinv(weight)
    # z = mean + (x - moments.mean) @ weight; the mean goes into the shift as far as the weight reaches it.
    return AffineMap(moments.mean - mean @ inverse, weight, inverse)


def r2(wanted: NDArray[np.float64], got: NDArray[Any]) -> float:
    """Share of the variance of the wanted rows that the other rows explain, over all directions."""
    left = np.square(wanted - got).sum()
    return float(1 - left / np.square(wanted - wanted.mean(0)).sum())


def linearized(
    system: CalibratedEncoder, text: str | Path | None, sets: Sequence[Pairs], progress: bool | None = None
) -> tuple[CalibratedEncoder, list[str]]:
    """The stand-in for a flow, and what it costs in words.

    Args:
        system: An encoder and its flow.
        text: File of sentences to fit on; docstrings of installed packages by default.
        sets: STS tasks on which both are scored.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
    """
    sentences = load_sentences(str(text)) if text else _docstrings(STAND_IN_SENTENCES)
    stand_in = linearize(system, sentences, progress=progress)
    facts, parameters = stand_in.calibrator.facts_, stand_in.calibrator.get_params()
    lines = [
        f"R^2 {parameters['r2']:.4f} on {facts['held_out']:,} held-out sentences, fitted on "
        f"{facts['rows']:,} ({text or 'docstrings of installed packages'})."
    ]
    if sets:
        scores = _spearman({"flow": system, "stand-in": stand_in}, sets, progress)
        lines += [f"{task}: Spearman x 100 {100 * a:.2f} -> {100 * b:.2f}." for task, (a, b) in scores.items()]
    return stand_in, lines


def add_int8(folder: Path, sets: Sequence[Pairs], progress: bool | None = None) -> Int8Loss:
    """Write the int8 graph of an ONNX export and its loss.

    Args:
        folder: The export.
        sets: STS tasks on which both graphs are scored.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
    """
    write_int8(folder)
    systems: dict[str, SentenceEncoder] = {"float32": OnnxEncoder(folder, GRAPH), "int8": OnnxEncoder(folder, INT8)}
    if sets:
        found = {f"{task} Spearman": pair for task, pair in _spearman(systems, sets, progress).items()}
    else:
        _, pairs = docstring_corpus(n_pairs=RETRIEVAL_PAIRS, n_sentences=0)
        report = evaluate_retrieval(systems, pairs, resamples=0, progress=progress)
        hits = tuple(report.value(name, pairs.task, metric="hit@1") for name in systems)
        found = {f"hit@1 among {len(pairs)} docstring pairs": hits}
    scores = {name: dict(zip(systems, pair, strict=True)) for name, pair in found.items()}
    return write_loss(folder, _docstrings(INT8_SENTENCES)[:INT8_SENTENCES], scores)


def _docstrings(n: int) -> list[str]:
    """About ``n`` sentences that every machine has."""
    found = docstring_sentences()
    return found[:: max(1, len(found) // n)]


def _spearman(
    systems: Mapping[str, SentenceEncoder], sets: Sequence[Pairs], progress: bool | None
) -> dict[str, tuple[float, ...]]:
    """For each task, with its aggregation, Spearman of the cosines of the two systems."""
    report = score_sets(systems, list(sets), resamples=0, progress=progress)
    found: dict[str, dict[str, list[float]]] = {}
    for row in report.rows:
        if row.metric == report.metric and row.aggregation in AGGREGATIONS:
            found.setdefault(row.task, {}).setdefault(row.aggregation, []).append(row.value)
    # A task whose sub-sets have scales of their own, such as tuning, has only a mean of correlations.
    best = {task: next(name for name in AGGREGATIONS if name in values) for task, values in found.items()}
    return {f"{task} ({name})": tuple(found[task][name]) for task, name in best.items()}
