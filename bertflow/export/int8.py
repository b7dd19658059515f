"""The int8 variant of an ONNX graph: smaller, faster on a CPU, and approximate; so its loss is measured and written.

    onnx/model_int8.onnx    weights of the blocks in int8, activations quantized as they come
    onnx/model_int8.json    cosine to the float32 graph, file sizes, and what else was measured

The calibrator stays in float32: it is small, and it would turn rounding into scores.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.errors import DataError
from bertflow.export.onnx_encoder import GRAPH, INT8, OnnxEncoder
from bertflow.export.onnx_graph import CALIBRATOR, quiet_exporter, require_onnx
from bertflow.files import write_json
from bertflow.similarity import SIMILARITIES

SCOPES = "pkg.torch.onnx.name_scopes"
"""Where the exporter notes the module that a node came from."""
PRODUCT = "_MatMul"
"""What the quantizer adds to the name of a Gemm when it takes it apart, before it looks for names to leave alone."""


@dataclass(frozen=True)
class Int8Loss:
    """What int8 costs.

    Attributes:
        mean_cosine: Of the int8 and the float32 embedding of one sentence, over the sentences.
        min_cosine: The smallest of them.
        sentences: How many.
        bytes_float32: Size of the float32 graph.
        bytes_int8: Size of the int8 graph.
    """

    mean_cosine: float
    min_cosine: float
    sentences: int
    bytes_float32: int
    bytes_int8: int

    def summary(self) -> str:
        """In one line."""
        return (
            f"cosine to float32 {self.mean_cosine:.4f} on average and {self.min_cosine:.4f} at worst, on "
            f"{self.sentences} sentences; {self.bytes_int8 / 1e6:.1f} MB instead of {self.bytes_float32 / 1e6:.1f} MB"
        )


def write_int8(folder: Path) -> None:
    """Quantize ``onnx/model.onnx`` of an export.

    Raises:
        MissingExtraError: If onnx or onnxruntime is not installed.
        DataError: If the graph cannot be quantized.
    """
    require_onnx()
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(str(folder / GRAPH))
    # The shapes that the exporter noted are not those that the quantizer infers, and it trips over the difference.
    del graph.graph.value_info[:]
    kept = [name for node in graph.graph.node if _behind_the_pooling(node) for name in (node.name, node.name + PRODUCT)]
    try:
        with quiet_exporter():
            quantize_dynamic(
                graph,
                str(folder / INT8),
                weight_type=QuantType.QInt8,
                per_channel=True,  # with one scale for a whole matrix cosines to float32 fall to 0.93
                nodes_to_exclude=kept,
                op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            )
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError) as error:
        raise DataError(f"{folder / GRAPH} could not be quantized: {error}. Leave out --int8.") from error


def measure_int8(folder: Path, sentences: Sequence[str]) -> Int8Loss:
    """Compare the two graphs of an export on some sentences."""
    x, y = (OnnxEncoder(folder, graph).encode(sentences) for graph in (GRAPH, INT8))
    cosines = SIMILARITIES["cosine"].paired(x.astype(np.float64), y.astype(np.float64))
    sizes = [(folder / graph).stat().st_size for graph in (GRAPH, INT8)]
    return Int8Loss(float(cosines.mean()), float(cosines.min()), len(sentences), *sizes)


def write_loss(folder: Path, loss: Int8Loss, scores: dict[str, Any]) -> None:
    """Write the loss beside the graph.

    Args:
        folder: The export.
        loss: What was measured without labels.
        scores: What was measured with labels: task and metric -> float32, int8.
    """
    write_json((folder / INT8).with_suffix(".json"), {**asdict(loss), "scores": scores})


def _behind_the_pooling(node: Any) -> bool:
    scopes = {entry.key: entry.value for entry in node.metadata_props}.get(SCOPES, "")
    return f"'{CALIBRATOR}" in scopes
