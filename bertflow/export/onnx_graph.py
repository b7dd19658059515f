"""One ONNX graph, from token ids to the calibrated embedding; onnxruntime alone runs it.

    input_ids, attention_mask  (batch, token)  --blocks, pooling, calibrator-->  sentence_embedding  (batch, dim)

Batch and length are free. Only the blocks that the pooling reads are in it. Token types are not an input: they are zero
for a sentence that stands alone. What was written is run by onnxruntime on shapes that the exporter did not see, and
refused where it differs from torch.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertflow.errors import DataError, MissingExtraError, UsageError
from bertflow.export.onnx_encoder import GRAPH, OUTPUT, graph_session
from bertflow.export.parts import Parts

CALIBRATOR = "calibrator"
"""The part of the graph behind the pooling, by the name of its module."""
TRACED = (2, 16)
"""Batch and length that the exporter sees."""
UNSEEN = ((1, 3), (3, 11), (9, 29), (5, 64))
"""Batches and lengths that the graph is checked on."""
TOLERANCE = 1e-4
"""Largest relative difference from torch that is accepted, of a row: some 100 times what is measured."""


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
        states = self.stack.read({"input_ids": input_ids, "attention_mask": attention_mask}, self.layers)
        if self.tokens == "pooler":
            assert states.pooler is not None, "the stack is loaded with the pooler for this pooling"
            pooled = states.pooler
        else:
            pooled = self.head(states.layers, input_ids, attention_mask)
        z: Tensor = self.calibrator(pooled)
        return z


def write_onnx(parts: Parts, folder: Path) -> float:
    """Write ``onnx/model.onnx`` into ``folder``.

    Returns:
        The largest relative difference from torch that was found.

    Raises:
        MissingExtraError: If onnx, onnxscript or onnxruntime is not installed.
        UsageError: If the encoder is not float32, which is all that onnxruntime's CPU kernels compute in.
        DataError: If the graph does not do what torch does.
    """
    require_onnx()
    if parts.dtype != "float32":
        raise UsageError(
            f"The target onnx needs an encoder in float32, this one is {parts.dtype}. Use --dtype float32."
        )
    graph = EmbeddingGraph(parts).eval()
    path = folder / GRAPH
    path.parent.mkdir()
    ids, mask = _inputs(parts, *TRACED)
    longest = parts.stack.longest_input()  # said, since the exporter finds it out otherwise, and starts again
    free = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("token", min=2, max=longest)}
    with quiet_exporter(), torch.no_grad():
        torch.onnx.export(
            graph,
            (ids, mask),
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
    """Refuse where the extra is missing.

    Raises:
        MissingExtraError: With the line that installs it.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError:
            raise MissingExtraError(package, "onnx") from None


def _inputs(parts: Parts, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Random tokens; row r is padded behind, by r tokens more than the row before."""
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    vocabulary = len(parts.checkpoint.tokenizer)
    ids = torch.randint(0, vocabulary, (batch, length), generator=generator)
    keep = (length - torch.arange(batch)).clamp(min=min(3, length))
    return ids, (torch.arange(length) < keep[:, None]).long()


def _check(graph: EmbeddingGraph, path: Path, parts: Parts) -> float:
    session, worst = graph_session(path), 0.0
    for batch, length in UNSEEN:
        ids, mask = _inputs(parts, batch, min(length, parts.max_length))
        with torch.no_grad():
            wanted = graph(ids, mask).numpy()
        try:
            got = session.run([OUTPUT], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]
        except Exception as error:  # onnxruntime's errors have no class of their own in common
            raise DataError(f"The ONNX graph does not take a batch of {batch} x {length} tokens: {error}") from error
        worst = max(worst, relative_difference(got, wanted))
    if not worst <= TOLERANCE:
        raise DataError(
            f"The ONNX graph differs from torch by {worst:.1e} of a row's length, where at most {TOLERANCE:g} was "
            "expected. It was not written; use the target sentence-transformers."
        )
    return worst


def relative_difference(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Largest distance of two rows, as a share of the wanted row's length; infinite where shapes differ."""
    if got.shape != wanted.shape:
        return float("inf")
    length = np.linalg.norm(wanted, axis=1).clip(min=np.finfo(np.float32).tiny)
    return float((np.linalg.norm(got - wanted, axis=1) / length).max())


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Exporter and quantizer report their steps on stdout, and warn about what they do themselves."""
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
