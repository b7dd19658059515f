"""``bertflow.export_encoder`` from Python."""

import json

import numpy as np
import pytest

import bertflow
from bertflow.errors import UnknownNameError, UsageError


def test_the_result_says_what_was_written(tiny_system, tmp_path):
    done = bertflow.export_encoder(tiny_system("mean", "whitening"), tmp_path / "out", "sentence-transformers")
    assert (done.target, done.ours, done.int8, done.commit) == ("sentence-transformers", (), None, "")
    assert done.facts["modules"] == ["Pooling", "Dense"]
    assert done.distance < 1e-5
    assert repr(done).startswith("<Exported: encoder   tiny-bert, mean, Whitening")
    assert json.loads(done.to_json())["folder"] == str(tmp_path / "out")


def test_prompts_of_both_roles_are_carried(tiny_bert, tmp_path):
    encoder = bertflow.TransformerEncoder(
        tiny_bert, prompt={"query": "the man : ", "document": "the cat : "}, device="cpu"
    )
    bertflow.export_encoder(encoder, tmp_path / "out", "sentence-transformers")
    model = bertflow.load_sentence_transformer(tmp_path / "out", device="cpu")
    texts = ["the dog runs", "a bird"]
    np.testing.assert_allclose(model.encode_query(texts), encoder.encode_query(texts), atol=1e-5)
    np.testing.assert_allclose(model.encode_document(texts), encoder.encode(texts), atol=1e-5)
    np.testing.assert_allclose(model.encode(texts), encoder.encode(texts), atol=1e-5)
    assert 'Queries need "the man : " in front' in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"target": "tf"}, UnknownNameError, "Unknown target 'tf'. Known: sentence-transformers, onnx, safetensors."),
        ({"target": "safetensors"}, UsageError, "The target safetensors is for a calibrated encoder, this one is raw."),
    ],
)
def test_what_is_not_possible_is_refused(tiny_system, tmp_path, options, kind, message):
    with pytest.raises(kind) as refused:
        bertflow.export_encoder(tiny_system("mean"), tmp_path / "out", **options)
    assert str(refused.value).startswith(message)
    assert not list(tmp_path.iterdir())
