"""Which numbers an index holds: the encoder's recipe, and the calibrator that its embeddings went through.

A question must go through the same encoder and the same calibrator as the answers, or its neighbors are nonsense that
nobody notices. So an index keeps both, and refuses what differs, with both named.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
from bertflow.files import to_json

NAMES_ONLY = ("encoder",)
"""What an encoder says of itself that decides no number: what its folder is called."""


def calibrator_digest(calibrator: AbstractCalibrator) -> str:
    """Fingerprint of what a calibrator does: its map and every number in it, whatever folder it came from."""
    module = calibrator.map
    sha = hashlib.sha256(to_json({"map": type(module).__name__, **module.spec()}).encode())
    for name, tensor in sorted(module.state_dict().items()):
        array = np.ascontiguousarray(tensor.cpu().numpy())
        sha.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return sha.hexdigest()


@dataclass(frozen=True)
class Identity:
    """What the embeddings of an index are.

    Attributes:
        recipe: The raw encoder's ``describe()``.
        calibrator: What a calibrator is called, with its parameters; empty for raw embeddings.
        digest: Fingerprint of the calibrator; empty for raw embeddings.
    """

    recipe: Mapping[str, Any]
    calibrator: str
    digest: str

    @classmethod
    def of(cls, encoder: SentenceEncoder) -> Self:
        """The identity of what an encoder, raw or calibrated, makes."""
        if not isinstance(encoder, CalibratedEncoder):
            return cls(encoder.describe(), "", "")
        name = encoder.describe()["calibrator"]
        return cls(encoder.encoder.describe(), name, calibrator_digest(encoder.calibrator))

    def require_recipe(self, given: "Identity", path: Path) -> None:
        """Refuse another encoder.

        Raises:
            DataError: If the raw embeddings would be others; the message names what differs, on both sides.
        """
        ours, theirs = self.recipe, given.recipe
        keys = [key for key in sorted({*ours, *theirs} - {*NAMES_ONLY}) if ours.get(key) != theirs.get(key)]
        if keys:
            held = ", ".join(f"{key} {ours.get(key)!r}" for key in keys)
            got = ", ".join(f"{key} {theirs.get(key)!r}" for key in keys)
            raise DataError(
                f"{path} holds embeddings by an encoder with {held}; this encoder has {got}. "
                "Open it with the encoder that it was built with, or build it again."
            )

    def require_calibrator(self, given: "Identity", path: Path) -> None:
        """Refuse another calibrator.

        Raises:
            DataError: If the embeddings went through another calibrator; both are named.
        """
        if self.digest != given.digest:
            raise DataError(
                f"{path} holds embeddings {self.spelled()}; this encoder's are {given.spelled()}. Open it with that "
                "calibrator, or calibrate it again (recalibrate): its raw embeddings are kept."
            )

    def spelled(self) -> str:
        """The calibrator in words: "calibrated by Whitening(n_components=None) (3fa21b90)"."""
        return f"calibrated by {self.calibrator} ({self.digest[:8]})" if self.digest else "as the encoder makes them"
