"""A calibrated encoder: an encoder, then a calibrator, used as one encoder.

    sentences -- encoder --> x (n, dim_in) -- calibrator --> z (n, dim)

As a folder it holds both, so that it works where neither the hub nor the text is at hand:

    bertflow.json   encoder/   calibrator/
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.saving import load_calibrator, write_calibrator
from bertflow.encoder.transformer import SentenceEncoder, TransformerEncoder
from bertflow.errors import DataError
from bertflow.files import atomic_folder, to_json, write_json
from bertflow.records import read_record

RECORD = "bertflow.json"
SAME = ("weights", "pooling", "layers", "prompt", "token_counts")
"""What must be equal between the encoder that a calibrator was fitted on and the one it is used with."""


@dataclass(frozen=True)
class CalibratedRecord:
    """What ``bertflow.json`` holds."""

    format: Literal[1]
    describe: dict[str, Any]


class CalibratedEncoder:
    """An encoder and a calibrator as one ``SentenceEncoder``.

    Args:
        encoder: Makes the raw embeddings.
        calibrator: Fitted on embeddings of this encoder.

    Raises:
        DataError: If the calibrator was fitted for another width, another encoder or another pooling.
    """

    def __init__(self, encoder: SentenceEncoder, calibrator: AbstractCalibrator) -> None:
        if calibrator.dim_in != encoder.dim:
            raise DataError(
                f"The calibrator expects embeddings of size {calibrator.dim_in}, the encoder makes {encoder.dim}. "
                "Were both made with the same encoder and pooling?"
            )
        _require_same_recipe(encoder, calibrator)
        self.encoder = encoder
        self.calibrator = calibrator

    @classmethod
    def fit(
        cls, encoder: SentenceEncoder, calibrator: AbstractCalibrator, sentences: list[str], progress: bool = False
    ) -> Self:
        """Fit ``calibrator`` to the distinct ``sentences`` as ``encoder`` embeds them, and pair the two."""
        return cls(encoder, calibrator.fit_sentences(encoder, sentences, progress=progress))

    @property
    def dim(self) -> int:
        """Width of the calibrated embeddings."""
        return self.calibrator.dim_out

    def encode(self, sentences: Sequence[str], progress: bool = False) -> NDArray[np.float32]:
        """Calibrated embeddings (n, dim), float32, in the order given."""
        return self.calibrate(self.encoder.encode(sentences, progress=progress))

    def calibrate(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Calibrate embeddings (n, dim_in) that the encoder made already."""
        if not len(x):
            return np.empty((0, self.dim), dtype=np.float32)
        return self.calibrator.transform(x).astype(np.float32, copy=False)

    def describe(self) -> dict[str, Any]:
        """The encoder's description, and which calibrator follows it."""
        parameters = ", ".join(f"{key}={value!r}" for key, value in self.calibrator.get_params().items())
        return {
            **self.encoder.describe(),
            "calibrator": f"{type(self.calibrator).__name__}({parameters})",
            "fitted_rows": self.calibrator.moments_.n,
        }

    def fitted_hashes(self) -> NDArray[np.uint64] | None:
        """Hashes of all text that encoder and calibrator were fitted on; None where some of it is unknown."""
        provenance = self.calibrator.provenance
        encoder_text, text = self.encoder.fitted_hashes(), provenance.text_hashes if provenance else None
        return None if encoder_text is None or text is None else np.union1d(encoder_text, text)

    def save(self, folder: str | Path) -> None:
        """Write encoder and calibrator as one folder, whole or not at all.

        Raises:
            DataError: If the encoder is of a kind that cannot write itself.
        """
        with atomic_folder(folder) as aside:
            self.write(aside)

    def write(self, folder: Path) -> None:
        """Write encoder and calibrator into a folder that someone else makes whole.

        Raises:
            DataError: If the encoder is of a kind that cannot write itself.
        """
        if not isinstance(self.encoder, TransformerEncoder):
            raise DataError(
                "Only a TransformerEncoder can be saved with its calibrator, "
                f"this one is a {type(self.encoder).__name__}. Save the calibrator alone with calibrator.save(folder)."
            )
        for part in ("encoder", "calibrator"):
            (folder / part).mkdir()
        self.encoder.write(folder / "encoder")
        write_calibrator(self.calibrator, folder / "calibrator")
        write_json(folder / RECORD, {"format": 1, "describe": self.describe()})

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Self:
        """Read a folder that ``save`` wrote; its embeddings are bit-identical on the same machine.

        Raises:
            DataError: If the folder is missing, incomplete or damaged.
        """
        folder = Path(folder)
        if not (folder / RECORD).is_file():
            raise DataError(
                f"{folder} is no calibrated encoder: it holds no {RECORD}. Give a folder that save() wrote."
            )
        read_record(folder / RECORD, CalibratedRecord, "calibrated encoder", "Save the encoder again.")
        return cls(TransformerEncoder(str(folder / "encoder"), device=device), load_calibrator(folder / "calibrator"))


def encode_systems(
    systems: Mapping[str, SentenceEncoder], sentences: Sequence[str], progress: bool = False
) -> dict[str, NDArray[np.float32]]:
    """Embed ``sentences`` by every system; systems whose encoders are alike share one pass.

    Returns:
        For each name, embeddings (n, dim) in the order of ``sentences``.
    """
    raw: dict[str, NDArray[np.float32]] = {}
    embeddings = {}
    for name, system in systems.items():
        encoder = system.encoder if isinstance(system, CalibratedEncoder) else system
        recipe = to_json(encoder.describe())
        if recipe not in raw:
            raw[recipe] = encoder.encode(sentences, progress=progress)
        embeddings[name] = system.calibrate(raw[recipe]) if isinstance(system, CalibratedEncoder) else raw[recipe]
    return embeddings


def _require_same_recipe(encoder: SentenceEncoder, calibrator: AbstractCalibrator) -> None:
    if calibrator.provenance is None:
        return
    fitted, used = calibrator.provenance.encoder, encoder.describe()
    different = [key for key in SAME if fitted.get(key) != used.get(key)]
    if different:
        raise DataError(
            f"The calibrator was fitted on {_named(fitted, different)}; this is {_named(used, different)}. "
            "Use the encoder it was fitted on, or fit again."
        )


def _named(description: Mapping[str, Any], different: Sequence[str]) -> str:
    """An encoder by its name, its pooling, and what makes it another."""
    facts = dict.fromkeys(("pooling", *different))
    return f"{description.get('encoder')} with " + ", ".join(f"{key} {description.get(key)!r}" for key in facts)
