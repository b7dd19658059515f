"""How long will it take? A few sentences and a few steps of the flow are timed before the work starts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertflow.calibration.flow import FlowCalibrator
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.progress import unsaid
from bertflow.training.presets import resolve

SAMPLE = 32
"""Sentences that are timed."""
STEPS = (2, 10)
"""Steps of the flow that are timed: their difference leaves the start out."""
OTHER = 20.0
"""Seconds for all else: reading, closed forms, ranking, resampling, writing."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of each part."""

    encoding: float
    flow: float

    def __str__(self) -> str:
        """One line."""
        total = self.encoding + self.flow + OTHER
        return f"about {_duration(total)}: encoding {_duration(self.encoding)}, fitting flows {_duration(self.flow)}"


def estimate(encoder: SentenceEncoder, sentences: Sequence[str], rows: int, flows: int) -> Estimate:
    """Time a sample.

    Args:
        encoder: One that keeps what it embedded, so that the sample is not lost.
        sentences: All that will be encoded.
        rows: Sentences that a flow is fitted on.
        flows: How many flows.
    """
    spread = [sentences[row] for row in np.linspace(0, len(sentences) - 1, 2 * SAMPLE).astype(int)]
    encoder.encode(spread[::2])  # the first pass pays for what is loaded late
    begin = time.perf_counter()
    encoder.encode(spread[1::2])
    encoding = (time.perf_counter() - begin) / SAMPLE * len(sentences)
    return Estimate(encoding, flows * _flow_seconds(rows, encoder.dim) if flows else 0.0)


def _flow_seconds(rows: int, dim: int) -> float:
    recipe = resolve("default")
    noise = np.random.default_rng(0).normal(size=(min(rows, 4 * recipe.batch_size), dim)).astype(np.float32)
    with unsaid():  # what is said about noise is of no interest
        _timed(noise, 1)  # the first fit pays for what is loaded late
        few, more = (_timed(noise, steps) for steps in STEPS)
    a_step = max(more - few, 0.0) / (STEPS[1] - STEPS[0])
    return few + a_step * min(recipe.steps, recipe.epochs * max(1, rows // recipe.batch_size))


def _timed(x: NDArray[np.float32], steps: int) -> float:
    begin = time.perf_counter()
    FlowCalibrator(n_components="all", trainer={"max_steps": steps, "limit_val_batches": 0}).fit(x)
    return time.perf_counter() - begin


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
