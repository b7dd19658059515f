"""Narrow text, whose own deviations must not be trusted, borrows those of general text.

    z = (x - m) V diag(lambda)^(-p/2)        m: mean of the text;  lambda, V: variances and directions of general text

The general text is the prose of the docstrings that every machine has. A catalog does not show how queries deviate from
it, general text does. A small power is enough, and hardly changes what the encoder was good at.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bertflow.affine import whitening_map
from bertflow.array_types import Floats
from bertflow.calibration.base import AbstractCalibrator, scaled_as
from bertflow.calibration.parameters import real_number
from bertflow.data.docstrings import general_text
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import UsageError
from bertflow.maps import FittedMap
from bertflow.moments import Moments
from bertflow.text_keys import digest, hash_texts

WIDEST = 1024
"""Widest embeddings for whose covariance general text is enough."""


class Background(AbstractCalibrator):
    """The mean of the text, and of general text the deviations, which divide to a power.

    Args:
        power: Directions are divided by their standard deviation in general text to this power: 0 only centers, 1
            whitens general text.

    Attributes:
        facts_: Number of general sentences, and the digest of their keys.

    Source: our own measurements, benchmarks/EXPLORED.md.
    """

    divides = False

    def __init__(self, power: float = 0.25) -> None:
        self.power = power

    def _parameters(self) -> list[Any]:
        return [real_number("Background(power=...)", self.power, 1)]

    def _fit_map(self, x: Floats, encoder: SentenceEncoder | None, sentences: Sequence[str]) -> FittedMap:
        if encoder is None:
            raise UsageError("Background embeds general text, which needs an encoder. Use fit_sentences, not fit.")
        text = general_text()
        general = Moments.of(scaled_as(self.moments_, encoder.encode(text)))
        self.facts_ = {"general_sentences": general.n, "general_text": digest(hash_texts(text))}
        return whitening_map(replace(general, mean=self.moments_.mean), power=self.power)
