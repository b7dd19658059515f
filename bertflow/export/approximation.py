"""What an approximation costs: an affine stand-in for a flow, and int8 weights.

    z = flow(x)  ~  (x - shift) @ weight          least squares on some text, judged on other text

A flow is a module of bertflow, for which sentence-transformers asks for a flag and which many servers do not run. Where
its linear part does most of the work, a built-in ``Dense`` does almost as well; R^2 on held-out text says how much is
lost. With data, both approximations are scored on STS; without, int8 is scored by retrieval among docstring pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import r2_score

from bertflow.affine import NULL_SHARE, AffineMap
from bertflow.array_types import Float64
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.closed_forms import LinearStandIn
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import docstring_corpus, docstring_sentences
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.evaluating import evaluate_retrieval, score_sets
from bertflow.evaluation.sides import Systems
from bertflow.export.onnx_encoder import GRAPH, INT8, OnnxEncoder, read_export
from bertflow.export.onnx_graph import write_int8
from bertflow.files import write_json
from bertflow.maps import fitted_map, gap_of, unit
from bertflow.records import write_export_record
from bertflow.similarity import COSINE

HELD_OUT = 0.2
"""Share of the text that R^2 is measured on."""
LEAST_ROWS = 10
"""Fewest sentences whose held-out R^2 says something."""
STAND_IN_SENTENCES = 5000
"""Docstring sentences that a stand-in is fitted on, a fifth of them held out."""
INT8_SENTENCES = 200
"""Docstring sentences on which int8 is compared."""
RETRIEVAL_PAIRS = 300
"""Docstring pairs on which int8 is scored where there is no other data."""


def require_flow(calibrator: AbstractCalibrator | None) -> AbstractCalibrator:
    """What ``linearize`` can replace.

    Raises:
        UsageError: If there is no calibrator, or it is affine already.
    """
    what = "--linearize is for a flow, but"
    if calibrator is None:
        raise UsageError(f"{what} this is a raw encoder. Leave it out.")
    if isinstance(fitted_map(calibrator.map), AffineMap):
        raise UsageError(f"{what} {type(calibrator).__name__} is affine already. Leave it out.")
    return calibrator


def linearize(
    system: SentenceEncoder, text: str | Path | None = None, sets: Sequence[Pairs] = (), progress: bool | None = None
) -> tuple[CalibratedEncoder, list[str]]:
    """The encoder with an affine map instead of its flow.

    Args:
        system: An encoder and its flow.
        text: File of sentences to fit on, a fifth of them held out; docstrings of installed packages by default.
        sets: STS tasks on which both are scored.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Returns:
        An encoder whose calibrator's ``r2`` is the held-out R^2, and whose moments and provenance are the flow's; and
        what the map costs, in words.

    Raises:
        UsageError: If there is no calibrator, or it is affine already.
        DataError: If there are too few sentences.
    """
    calibrator = require_flow(system.calibrator)
    sentences = load_sentences(text) if text else _docstrings(STAND_IN_SENTENCES)
    if len(sentences) < LEAST_ROWS:
        raise DataError(f"A stand-in needs at least {LEAST_ROWS} sentences, got {len(sentences)}. Give more text.")
    embeddings = system.raw.encode(sentences, progress=progress)
    z, rows = system.calibrate(embeddings).astype(np.float64), torch.from_numpy(embeddings.astype(np.float64))
    x = (unit(rows) if calibrator.moments_.unit else rows).numpy()
    held, fitted = np.split(np.random.default_rng(0).permutation(len(x)), [max(1, int(HELD_OUT * len(x)))])
    affine = least_squares(x[fitted], z[fitted])
    explained = (x[held] - affine.shift.numpy()) @ affine.weight.numpy()
    r2 = float(r2_score(z[held], explained, multioutput="variance_weighted"))
    stand_in = LinearStandIn(str(system.describe()["calibrator"]), r2)
    stand_in.moments_, stand_in.provenance_ = calibrator.moments_, calibrator.provenance
    gap = gap_of(calibrator.map)
    stand_in.map_ = stand_in.with_gap(affine, None if gap is None else gap.numpy())
    stand_in.n_features_in_, stand_in.facts_ = calibrator.dim_in, {"held_out": len(held), "rows": len(fitted)}
    linear = CalibratedEncoder(system.raw, stand_in)
    linear.role = system.role
    cost = [
        f"R^2 {r2:.4f} on {len(held):,} held-out sentences, fitted on {len(fitted):,} "
        f"({text or 'docstrings of installed packages'})."
    ]
    if sets:
        scores = _spearman({"flow": system, "stand-in": linear}, sets, progress)
        cost += [f"{task}: Spearman x 100 {100 * a:.2f} -> {100 * b:.2f}." for task, (a, b) in scores.items()]
    return linear, cost


def least_squares(x: Float64, z: Float64) -> AffineMap:
    """The affine map with the least squared error from rows x (n, dim_in) to rows z (n, dim_out).

    Directions without variance are left out, as in whitening.
    """
    center, mean = x.mean(0), z.mean(0)
    weight = np.linalg.lstsq(x - center, z - mean, rcond=NULL_SHARE)[0]
    inverse = np.linalg.pinv(weight)
    # z = mean + (x - center) @ weight; the mean goes into the shift as far as the weight reaches it.
    return AffineMap(center - mean @ inverse, weight, inverse)


@dataclass(frozen=True)
class Int8Loss:
    """What int8 costs.

    Attributes:
        mean_cosine: Mean cosine of the int8 and the float32 embedding of a sentence.
        min_cosine: The smallest of these cosines.
        sentences: How many sentences were compared.
        bytes_float32: Size of the float32 graph.
        bytes_int8: Size of the int8 graph.
        scores: What was measured with labels: task and metric -> ``float32`` and ``int8``.
    """

    mean_cosine: float
    min_cosine: float
    sentences: int
    bytes_float32: int
    bytes_int8: int
    scores: Mapping[str, Mapping[str, float]]

    def __str__(self) -> str:
        """One line."""
        cosine = f"cosine to float32 {self.mean_cosine:.4f} on average and {self.min_cosine:.4f} at worst"
        size = f"{self.bytes_int8 / 1e6:.1f} MB instead of {self.bytes_float32 / 1e6:.1f} MB"
        scores = [f"{name} {100 * row['float32']:.2f} -> {100 * row['int8']:.2f}" for name, row in self.scores.items()]
        return "; ".join([f"{cosine}, on {self.sentences} sentences", size, *scores])


def add_int8(folder: Path, sets: Sequence[Pairs] = (), progress: bool | None = None) -> Int8Loss:
    """Write the int8 graph of an ONNX export, and ``onnx/model_int8.json``, its loss.

    Args:
        folder: The export.
        sets: STS tasks on which both graphs are scored; by default they are scored by retrieval.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
    """
    write_int8(folder)
    write_export_record(folder, read_export(folder))
    systems = {"float32": OnnxEncoder(folder, GRAPH), "int8": OnnxEncoder(folder, INT8)}
    if sets:
        found = {f"{task} Spearman": pair for task, pair in _spearman(systems, sets, progress).items()}
    else:
        _, pairs = docstring_corpus(n_pairs=RETRIEVAL_PAIRS, n_sentences=0)
        report = evaluate_retrieval(systems, pairs, resamples=0, progress=progress)
        hits = tuple(report.value(name, pairs.task, metric="hit@1") for name in systems)
        found = {f"hit@1 among {len(pairs)} docstring pairs": hits}
    scores = {name: dict(zip(systems, pair, strict=True)) for name, pair in found.items()}
    sentences = _docstrings(INT8_SENTENCES)[:INT8_SENTENCES]
    x, y = (encoder.encode(sentences, progress) for encoder in systems.values())
    cosines = COSINE.paired(x, y)
    before, after = ((folder / graph).stat().st_size for graph in (GRAPH, INT8))
    loss = Int8Loss(float(cosines.mean()), float(cosines.min()), len(sentences), before, after, scores)
    write_json((folder / INT8).with_suffix(".json"), asdict(loss))
    return loss


def _docstrings(n: int) -> list[str]:
    """About ``n`` sentences that every machine has."""
    found = docstring_sentences()
    return found[:: max(1, len(found) // n)]


def _spearman(systems: Systems, sets: Sequence[Pairs], progress: bool | None) -> dict[str, tuple[float, ...]]:
    """For each task, with its aggregation, Spearman of the cosines of the two systems."""
    report = score_sets(systems, list(sets), resamples=0, progress=progress)
    # A task whose sub-sets have scales of their own, such as tuning, has only a mean of correlations.
    places = (column.place for column in report.columns)
    shown = {place.task: place.aggregation for place in places if place.metric == report.metric}
    values = {task: tuple(report.value(name, task, shown[task]) for name in systems) for task in shown}
    return {f"{task} ({shown[task]})": pair for task, pair in values.items()}
