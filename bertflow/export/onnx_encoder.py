"""An exported folder: its record, and its ONNX graph as a ``SentenceEncoder`` by onnxruntime and tokenizers.

    bertflow_export.json   encoder, weights, pooling, calibrator, prompt, longest sentence
    tokenizer.json         truncates and pads by default
    onnx/model.onnx        tokens -> sentence_embedding

The record tells one folder from another years later, and says how a sentence has to be prepared.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from bertflow.encoder.abstract import AbstractEncoder, Float32, Role
from bertflow.errors import DataError, MissingExtraError
from bertflow.files import write_json
from bertflow.records import read_record

RECORD = "bertflow_export.json"
FORMAT = 1
GRAPH = Path("onnx") / "model.onnx"
INT8 = Path("onnx") / "model_int8.onnx"
OUTPUT = "sentence_embedding"
BATCH = 32
"""Sentences of about equal length that are run together."""


class ExportRecord(TypedDict):
    """What is read of the record of an export."""

    format: Literal[1]
    target: str
    describe: dict[str, Any]
    dim: int
    facts: dict[str, Any]


def write_record(folder: Path, target: str, description: Mapping[str, Any], dim: int, facts: Mapping[str, Any]) -> None:
    """Write the record of an export.

    Args:
        folder: The export.
        target: A row of ``TARGETS``.
        description: ``describe()`` of the encoder.
        dim: Width of its embeddings.
        facts: What was measured or chosen while it was written.
    """
    versions = {name: version(name) for name in ("bertflow", "torch", "transformers")}
    record = {"target": target, "describe": dict(description), "dim": dim, "facts": dict(facts), "versions": versions}
    write_json(folder / RECORD, {"format": FORMAT, **record})


def read_export(folder: Path) -> ExportRecord:
    """Read the record of an export.

    Raises:
        DataError: If the folder holds none, or one of a later format.
    """
    if not (folder / RECORD).is_file():
        raise DataError(f"{folder} is not an exported encoder: it holds no {RECORD}. Write one with `bertflow export`.")
    return read_record(folder / RECORD, ExportRecord, "record of an export", "Export the encoder again.")


class OnnxEncoder(AbstractEncoder):
    """Embeds sentences with onnxruntime.

    Args:
        folder: A folder that ``bertflow export --target onnx`` wrote.
        graph: Which graph in it.

    Raises:
        MissingExtraError: If onnxruntime is not installed.
        DataError: If the folder is incomplete.
    """

    def __init__(self, folder: str | Path, graph: Path = GRAPH) -> None:
        from tokenizers import Tokenizer

        folder = Path(folder)
        self._record = read_export(folder)
        for path in (folder / graph, folder / "tokenizer.json"):
            if not path.is_file():
                raise DataError(f"{path} is missing from the ONNX folder. Export it again.")
        self._graph = graph
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._session = graph_session(folder / graph)
        described = self._record["describe"]
        self._prompts = {"document": described["prompt"], "query": described.get("query_prompt", described["prompt"])}
        self.dim = int(self._record["dim"])

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        found = np.empty((len(sentences), self.dim), np.float32)
        order = np.argsort([-len(sentence) for sentence in sentences], kind="stable")
        size = batch_size or BATCH
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            found[rows] = self.run([self._prompts[role] + sentences[row] for row in rows])
        return found

    def run(self, texts: list[str]) -> NDArray[np.float32]:
        """One batch, without the prompt and in the order given."""
        encoded = self._tokenizer.encode_batch(texts)
        inputs = {
            "input_ids": np.array([row.ids for row in encoded], np.int64),
            "attention_mask": np.array([row.attention_mask for row in encoded], np.int64),
        }
        embeddings: NDArray[np.float32] = self._session.run([OUTPUT], inputs)[0]
        return embeddings

    def describe(self) -> dict[str, Any]:
        """The exported encoder's description, and which graph computes it."""
        return {**self._record["describe"], "graph": self._graph.name}

    def fitted_hashes(self) -> NDArray[np.uint64] | None:
        """None: an export does not hold the text that it was fitted on."""
        return None


def graph_session(path: Path) -> Any:
    """An onnxruntime session on the CPU, without its warnings.

    Raises:
        MissingExtraError: If onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
