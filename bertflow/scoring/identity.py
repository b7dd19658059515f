"""Whose cosines are these? What decides an embedding: the encoder, its pooling, and the calibrator behind it.

Scores of one encoder say nothing about the cosines of another, so both are named when they differ.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bertflow.calibration.base import AbstractCalibrator
from bertflow.errors import DataError

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder

RECIPE = ("weights", "pooling", "layers", "max_length", "prompt", "token_counts")
"""What must be equal of two encoders; those that say nothing of it are equal in it."""


@dataclass(frozen=True)
class Identity:
    """What made some embeddings.

    Attributes:
        recipe: The rows of ``RECIPE`` that the encoder's ``describe`` has; None where the encoder is unknown.
        calibrator: Fingerprint of the fitted map; empty for a raw encoder.
    """

    recipe: Mapping[str, Any] | None = None
    calibrator: str = field(default="")

    @classmethod
    def of(cls, encoder: "SentenceEncoder") -> "Identity":
        """The identity of an encoder, raw or calibrated."""
        description = encoder.describe()
        calibrator = getattr(encoder, "calibrator", None)
        return cls(
            {key: description[key] for key in RECIPE if key in description},
            map_fingerprint(calibrator) if isinstance(calibrator, AbstractCalibrator) else "",
        )

    def require(self, encoder: "SentenceEncoder", what: str) -> None:
        """Refuse another encoder, pooling or calibrator.

        Raises:
            DataError: The message names what differs.
        """
        if self.recipe is None:
            return
        used = Identity.of(encoder)
        mine, theirs = ({**(one.recipe or {}), "calibrator": one.calibrator} for one in (self, used))
        different = [key for key in (*RECIPE, "calibrator") if mine.get(key) != theirs.get(key)]
        if different:
            fitted, found = (
                ", ".join(f"{key} {one.get(key) or 'none'}" for key in different) for one in (mine, theirs)
            )
            raise DataError(
                f"{what} was fitted on embeddings made with {fitted}; these are made with {found}. "
                "Use the encoder it was fitted on, or fit the scores again."
            )

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Identity":
        """The inverse of ``as_dict``."""
        return cls(record["recipe"], record["calibrator"])


def map_fingerprint(calibrator: AbstractCalibrator) -> str:
    """SHA-256 of all numbers of a fitted map: equal before it was saved and after it was loaded."""
    sha = hashlib.sha256()
    for name, tensor in sorted(calibrator.map.state_dict().items()):
        array = tensor.detach().cpu().contiguous().numpy()
        sha.update(f"{name} {array.dtype} {array.shape}\n".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
