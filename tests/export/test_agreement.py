"""All roads agree: bertflow, sentence-transformers and onnxruntime give one answer, for 200 real sentences.

    system  --export-->  folder  --a road opens it-->  sentences -> (raw embeddings, calibrated ones)

A road is a row of ROADS. To add one (a server, say), write a function that takes the system and a scratch folder, and
gives what embeds sentences; None in the place of the raw embeddings where a road does not show them.

Raw embeddings agree within 1e-5; calibrated ones in direction, and within ten times of what is changed by another
batching alone: a sentence by itself, in place of one among others of its length.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from sentence_transformers import SentenceTransformer

import bertflow
from bertflow.affine import AffineMap
from bertflow.export.onnx_encoder import GRAPH, OnnxEncoder
from bertflow.export.onnx_graph import in_calibrator
from bertflow.export.st_folder import load_sentence_transformer
from bertflow.export.targets import write_export
from bertflow.flow.glow import FlowMap

pytestmark = pytest.mark.slow
POOLINGS = ("mean", "cls", "first-last-avg", "sif")
CALIBRATORS = {
    "whitening": (AffineMap, lambda: bertflow.Whitening()),
    "flow": (FlowMap, lambda: bertflow.FlowCalibrator("paper-text", trainer={"max_steps": 60, "accelerator": "cpu"})),
}


def sentence_transformers_road(system, folder):
    folder = write_export(system, folder / "st", "sentence-transformers").folder
    model = load_sentence_transformer(folder, device="cpu")
    raw = SentenceTransformer(modules=list(model)[:-1], device="cpu")
    return lambda sentences: (raw.encode(sentences), model.encode(sentences))


def onnx_road(system, folder):
    encoder = OnnxEncoder(write_export(system, folder / "onnx", "onnx").folder)
    graph = onnx.load(folder / "onnx" / GRAPH)
    calibrating = [node for node in graph.graph.node if in_calibrator(node)]
    weights = {weight.name for weight in graph.graph.initializer}
    pooled = next(name for name in calibrating[0].input if name not in weights)
    graph.graph.output.append(onnx.helper.make_tensor_value_info(pooled, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(graph.SerializeToString())

    def embed(sentences):
        rows = encoder._tokenizer.encode_batch(list(sentences))
        inputs = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
        (raw,) = session.run([pooled], {name: np.array(values, np.int64) for name, values in inputs.items()})
        return raw, encoder.encode(sentences)

    return embed


ROADS = {"sentence-transformers": sentence_transformers_road, "onnxruntime": onnx_road}


@pytest.fixture(scope="module")
def sentences(real_sentences):
    """200 to compare on, and others to fit on."""
    return real_sentences[::5], [sentence for row, sentence in enumerate(real_sentences) if row % 5]


@pytest.fixture(scope="module", params=[(p, c) for p in POOLINGS for c in CALIBRATORS], ids="+".join)
def world(request, minilm, sentences):
    """A system, its raw and calibrated embeddings, and how far another batching moves both."""
    pooling, calibrator = request.param
    compared, fitted = sentences
    encoder = bertflow.TransformerEncoder(minilm, pooling=pooling, device="cpu")
    if pooling == "sif":
        encoder.count_tokens(fitted)
    kind, make = CALIBRATORS[calibrator]
    system = bertflow.CalibratedEncoder(encoder, make().fit_sentences(encoder, fitted))
    assert isinstance(system.calibrator.map, kind)
    x = encoder.encode(compared)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in compared])
    z = system.calibrate(x)
    return system, compared, x, z, np.abs(system.calibrate(alone) - z).max()


def cosines(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("road", ROADS)
def test_all_roads_agree(world, road, tmp_path):
    system, compared, x, z, rebatched = world
    raw, found = ROADS[road](system, tmp_path)(compared)
    assert raw is None or np.abs(raw - x).max() < 1e-5
    assert cosines(found, z).min() >= 1 - 1e-6
    assert np.abs(found - z).max() <= 10 * rebatched
