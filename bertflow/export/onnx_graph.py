"""One ONNX graph, from token ids to the calibrated embedding; needs nothing but onnxruntime to run.

    input_ids, attention_mask  (batch, token)  --blocks, pooling, calibrator-->  sentence_embedding  (batch, dim)

Batch and length are free. The graph holds only the blocks that the pooling reads. Token types are not an input: they
are zero for a sentence that stands alone. The graph is run by onnxruntime on shapes that the exporter did not see, and
refused if it differs from torch.

Its int8 variant is smaller, faster on a CPU, and approximate; its loss is measured and written beside it. The
calibrator stays in float32: it is small, and in int8 it would turn rounding into scores.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertflow.encoder.model import POOLER
from bertflow.errors import DataError, MissingExtraError, UsageError
from bertflow.export.diagnosis import distances
from bertflow.export.onnx_encoder import GRAPH, INT8, OUTPUT, OnnxEncoder, graph_session
from bertflow.export.parts import Parts
from bertflow.files import write_json
from bertflow.similarity import SIMILARITIES

CALIBRATOR_SCOPE = "calibrator"
"""The part of the graph after the pooling, by the name of its module."""
TRACED = (2, 16)
"""Batch and length that the exporter sees."""
UNSEEN = ((1, 3), (3, 11), (9, 29), (5, 64))
"""Batches and lengths that the graph is checked on."""
TOLERANCE = 1e-4
"""Largest accepted difference from torch, as a share of a row's length; about 100 times what is measured."""
SCOPES = "pkg.torch.onnx.name_scopes"
"""Where the exporter notes the module that a node came from."""
PRODUCT = "_MatMul"
"""Suffix that the quantizer adds to the name of a Gemm that it splits, before it looks for names to leave alone."""


class EmbeddingGraph(nn.Module):
    """Tokens -> calibrated embedding, as one module."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.stack, self.head, self.tokens = parts.stack, parts.head(), parts.pooling.tokens
        self.model = parts.stack.model
        self.layers = sorted(set(parts.layers))
        self.calibrator = nn.Identity() if parts.map is None else parts.map

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(batch, token) twice -> (batch, dim), float32."""
        states = self.stack.read(input_ids, attention_mask, self.layers)
        pooler = self.tokens == "pooler"
        z: Tensor = self.calibrator(states[POOLER] if pooler else self.head(states, input_ids, attention_mask))
        return z


def write_onnx(parts: Parts, folder: Path) -> float:
    """Write ``onnx/model.onnx`` into ``folder``.

    Returns:
        The largest difference from torch that was found, as a share of a row's length.

    Raises:
        MissingExtraError: If onnx, onnxscript or onnxruntime is not installed.
        UsageError: If the encoder is not float32, the only type that onnxruntime's CPU kernels compute in.
        DataError: If the graph does not compute what torch computes.
    """
    require_onnx()
    if parts.dtype != "float32":
        raise UsageError(
            f"The target onnx needs an encoder in float32, this one is {parts.dtype}. Use --dtype float32."
        )
    graph = EmbeddingGraph(parts).eval()
    path = folder / GRAPH
    path.parent.mkdir()
    longest = parts.stack.longest_input()  # given, since the exporter otherwise finds it out and starts again
    free = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("token", min=2, max=longest)}
    with quiet_exporter(), torch.no_grad():
        torch.onnx.export(
            graph,
            _inputs(parts, *TRACED),
            str(path),
            input_names=["input_ids", "attention_mask"],
            output_names=[OUTPUT],
            dynamic_shapes=(free, free),
            dynamo=True,
            external_data=False,
            optimize=True,
            verbose=False,
        )
    return _check(graph, path, parts)


def require_onnx() -> None:
    """Check that the extra is installed.

    Raises:
        MissingExtraError: With the line that installs it.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtraError(package, "onnx") from None


def _inputs(parts: Parts, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Random tokens; each row is padded on the right by one token more than the row before."""
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    vocabulary = len(parts.checkpoint.tokenizer)
    ids = torch.randint(0, vocabulary, (batch, length), generator=generator)
    keep = (length - torch.arange(batch)).clamp(min=min(3, length))
    return ids, (torch.arange(length) < keep[:, None]).long()


