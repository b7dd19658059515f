"""The parts of a report that may be missing, each with the reason if it is.

model      word embeddings, layers, masked words: what an encoder is inside
run        the training, from metrics.csv
systems    the latent, of those that claim that theirs is Gaussian
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.linear import Whitening
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
from bertflow.geometry.contextuality import contextuality
from bertflow.geometry.frequency import words_by_rank
from bertflow.geometry.latent import Latent
from bertflow.geometry.masked_words import dot_product_parts, read_masked_words
from bertflow.geometry.token_states import read_token_states
from bertflow.geometry.vocabulary import read_vocabulary

HISTORY: Mapping[str, str] = {"train/bits_per_dim": "training", "val/bits_per_dim": "held out"}
"""Columns of metrics.csv that are drawn, and what they are called."""
GAUSSIAN = (Whitening, FlowCalibrator)
"""Calibrators whose output should be standard normal."""
INSIDE = ("words", "layers", "masked")
"""The parts that only a transformer has."""
Parts = tuple[dict[str, Any], dict[str, str]]
"""Parts by the name of their attribute in ``Material``, and why others are missing."""


def model_parts(recipe: Mapping[str, Any] | None, sentences: Sequence[str], counts: Mapping[str, int]) -> Parts:
    """What an encoder is inside.

    Args:
        recipe: The arguments of ``TransformerEncoder``; None for word vectors.
        sentences: A sample; every token in every layer is in memory.
        counts: How often words occur.
    """
    if recipe is None:
        return {}, dict.fromkeys(INSIDE, "this is no transformer, so it has no layers and no vocabulary of its own.")
    model, revision, device = recipe["model"], recipe.get("revision"), recipe.get("device", "auto")

    def words() -> Any:
        vocabulary = read_vocabulary(model, revision)
        return words_by_rank(vocabulary.vectors, vocabulary.words, counts)

    return gathered(
        {
            "words": words,
            "layers": lambda: contextuality(read_token_states(model, sentences, revision=revision, device=device)),
            "masked": lambda: dot_product_parts(read_masked_words(model, sentences, revision=revision), counts),
        }
    )


def run_parts(folder: Path) -> Parts:
    """The training of a run."""
    if not (folder / "metrics.csv").is_file():
        return {}, {"history": f"{folder.name} is no folder of a training run."}
    return gathered({"history": lambda: read_history(folder / "metrics.csv")})


def latent_parts(systems: Mapping[str, SentenceEncoder], embeddings: Mapping[str, NDArray[np.floating]]) -> Parts:
    """How Gaussian the latent is."""
    names = [
        name
        for name, system in systems.items()
        if isinstance(system, CalibratedEncoder) and isinstance(system.calibrator, GAUSSIAN)
    ]
    if not names:
        return {}, {"latents": "no system among these maps to a Gaussian. Add --compare raw,whitening."}
    return {"latents": {name: Latent.of(embeddings[name]) for name in names}}, {}


def gathered(parts: Mapping[str, Callable[[], Any]]) -> Parts:
    """Make each part; what cannot be had becomes a reason."""
    made, reasons = {}, {}
    for name, make in parts.items():
        try:
            made[name] = make()
        except DataError as error:
            reasons[name] = str(error)
    return made, reasons


def read_history(path: Path) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Steps and bits per dimension, by what they were measured on.

    Raises:
        DataError: If fewer than two values of any were logged.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for column, name in HISTORY.items():
        points = [(float(row["step"]), float(row[column])) for row in rows if row.get(column)]
        if len(points) > 1:
            steps, bits = np.array(points).T
            found[name] = (steps, bits)
    if not found:
        raise DataError(f"{path} should hold bits per dimension, but fewer than two values were logged. Train longer.")
    return found
