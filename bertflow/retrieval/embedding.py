"""Answers to embeddings: each distinct phrase through the encoder once, then through its calibrator.

answers --> phrases --> raw {text: (dim_in,)} --> calibrated {text: (dim,)}, empty where there is no calibrator
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertflow.data.answers import Answer
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError

Float32 = NDArray[np.float32]


def embed_answers(
    encoder: SentenceEncoder, answers: Sequence[Answer], known: Mapping[str, Float32], progress: bool = False
) -> tuple[dict[str, Float32], dict[str, Float32]]:
    """The raw and the calibrated embedding of every phrase of some answers.

    Args:
        encoder: Raw or calibrated.
        answers: Whose phrases are embedded.
        known: Raw embeddings that are there already; they are not made again.
        progress: Show a bar on stderr.

    Raises:
        DataError: If an embedding has length zero; the message gives the text.
    """
    texts = list(dict.fromkeys(text for answer in answers for text in answer.phrases))
    new = [text for text in texts if text not in known]
    raw = {**known, **dict(zip(new, encoder.raw.encode(new, progress=progress), strict=True))}
    x = np.array([raw[text] for text in texts], np.float32).reshape(len(texts), encoder.raw.dim)
    z = calibrate(encoder, x)
    _require_directions(texts, x if z is None else z)
    return raw, {} if z is None else dict(zip(texts, z, strict=True))


def calibrate(encoder: SentenceEncoder, x: Float32) -> Float32 | None:
    """Raw embeddings (n, dim_in) through the encoder's calibrator (n, dim); None if it has none."""
    return None if encoder.calibrator is None else encoder.calibrate(x)


def _require_directions(texts: Sequence[str], vectors: Float32) -> None:
    lengths = np.linalg.norm(vectors, axis=1)
    if not lengths.all():
        text = texts[int(np.argmin(lengths))]
        raise DataError(f"The embedding of {text!r} is all zeros, and cosine says nothing about it. Leave it out.")
