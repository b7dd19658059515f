import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bertflow
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.spelling import load_calibrator
from bertflow.cli import main
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.store.store import EmbeddingStore

from .conftest import NOUNS
from .conftest import SLEEPING as SENTENCES

CORPUS = [*SENTENCES, *SENTENCES[:10]]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(CORPUS), encoding="utf-8")
    return str(path)


@pytest.fixture
def arguments(tiny_bert, text, tmp_path):
    store = str(tmp_path / "store")
    return ["embed", text, "--store", store, "--model", str(tiny_bert), "--pooling", "mean(1,2)", "--device", "cpu"]


def test_every_line_of_the_text_finds_its_embedding(arguments, tiny_bert, tmp_path, capsys):
    assert main(arguments) == 0
    store = EmbeddingStore.open(tmp_path / "store")
    expected = TransformerEncoder(tiny_bert, "mean(1,2)", device="cpu").encode(CORPUS)
    assert_allclose(store.rows(store.row_ids), expected, rtol=1e-5, atol=1e-6)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"store     {tmp_path / 'store'}: 144 x 16 float32 in 8 shards, 0.0 MB"
    assert printed[1] == "text      154 sentences = 144 different + 10 repeated"


def test_who_embeds_again_is_told_that_everything_was_there(arguments, text, tmp_path, capsys):
    given = {"store": tmp_path / "store", "model": arguments[5], "pooling": "mean(1,2)", "device": "cpu"}
    for label, said in (("embedding", ""), ("checking", ", as everything was embedded already")):
        done = bertflow.embed([text], **given, progress=True)
        assert capsys.readouterr().err.strip().startswith(f"{label}: ")
        assert [*done.parts()][-1] == f"took      {done.seconds:.1f} s{said}"


def test_what_is_not_read_is_said_of_the_first_shard_and_of_the_whole(tmp_path, tiny_bert, capsys):
    lines = ["the dog", "a cat", *(f"the {noun} sleeps in the {other}" for noun in NOUNS for other in NOUNS)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    command = ["embed", str(tmp_path / "text.txt"), "--store", str(tmp_path / "store"), "--shards", "4"]
    assert main([*command, "--model", str(tiny_bert), "--max_length", "6", "--device", "cpu"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "Cut:" in line]
    n, first = len(NOUNS) ** 2, len(lines) // 4
    assert [note.split(", at")[0] for note in notes] == [
        f"note: Cut: {first - 2} of {first} sentences",
        f"note: Cut: {n} of {n + 2} sentences",
    ]


def test_several_files_columns_and_a_half_of_the_disk(tiny_bert, text, tmp_path, told):
    table = tmp_path / "b.jsonl"
    table.write_text("\n".join(json.dumps({"a": f"the {noun}", "b": "no"}) for noun in NOUNS))
    store = tmp_path / "store"
    common = ["--store", str(store), "--model", str(tiny_bert), "--storage", "float16", "--shards", "3"]
    told("embed", table, *common, "--columns", "a,b", "--device", "cpu")
    opened = EmbeddingStore.open(store)
    assert opened.n == 7
    assert np.load(store / "shards/00000-of-00003.npy").dtype == np.float16


def test_sif_counts_the_distinct_sentences(tiny_bert, text, tmp_path, told):
    options = ["--store", str(tmp_path / "store"), "--model", str(tiny_bert), "--pooling", "sif(1)", "--device", "cpu"]
    told("embed", text, *options)
    encoder = TransformerEncoder(tiny_bert, "sif(1)", device="cpu").count_tokens(SENTENCES)
    assert EmbeddingStore.open(tmp_path / "store").recipe == json.loads(json.dumps(encoder.describe()))


def test_training_finds_everything_there(arguments, tiny_bert, text, tmp_path, monkeypatch, told):
    told(*arguments, "--storage", "float16", "--shards", "5")
    monkeypatch.setattr(TransformerEncoder, "encode", None)
    trained = ["--encoder.pooling=mean(1,2)", "--flow.epochs=0", "--trainer.enable_progress_bar=false"]
    folders = [f"--data.store={tmp_path / 'store'}", f"--output={tmp_path / 'run'}", f"--data.sentences={text}"]
    common = [f"--encoder.model={tiny_bert}", "--trainer.accelerator=cpu", "--flow.glow.hidden=8", "--report=false"]
    told("train", *trained, *folders, *common, "--encoder.device=cpu", "--save_encoder=false")


def test_verify_says_whole_or_what_is_not(arguments, tmp_path, told, refused):
    told(*arguments)
    line = told("embed", "--store", tmp_path / "store", "--verify")
    assert line == f"{tmp_path / 'store'}: whole, 144 x 16 float32 in 8 shards, 0.0 MB\n"
    path = tmp_path / "store/shards/00004-of-00008.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert refused(3, "embed", "--store", tmp_path / "store", "--verify").startswith(
        f"error: {tmp_path / 'store'} is damaged: 1 of 8 shards are not what was written, 00004-of-00008"
    )


def test_an_interruption_says_how_to_go_on(arguments, tmp_path, capsys, monkeypatch):
    def interrupted(self, sentences, progress=False):
        raise KeyboardInterrupt

    monkeypatch.setattr(TransformerEncoder, "encode", interrupted)
    assert main(arguments) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"note: {tmp_path / 'store'}: shard 1 of 8.",
        f"note: What is done is kept in {tmp_path / 'store'}: run the same command again to continue.",
        "interrupted",
    ]
    monkeypatch.undo()
    assert main(arguments) == 0


# The command as a process of its own


def test_texts_are_embedded_in_chunks(arguments, tiny_bert, text, tmp_path, told, refused):
    long = [" . ".join(SENTENCES[row : row + 5]) for row in range(0, 50, 5)]
    (tmp_path / "text.txt").write_text("\n".join(long), encoding="utf-8")
    arguments += ["--max-length", "12"]
    assert "encoder   tiny-bert, mean(1,2), chunks tokens:8:2:max\n" in told(*arguments, "--chunks", "tokens:8:2:max")
    store = EmbeddingStore.open(tmp_path / "store")
    encoder = TransformerEncoder(tiny_bert, "mean(1,2)", max_length=12, device="cpu", chunks="tokens:8:2:max")
    assert_allclose(store.rows(store.row_ids), encoder.encode(long), rtol=1e-5, atol=1e-6)
    for others in ([], ["--chunks", "tokens:8:2:mean"]):
        assert "chunks 'tokens:8:2:max'" in refused(3, *arguments, *others)
    fitted = ["fit", "--store", str(tmp_path / "store"), "--calibrator", "center", "--output", str(tmp_path / "center")]
    told(*fitted)
    calibrated = CalibratedEncoder(encoder, load_calibrator(tmp_path / "center"))
    assert_allclose(calibrated.encode(long).mean(0), 0, atol=1e-5)
