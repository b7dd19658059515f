"""An exported ONNX folder as a ``SentenceEncoder``: onnxruntime and tokenizers, no torch.

bertflow_export.json   what it is: pooling, calibrator, prompt, longest sentence
tokenizer.json         cuts and pads by itself
onnx/model.onnx        tokens -> sentence_embedding
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError, MissingExtraError
from bertflow.export.record import read_record

GRAPH = Path("onnx") / "model.onnx"
INT8 = Path("onnx") / "model_int8.onnx"
OUTPUT = "sentence_embedding"
BATCH = 32
"""Sentences of about equal length that are run together."""


class OnnxEncoder:
    """Embeds sentences with onnxruntime.

    Args:
        folder: What ``bertflow export --target onnx`` wrote.
        graph: Which graph in it.

    Raises:
        MissingExtraError: If onnxruntime is not installed.
        DataError: If the folder is incomplete.
    """

    def __init__(self, folder: str | Path, graph: Path = GRAPH) -> None:
        from tokenizers import Tokenizer

        folder = Path(folder)
        self._record = read_record(folder)
        for path in (folder / graph, folder / "tokenizer.json"):
            if not path.is_file():
                raise DataError(f"{path} is missing from the ONNX folder. Export it again.")
        self._graph = graph
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._session = graph_session(folder / graph)
        self._prompt = str(self._record["describe"]["prompt"])
        self.dim = int(self._record["dim"])

    def encode(self, sentences: Sequence[str], progress: bool = False) -> NDArray[np.float32]:
        """Embeddings (n, dim), float32, in the order given."""
        found = np.empty((len(sentences), self.dim), np.float32)
        order = np.argsort([-len(sentence) for sentence in sentences], kind="stable")
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            found[rows] = self.run([self._prompt + sentences[row] for row in rows])
        return found

    def run(self, texts: list[str]) -> NDArray[np.float32]:
        """One batch as it stands, without the prompt."""
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
        """The text it was fitted on is not in the export: unknown."""
        return None


def graph_session(path: Path) -> Any:
    """An onnxruntime session on the CPU, that keeps its warnings to itself.

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
