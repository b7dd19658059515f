"""``bertflow.export_encoder`` from Python."""

import json

import numpy as np
import pytest

import bertflow
from bertflow.errors import UnknownNameError, UsageError
from bertflow.records import read_record


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
def test_what_is_not_possible_is_refused(tiny_system, tmp_path, options, kind, message, refusal):
    assert refusal(bertflow.export_encoder, tiny_system("mean"), tmp_path / "out", error=kind, **options).startswith(
        message
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("pool", "calibrator", "exact"), [("mean", None, True), ("mean", "whitening", True), ("max", "whitening", False)]
)
def test_chunks_are_carried_as_a_recipe(tiny_bert, tiny_text, tmp_path, pool, calibrator, exact):
    encoder = bertflow.TransformerEncoder(tiny_bert, max_length=12, device="cpu", chunks=f"tokens:8:2:{pool}")
    if calibrator:
        encoder = bertflow.CalibratedEncoder.fit(encoder, bertflow.Whitening(6), tiny_text)
    done = bertflow.export_encoder(encoder, tmp_path / "out", "sentence-transformers")
    record = read_record(tmp_path / "out" / "bertflow_export.json", dict)
    assert record["facts"]["chunks"] == f"tokens:8:2:{pool}"
    assert "chunks" not in record["describe"], "what was written does not split text"
    told = f"what was written cuts at 12 tokens: split a text by tokens:8:2:{pool}, embed its chunks, take their "
    assert told in str(done)
    assert told in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert ("bertflow itself pools before the calibrator" in str(done)) is not exact
    # To do what the line says with sentence-transformers alone gives what bertflow gives.
    text = " ".join(tiny_text[:5])
    ids = encoder.raw.spec.folder.tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces = [ids[at : at + 8] for at in range(0, len(ids) - 2, 6)]
    model = bertflow.load_sentence_transformer(tmp_path / "out", device="cpu")
    x = model.encode([encoder.raw.spec.folder.tokenizer.decode(piece) for piece in pieces])
    pooled = np.average(x, 0, [len(piece) for piece in pieces]) if pool == "mean" else x.max(0)
    assert np.allclose(pooled, encoder.encode([text])[0], atol=1e-4) is exact


def test_the_target_safetensors_reads_chunks_itself(tiny_bert, tiny_text, tmp_path):
    encoder = bertflow.TransformerEncoder(tiny_bert, max_length=12, device="cpu", chunks="tokens:8:2")
    encoder = bertflow.CalibratedEncoder.fit(encoder, bertflow.Whitening(6), tiny_text)
    done = bertflow.export_encoder(encoder, tmp_path / "out", "safetensors")
    assert "chunks" not in done.facts
    again = bertflow.load(tmp_path / "out", device="cpu")
    text = " ".join(tiny_text[:5])
    np.testing.assert_array_equal(again.encode([text]), encoder.encode([text]))
    assert bertflow.diagnose(tmp_path / "out", model=tmp_path / "out").right
