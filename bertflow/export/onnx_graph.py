"""The ONNX export: one graph, from token ids to the calibrated embedding.

    onnx/model.onnx        input_ids, attention_mask (batch, token) -> sentence_embedding (batch, dim)
                           where queries have a mean of their own: query (1,), 1 for queries, 0 where it is not given

The graph needs nothing but onnxruntime. Batch and length are free. It holds only the blocks that the pooling reads.
Token types are not an input: they are zero for a sentence that stands alone. The graph is run by onnxruntime on shapes
that the exporter did not see, and refused if it differs from torch.

Its int8 variant is smaller, faster on a CPU, and approximate; ``approximation.py`` measures its loss. The calibrator
stays in float32: it is small, and in int8 it would turn rounding into scores.
"""

import contextlib
import io
import logging
import shutil
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertflow.encoder.architecture import longest_input
from bertflow.encoder.model import POOLER
from bertflow.errors import DataError, UsageError, needs
from bertflow.export.golden import distances
from bertflow.export.onnx_encoder import GRAPH, INT8, OUTPUT, QUERY, open_session
from bertflow.export.parts import Parts
from bertflow.maps import gap_of, of_role
from bertflow.progress import at_level

CALIBRATOR_SCOPE = "calibrator"
"""The part of the graph after the pooling, by the name of its module."""
TRACED = (2, 16)
"""Batch and length that the exporter sees."""
UNSEEN = ((1, 3), (3, 11), (9, 29), (5, 64))
"""Batches and lengths that the graph is checked on."""
TOLERANCE = 1e-4
"""Largest accepted difference from torch, as a share of a row's length; about 100 times what is measured."""
SCOPES = "pkg.torch.onnx.name_scopes"
"""Key under which the exporter notes the module that a node came from."""
PRODUCT = "_MatMul"
"""Suffix that the quantizer adds to the name of a Gemm that it splits, before it looks for names to leave alone."""


class EmbeddingGraph(nn.Module):
    """Tokens -> calibrated embedding, as one module."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.stack, self.head, self.tokens = parts.stack, parts.head(), parts.pooling.tokens
        self.model = parts.stack.model
        self.layers = sorted(set(parts.pooling.layers))
        self.calibrator: Any = nn.Identity() if parts.map is None else parts.map
        self.queries = parts.given.role == "query"

    def forward(self, input_ids: Tensor, attention_mask: Tensor, query: Tensor | None = None) -> Tensor:
        """(batch, token) twice, and (1,) where there are roles -> (batch, dim), float32."""
        states = self.stack.read(input_ids, attention_mask, self.layers)
        pooled = states[POOLER] if self.tokens == "pooler" else self.head(states, input_ids, attention_mask)
        if query is None:
            return of_role(self.calibrator, self.queries)(pooled)
        return cast(Tensor, self.calibrator(pooled, query))


def write_onnx(parts: Parts, folder: Path, layout: str) -> dict[str, Any]:
    """Write ``onnx/model.onnx``, the tokenizer and the model's config into ``folder``; there is one layout.

    Returns:
        The number of blocks, and the largest difference from torch that was found, as a share of a row's length.

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
    longest = longest_input(parts.stack.model)  # given, since the exporter otherwise finds it out and starts again
    free = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("token", min=2, max=longest)}
    roles = {} if parts.map is None or gap_of(parts.map) is None else {QUERY: torch.zeros(1)}
    with quiet_exporter(), torch.no_grad():
        torch.onnx.export(
            graph,
            (*_inputs(parts, *TRACED), *roles.values()),
            str(path),
            input_names=["input_ids", "attention_mask", *roles],
            output_names=[OUTPUT],
            dynamic_shapes=(free, free, *[None for _ in roles]),
            dynamo=True,
            external_data=False,
            optimize=True,
            verbose=False,
        )
    if roles:  # an input with a value of its own need not be given
        import onnx

        written = onnx.load(str(path))
        written.graph.initializer.append(onnx.numpy_helper.from_array(np.array([graph.queries], np.float32), QUERY))
        onnx.save(written, str(path))
    asked = ([], [torch.zeros(1)], [torch.ones(1)])[: 3 if roles else 1]
    difference = max(_check(graph, path, parts, *query) for query in asked)
    parts.save_tokenizer(folder)
    shutil.copyfile(parts.files / "config.json", folder / "config.json")  # servers read the model's type from it
    return {"blocks": parts.depth, "largest_difference_from_torch": difference}


def require_onnx() -> None:
    """Check that the extra is installed.

    Raises:
        MissingExtraError: With the line that installs it.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        with needs(package, "onnx"):
            import_module(package)


def _inputs(parts: Parts, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Random tokens; each row is padded on the right by one token more than the row before."""
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    ids = torch.randint(0, len(parts.checkpoint.tokenizer), (batch, length), generator=generator)
    keep = (length - torch.arange(batch)).clamp(min=min(3, length))
    return ids, (torch.arange(length) < keep[:, None]).long()


def _check(graph: EmbeddingGraph, path: Path, parts: Parts, *query: Tensor) -> float:
    session, found = open_session(path), []
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    refusals = (state.Fail, state.InvalidArgument, state.NotImplemented, state.RuntimeException)
    for batch, length in UNSEEN:
        ids, mask = _inputs(parts, batch, min(length, parts.max_length))
        with torch.no_grad():
            wanted = graph(ids, mask, *query).numpy()
        named = zip(("input_ids", "attention_mask", QUERY), (ids, mask, *query), strict=False)
        try:
            got = session.run([OUTPUT], {name: tensor.numpy() for name, tensor in named})[0]
        except refusals as error:
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
    loud = at_level(logging.ERROR, "", "torch.onnx", "onnxscript", "onnx_ir")
    kept, logging.root.handlers = logging.root.handlers, [logging.NullHandler()]  # else they put one there, for all
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), loud:
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.handlers = kept


def write_int8(folder: Path) -> None:
    """Write ``onnx/model_int8.onnx``: weights of the blocks in int8, activations quantized as they come.

    Raises:
        DataError: If the graph cannot be quantized.
    """
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
