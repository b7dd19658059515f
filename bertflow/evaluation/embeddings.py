"""Which embeddings can be scored: those that are finite and, for the cosine, not zero."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError

Embeddings = NDArray[np.float32]


def require_usable(system: str, x: Embeddings, sentences: Sequence[str], similarity: str, where: str) -> None:
    """Refuse embeddings that have no similarity.

    Raises:
        DataError: For the first one that is not finite, or has length zero where the cosine is asked for.
    """
    finite = np.isfinite(x).all(1)
    if not finite.all():
        sentence = sentences[int(np.argmin(finite))]
        raise DataError(
            f"The system {system} gives an embedding that is not finite for {sentence!r} ({where}). "
            "Look for a half-precision overflow, or a calibrator that was fitted on other embeddings."
        )
    something = x.any(1)
    if similarity == "cosine" and not something.all():
        sentence = sentences[int(np.argmin(something))]
        raise DataError(
            f"The system {system} gives an embedding of zeros for {sentence!r} ({where}), and "
            "cosine says nothing about it. Leave the sentence out, or choose another similarity."
        )