def _check(graph: EmbeddingGraph, path: Path, parts: Parts) -> float:
    session, found = graph_session(path), []
    for batch, length in UNSEEN:
        ids, mask = _inputs(parts, batch, min(length, parts.max_length))
        with torch.no_grad():
            wanted = graph(ids, mask).numpy()
        try:
            got = session.run([OUTPUT], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]
        except Exception as error:  # onnxruntime's errors have no class in common
            raise DataError(f"The ONNX graph does not take a batch of {batch} x {length} tokens: {error}") from error
        found.append(distances(got, wanted).max())
    worst = float(np.max(found))  # NaN stays NaN
    if not worst <= TOLERANCE:
        raise DataError(
            f"The ONNX graph differs from torch by {worst:.1e} of a row's length, where at most {TOLERANCE:g} was "
            "expected. It was not written; use the target sentence-transformers."
        )
    return worst


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporter and the quantizer, which print their steps and warn about what they do themselves."""
    levels = {name: logging.getLogger(name).level for name in ("", "torch.onnx", "onnxscript", "onnx_ir")}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@dataclass(frozen=True)
class Int8Loss:
    """What int8 costs.

    Attributes:
        mean_cosine: Mean cosine of the int8 and the float32 embedding of a sentence.
        min_cosine: The smallest of these cosines.
        sentences: How many sentences were compared.
        bytes_float32: Size of the float32 graph.
        bytes_int8: Size of the int8 graph.
        scores: What was measured with labels: task and metric -> ``float32`` and ``int8``.
    """

    mean_cosine: float
    min_cosine: float
    sentences: int
    bytes_float32: int
    bytes_int8: int
    scores: Mapping[str, Mapping[str, float]]

    def __str__(self) -> str:
        """One line."""
        scores = [
            f"; {name} {100 * row['float32']:.2f} -> {100 * row['int8']:.2f}" for name, row in self.scores.items()
        ]
        return (
            f"cosine to float32 {self.mean_cosine:.4f} on average and {self.min_cosine:.4f} at worst, on "
            f"{self.sentences} sentences; {self.bytes_int8 / 1e6:.1f} MB instead of {self.bytes_float32 / 1e6:.1f} MB"
        ) + "".join(scores)


def write_int8(folder: Path) -> None:
    """Write ``onnx/model_int8.onnx``: weights of the blocks in int8, activations quantized as they come.

    Raises:
        MissingExtraError: If onnx or onnxruntime is not installed.
        DataError: If the graph cannot be quantized.
    """
    require_onnx()
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(str(folder / GRAPH))
    # The shapes that the exporter noted are not those that the quantizer infers, and it stops at the difference.
    del graph.graph.value_info[:]
    kept = [name for node in graph.graph.node if in_calibrator(node) for name in (node.name, node.name + PRODUCT)]
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


def in_calibrator(node: Any) -> bool:
    """Whether a node of the graph belongs to the calibrator."""
    scopes = {entry.key: entry.value for entry in node.metadata_props}.get(SCOPES, "")
    return f"'{CALIBRATOR_SCOPE}" in scopes


def write_loss(folder: Path, sentences: Sequence[str], scores: Mapping[str, Mapping[str, float]]) -> Int8Loss:
    """Compare the two graphs of an export on some sentences, and write ``onnx/model_int8.json``.

    Args:
        folder: The export.
        sentences: Text to compare on.
        scores: What was measured with labels: task and metric -> ``float32`` and ``int8``.
    """
    x, y = (OnnxEncoder(folder, graph).encode(sentences) for graph in (GRAPH, INT8))
    cosines = SIMILARITIES["cosine"].paired(x.astype(np.float64), y.astype(np.float64))
    before, after = ((folder / graph).stat().st_size for graph in (GRAPH, INT8))
    loss = Int8Loss(float(cosines.mean()), float(cosines.min()), len(sentences), before, after, scores)
    write_json((folder / INT8).with_suffix(".json"), asdict(loss))
    return loss
