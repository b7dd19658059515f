from pathlib import Path

import pytest

import bertflow
from bertflow.data.pairs import Pairs

from ..encoder.conftest import make
from .conftest import read_json

NOUNS, VERBS, ENDS = ("man", "dog", "cat", "bird"), ("runs", "eats"), ("a", "in", "big")
TEXT = [f"the {noun} {verb} {end} ." for noun in NOUNS for verb in VERBS for end in ENDS]


@pytest.fixture(scope="module")
def saved(tiny_bert, tmp_path_factory):
    """A folder that CalibratedEncoder.save wrote."""
    encoder = make(tiny_bert, pooling="mean(1,2)")
    folder = tmp_path_factory.mktemp("saved") / "mine"
    bertflow.CalibratedEncoder(encoder, bertflow.Whitening(4).fit_sentences(encoder, TEXT)).save(folder)
    return folder


@pytest.fixture
def export(told):
    """Writes a folder for sentence-transformers; gives what is printed."""
    return lambda *words: told("export", *words, "--target", "sentence-transformers")


def test_an_encoder_as_it_comes_takes_a_pooling(tiny_bert, export):
    said = export(tiny_bert, "--pooling", "cls(2)", "--max_length", "32", "--output", "out")
    assert "tiny-bert, cls(2), as it comes" in said
    assert read_json("out/sentence_bert_config.json")["max_seq_length"] == 32


def test_another_dtype_is_another_encoder(saved, export):
    export(saved, "--dtype", "bfloat16", "--output", "out")
    assert read_json("out/bertflow_export.json")["describe"]["dtype"] == "bfloat16"


def test_a_stand_in_for_what_is_linear_is_refused(saved, tmp_path, monkeypatch, refused):
    monkeypatch.setattr("bertflow.export.approximation.docstring_sentences", lambda: TEXT)
    given = [saved, "--target", "sentence-transformers", "--linearize", "--output", "out"]
    line = refused(2, "export", *given)
    assert line == "error: --linearize is for a flow, but Whitening is affine already. Leave it out."
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_flow_is_linearized_and_both_losses_are_said(tiny_bert, shared_data, export):
    encoder = make(tiny_bert, pooling="mean")
    flow = bertflow.FlowCalibrator(trainer={"max_steps": 3, "accelerator": "cpu"}).fit_sentences(encoder, TEXT)
    bertflow.CalibratedEncoder(encoder, flow).save("flow")
    Path("text.txt").write_text("\n".join(TEXT))
    given = ["--text", "text.txt", "--data_dir", shared_data / "sts", "--tasks", "stsb-dev,tuning"]
    said = export("flow", "--linearize", *given, "--output", "out")
    assert "held-out sentences" in said
    assert "stsb-dev (all): Spearman x 100" in said
    assert "tuning (mean): Spearman x 100" in said
    assert "modules   Transformer -> Pooling -> Dense" in said
    assert "It stands in for a flow: R^2" in Path("out/README.md").read_text()


@pytest.mark.slow
def test_int8_is_written_with_its_loss(saved, told, monkeypatch):
    out = Path("out")
    monkeypatch.setattr("bertflow.export.approximation.docstring_sentences", lambda: TEXT)
    pairs = Pairs("docstrings", tuple(TEXT[::2]), tuple(TEXT[1::2]), kind="retrieval")
    monkeypatch.setattr("bertflow.export.approximation.docstring_corpus", lambda **_: ([], pairs))
    assert "MB; hit@1 among 12 docstring pairs " in told("export", saved, "--target", "onnx", "--int8", "--output", out)
    loss = read_json(out / "onnx/model_int8.json")
    assert loss["sentences"] == len(TEXT)
    assert loss["scores"].keys() == {"hit@1 among 12 docstring pairs"}
    assert loss["scores"]["hit@1 among 12 docstring pairs"].keys() == {"float32", "int8"}
    assert "is approximate: cosine to float32" in (out / "README.md").read_text()
