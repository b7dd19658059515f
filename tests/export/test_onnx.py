"""One graph, run by onnxruntime: alone, on any shape, and equal to torch."""

import logging
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

import bertflow
from bertflow.data.pairs import Pairs
from bertflow.errors import DataError, MissingExtraError, UsageError
from bertflow.export import approximation, onnx_graph
from bertflow.export.onnx_encoder import GRAPH, INT8, OnnxEncoder
from bertflow.export.onnx_graph import quiet_exporter
from bertflow.export.targets import write_export

from .conftest import TEXTS

# Alone: numpy, tokenizers and onnxruntime, as the model card says.
ALONE = """
import sys
from pathlib import Path
import numpy as np, onnxruntime
from tokenizers import Tokenizer
folder, out, *texts = sys.argv[1:]
rows = Tokenizer.from_file(folder + "/tokenizer.json").encode_batch(texts)
session = onnxruntime.InferenceSession(folder + "/onnx/model.onnx")
inputs = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
np.save(out, session.run(["sentence_embedding"], {name: np.array(rows) for name, rows in inputs.items()})[0])
assert not {"torch", "transformers", "bertflow"} & sys.modules.keys(), sorted(sys.modules)
"""


@pytest.fixture(scope="module")
def exported(tiny_system, tmp_path_factory):
    """A flow on SIF pooling of an inner layer: the most that a graph has to hold."""
    system = tiny_system("sif(2)", "flow")
    return system, write_export(system, tmp_path_factory.mktemp("onnx") / "folder", "onnx").folder


@pytest.mark.slow
def test_it_needs_onnxruntime_alone(exported, tmp_path):
    system, folder = exported
    command = [sys.executable, "-c", ALONE, str(folder), str(tmp_path / "z.npy"), *TEXTS]
    subprocess.run(command, check=True, timeout=100)
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), system.encode(TEXTS), atol=1e-4)


@pytest.mark.slow
def test_sentence_embedding_is_the_one_output_of_any_batch_and_length(exported):
    session = onnxruntime.InferenceSession(str(exported[1] / GRAPH))
    (output,) = session.get_outputs()
    assert (output.name, output.shape) == ("sentence_embedding", ["batch", exported[0].dim])
    assert [(i.name, i.shape, i.type) for i in session.get_inputs()] == [
        ("input_ids", ["batch", "token"], "tensor(int64)"),
        ("attention_mask", ["batch", "token"], "tensor(int64)"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["cls", "last-token", "pooler", "denoised-mask(2)"])
def test_a_token_that_is_picked_is_picked_from_any_batch(tiny_system, tmp_path, pooling):
    system = tiny_system(pooling)
    found = OnnxEncoder(write_export(system, tmp_path / "out", "onnx").folder).encode(TEXTS)
    np.testing.assert_allclose(found, system.encode(TEXTS), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "calibrator"),
    [("mean", "two-band"), ("concat(0,3)", "blocks"), ("concat-sif(1,-1)", "blocks-of-bands")],
)
def test_bands_and_blocks_are_in_the_graph(tiny_system, tmp_path, pooling, calibrator):
    system = tiny_system(pooling, calibrator)
    found = OnnxEncoder(write_export(system, tmp_path / "out", "onnx").folder).encode(TEXTS)
    np.testing.assert_allclose(found, system.encode(TEXTS), atol=1e-4)


@pytest.mark.slow
def test_only_the_blocks_that_are_needed_are_in_it(exported):
    graph = onnx.load(exported[1] / GRAPH).graph
    assert [node.op_type for node in graph.node].count("Softmax") == 2  # one attention a block


@pytest.mark.slow
def test_our_own_reader_puts_the_prompt_in_front(tiny_system, exported):
    encoder = OnnxEncoder(exported[1])
    encoder._prompts = {"document": "the man : ", "query": "the dog : "}  # a second graph would be the same one
    np.testing.assert_allclose(
        encoder.encode(TEXTS), OnnxEncoder(exported[1]).encode([f"the man : {text}" for text in TEXTS]), atol=1e-5
    )
    np.testing.assert_allclose(
        encoder.encode_query(TEXTS), OnnxEncoder(exported[1]).encode([f"the dog : {text}" for text in TEXTS]), atol=1e-5
    )


@pytest.mark.slow
def test_our_own_reader_says_what_it_is(exported):
    encoder = OnnxEncoder(exported[1])
    assert encoder.describe() == {**exported[0].describe(), "graph": "model.onnx"}
    assert (encoder.dim, encoder.fitted_hashes()) == (exported[0].dim, None)


@pytest.mark.slow
def test_int8_keeps_the_calibrator_and_measures_its_loss(minilm, real_sentences, tmp_path, monkeypatch):
    encoder = bertflow.TransformerEncoder(minilm, pooling="mean(1,2)", device="cpu")  # random weights lose more
    flow = bertflow.FlowCalibrator(trainer={"max_steps": 3}).fit_sentences(encoder, real_sentences)
    folder = write_export(bertflow.CalibratedEncoder(encoder, flow), tmp_path / "folder", "onnx").folder
    pairs = Pairs("docstrings", tuple(TEXTS[2:4]), tuple(TEXTS[3:]), kind="retrieval")
    monkeypatch.setattr(approximation, "docstring_sentences", lambda: TEXTS)
    monkeypatch.setattr(approximation, "docstring_corpus", lambda **_: ([], pairs))
    loss = approximation.add_int8(folder)
    integers = {w.name for w in onnx.load(folder / INT8).graph.initializer if w.data_type == onnx.TensorProto.INT8}
    assert integers
    assert not [name for name in integers if "glow" in name]
    assert 0.9 < loss.min_cosine <= loss.mean_cosine < 1 - 1e-7
    assert (loss.sentences, loss.bytes_int8) == (len(TEXTS), (folder / INT8).stat().st_size)


@pytest.mark.slow
def test_a_graph_that_differs_from_torch_is_not_written(exported, tiny_system, tmp_path, monkeypatch):
    system = tiny_system("sif(2)", "flow")

    def another(model, args, path, **_):  # as an exporter that drops the calibrator would
        onnx.save(onnx.load(exported[1] / GRAPH), path)

    monkeypatch.setattr("torch.onnx.export", another)
    monkeypatch.setattr(onnx_graph, "TOLERANCE", 0.0)
    with pytest.raises(DataError, match=r"differs from torch by .* It was not written"):
        write_export(system, tmp_path / "out", "onnx")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_said_with_its_extra(tiny_system, tmp_path, monkeypatch, refusal):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert refusal(lambda: write_export(tiny_system("mean"), tmp_path / "out", "onnx"), error=MissingExtraError) == (
        "This needs the package onnxscript. Install it with: pip install 'bertflow[onnx]'"
    )
    assert not list(tmp_path.iterdir())


def test_lines_are_said_once_where_a_library_logs_to_everybody(monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    with quiet_exporter():
        logging.info("as onnxruntime does")  # puts a handler there, unless there is one
    assert logging.root.handlers == []


def test_half_precision_is_refused(tiny_system, tmp_path, refusal):
    assert refusal(
        lambda: write_export(tiny_system("mean", dtype="bfloat16"), tmp_path / "out", "onnx"), error=UsageError
    ) == ("The target onnx needs an encoder in float32, this one is bfloat16. Use --dtype float32.")
