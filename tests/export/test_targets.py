"""``bertflow.export_encoder`` from Python."""

import json

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
