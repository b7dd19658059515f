"""An encoder that was exported as an ONNX graph, run by onnxruntime: no torch model is made.

bertflow_export.json   encoder, pooling, prompts and width
tokenizer.json         truncates and pads by default
onnx/model.onnx        the graph (``bertflow.export.onnx_graph``)
"""

from pathlib import Path
from typing import Any, Literal, NotRequired, cast

import numpy as np
from tokenizers import Tokenizer
from typing_extensions import TypedDict

from bertflow.array_types import Float32, Hashes
from bertflow.data.corpus import chunks
from bertflow.encoder.abstract import AbstractEncoder, Role
from bertflow.encoder.architecture import OneLine
from bertflow.encoder.folders import recorded_prompts
from bertflow.errors import DataError, needs
from bertflow.places import require_files
from bertflow.records import EXPORT, ExportFiles, Size, read_record, require_export

GRAPH = Path("onnx") / "model.onnx"
INT8 = Path("onnx") / "model_int8.onnx"
OUTPUT = "sentence_embedding"
QUERY = "query"
"""Name of the input that says that a batch holds queries."""
BATCH = 32
"""Sentences of about equal length that are run together."""


class ExportedEncoder(TypedDict):
    """What of an encoder's ``describe()`` is read."""

    encoder: str
    pooling: str
    prompt: str
    query_prompt: NotRequired[str]


class ExportRecord(ExportFiles):
    """What is read of the record of an export."""

    format: Literal[1]
    describe: ExportedEncoder
    dim: Size
    role: Role


def read_export(folder: Path) -> ExportRecord:
    """Read the record of an export.

    Raises:
        DataError: If the folder holds none, or one of a later format.
    """
    if not (folder / EXPORT).is_file():
        raise DataError(f"{folder} is not an exported encoder: it holds no {EXPORT}. Write one with `bertflow export`.")
    return read_record(folder / EXPORT, ExportRecord, "record of an export", "Export the encoder again.")


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
        folder = Path(folder)
        self._record = read_export(folder)
        require_files(folder / graph, folder / "tokenizer.json", parts=True)
        require_export(folder)
        self._graph = graph
        with OneLine(f"{folder / 'tokenizer.json'} is not a tokenizer"):
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        with OneLine(f"{folder / graph} is not a graph that onnxruntime can run"):
            self._session = open_session(folder / graph)
        self._prompts = recorded_prompts(self._record["describe"])
        self._roles = QUERY in {one.name for one in self._session.get_overridable_initializers()}
        self.dim, self.role = int(self._record["dim"]), self._record["role"]

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        found = np.empty((len(sentences), self.dim), np.float32)
        order = np.argsort([-len(sentence) for sentence in sentences], kind="stable")
        for rows in chunks(order, batch_size or BATCH):
            found[rows] = self.run([self._prompts[role] + sentences[row] for row in rows], role)
        return found

    @property
    def has_roles(self) -> bool:
        """Whether a query has another embedding than a document of the same words."""
        return self._roles or super().has_roles

    def run(self, texts: list[str], role: Role = "document") -> Float32:
        """One batch, without the prompt and in the order given."""
        with OneLine("The tokenizer of the graph cannot be run"):
            encoded = self._tokenizer.encode_batch(texts)
        inputs = {
            "input_ids": np.array([row.ids for row in encoded], np.int64),
            "attention_mask": np.array([row.attention_mask for row in encoded], np.int64),
            **({QUERY: np.array([role == "query"], np.float32)} if self._roles else {}),
        }
        with OneLine(f"The graph {self._graph} cannot be run"):
            found = cast(Float32, self._session.run([OUTPUT], inputs)[0])
        if found.shape != (len(texts), self.dim):
            raise DataError(
                f"The graph {self._graph} should give {(len(texts), self.dim)} numbers, but gave {found.shape}. "
                "Export the encoder again."
            )
        return found

    def describe(self) -> dict[str, Any]:
        """The exported encoder's description, and which graph computes it."""
        return {**self._record["describe"], "graph": self._graph.name}

    def fitted_hashes(self) -> Hashes | None:
        """None: an export does not hold the text that it was fitted on."""
        return None


def open_session(path: Path) -> Any:
    """An onnxruntime session on the CPU, without its warnings."""
    with needs("onnxruntime", "onnx"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
