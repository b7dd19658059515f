"""What an encoder was taught: the labels it was fine-tuned on, and their text.

A score on pairs whose labels were learned says nothing, and one on sentences that stood there says less. So a
fine-tuned encoder keeps both beside its weights: the names of the labelled data, which the evaluation refuses where
they hold the scored labels, and the hashes of its sentences, which count as seen.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertflow.encoder.folders import RECORD_FILE
from bertflow.errors import DataError
from bertflow.files import atomic_folder, write_json
from bertflow.records import read_record

if TYPE_CHECKING:
    from bertflow.encoder.transformer import TransformerEncoder

HASHES_FILE = "labelled_text.safetensors"
KEYS = ("labels", "tuned")
"""Keys of the record of a fine-tuned encoder."""


@dataclass(frozen=True)
class Supervision:
    """Labels that an encoder was fine-tuned on.

    Attributes:
        labels: Names of the labelled data: tasks, or files; of all stages, where it was fine-tuned more than once.
        tuned: How, in the last stage; ready for JSON.
        text_hashes: Hashes (``bertflow.text_keys``) of both sides of all labelled pairs.
    """

    labels: tuple[str, ...]
    tuned: Mapping[str, Any]
    text_hashes: NDArray[np.uint64]

    def after(self, earlier: "Supervision | None") -> "Supervision":
        """This stage on top of an earlier one: nothing that was seen is forgotten."""
        if earlier is None:
            return self
        labels = tuple(dict.fromkeys((*earlier.labels, *self.labels)))
        return Supervision(labels, self.tuned, np.union1d(earlier.text_hashes, self.text_hashes))

    def describe(self) -> dict[str, Any]:
        """What an encoder's ``describe()`` says of it."""
        return {"labels": list(self.labels), "tuned": dict(self.tuned)}

    def write(self, folder: Path) -> None:
        """Write the hashes into a saved encoder's folder; the rest stands in its record."""
        save_file({"text_hashes": self.text_hashes}, folder / HASHES_FILE)

    @classmethod
    def read(cls, folder: Path, record: Mapping[str, Any]) -> "Supervision | None":
        """What stands in a saved encoder's folder; None if it was not fine-tuned.

        Raises:
            DataError: If the hashes are missing or damaged.
        """
        if not set(KEYS) <= record.keys():
            return None
        path = folder / HASHES_FILE
        try:
            hashes = load_file(path)["text_hashes"]
        except (OSError, SafetensorError, KeyError) as error:
            raise DataError(
                f"{path} should hold the text of the labels {', '.join(record['labels'])}, but: {error}. "
                "Copy the whole folder, or fine-tune again."
            ) from error
        return cls(tuple(record["labels"]), record["tuned"], hashes)


def save_tuned(encoder: "TransformerEncoder", folder: str | Path, stage: Supervision) -> None:
    """Write an encoder whose weights were changed: under its own name and weight hash, with what it was taught.

    Args:
        encoder: Its model was trained in place.
        folder: A folder that ``TransformerEncoder(folder)`` opens; whole or not at all.
        stage: What it was trained on.
    """
    supervision = stage.after(encoder.supervision)
    name = Path(folder).resolve()
    with atomic_folder(folder) as aside:
        encoder.write(aside)
        supervision.write(aside)
        record = read_record(aside / RECORD_FILE, dict[str, Any])
        # A folder called "encoder" is part of a run, which is what people will know it by.
        record["encoder"] = name.parent.name if name.name == "encoder" else name.name
        write_json(aside / RECORD_FILE, {**record, "weights": _hash_model(aside), **supervision.describe()})


def _hash_model(folder: Path) -> str:
    """SHA-256 over the model's files in name order; a saved encoder's folder has other safetensors beside them."""
    sha = hashlib.sha256()
    for path in sorted(folder.glob("model*.safetensors")):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()
