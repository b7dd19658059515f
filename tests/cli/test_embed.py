import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bertflow
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.spelling import load_calibrator
from bertflow.cli import main
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.store.store import EmbeddingStore

from ..encoder.conftest import make
from .conftest import NOUNS
from .conftest import SLEEPING as SENTENCES

CORPUS = [*SENTENCES, *SENTENCES[:10]]


@pytest.fixture
def text():
    path = Path("text.txt")
    path.write_text("\n".join(CORPUS))
    return path


@pytest.fixture
def arguments(tiny_bert, text):
    given = ["--store", "store", "--model", tiny_bert, "--pooling", "mean(1,2)", "--device", "cpu"]
    return ["embed", *map(str, [text, *given])]


def test_every_line_of_the_text_finds_its_embedding(arguments, tiny_bert, told):
    printed = told(*arguments).splitlines()
    store = EmbeddingStore.open("store")
    expected = make(tiny_bert, "mean(1,2)").encode(CORPUS)
    assert_allclose(store.rows(store.row_ids), expected, rtol=1e-5, atol=1e-6)
    assert printed[0] == "store     store: 144 x 16 float32 in 8 shards, 0.0 MB"
    assert printed[1] == "text      154 sentences = 144 different + 10 repeated"


def test_who_embeds_again_is_told_that_everything_was_there(arguments, text, capsys):
    given = {"store": Path("store"), "model": arguments[5], "pooling": "mean(1,2)", "device": "cpu"}
    for label, said in (("embedding", ""), ("checking", ", as everything was embedded already")):
        done = bertflow.embed([text], **given, progress=True)
        assert capsys.readouterr().err.strip().startswith(f"{label}: ")
        assert [*done.parts()][-1] == f"took      {done.seconds:.1f} s{said}"


def test_what_is_not_read_is_said_of_the_first_shard_and_of_the_whole(arguments, text, capsys):
    lines = ["the dog", "a cat", *(f"the {noun} sleeps in the {other}" for noun in NOUNS for other in NOUNS)]
    text.write_text("\n".join(lines))
    assert main([*arguments, "--shards", "4", "--max_length", "6"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "Cut:" in line]
    n, first = len(NOUNS) ** 2, len(lines) // 4
    assert [note.split(", at")[0] for note in notes] == [
        f"note: Cut: {first - 2} of {first} sentences",
        f"note: Cut: {n} of {n + 2} sentences",
    ]


def test_columns_and_a_half_of_the_disk(tiny_bert, told):
    table = Path("b.jsonl")
    table.write_text("\n".join(json.dumps({"a": f"the {noun}", "b": "no"}) for noun in NOUNS))
    store = Path("store")
    common = ["--store", store, "--model", tiny_bert, "--storage", "float16", "--shards", 3, "--device", "cpu"]
    told("embed", table, *common, "--columns", "a,b")
    opened = EmbeddingStore.open(store)
    assert opened.n == 7
    assert np.load(store / "shards/00000-of-00003.npy").dtype == np.float16


def test_sif_counts_the_distinct_sentences(arguments, tiny_bert, told):
    told(*arguments, "--pooling", "sif(1)")
    encoder = make(tiny_bert, "sif(1)").count_tokens(SENTENCES)
    assert EmbeddingStore.open("store").recipe == json.loads(json.dumps(encoder.describe()))


def test_training_finds_everything_there(arguments, tiny_bert, text, monkeypatch, told):
    told(*arguments, "--storage", "float16", "--shards", "5")
    monkeypatch.setattr(TransformerEncoder, "encode", None)
    trained = ["--encoder.pooling=mean(1,2)", "--flow.epochs=0", "--trainer.enable_progress_bar=false"]
    folders = ["--data.store=store", "--output=run", f"--data.sentences={text}"]
    common = [f"--encoder.model={tiny_bert}", "--trainer.accelerator=cpu", "--flow.glow.hidden=8", "--report=false"]
    told("train", *trained, *folders, *common, "--encoder.device=cpu", "--save_encoder=false")


def test_verify_says_whole_or_what_is_not(arguments, told, refused):
    told(*arguments)
    line = told("embed", "--store", "store", "--verify")
    assert line == "store: whole, 144 x 16 float32 in 8 shards, 0.0 MB\n"
    path = Path("store/shards/00004-of-00008.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert refused(3, "embed", "--store", "store", "--verify").startswith(
        "error: store is damaged: 1 of 8 shards are not what was written, 00004-of-00008"
    )


def test_an_interruption_says_how_to_go_on(arguments, capsys, monkeypatch):
    def interrupted(self, sentences, progress=False):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TransformerEncoder, "encode", interrupted)
        assert main(arguments) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "note: store: shard 1 of 8.",
        "note: What is done is kept in store: run the same command again to continue.",
        "interrupted",
    ]
    assert main(arguments) == 0


def test_texts_are_embedded_in_chunks(arguments, tiny_bert, text, told, refused):
    long = [" . ".join(SENTENCES[row : row + 5]) for row in range(0, 50, 5)]
    text.write_text("\n".join(long))
    arguments += ["--max-length", "12"]
    assert "encoder   tiny-bert, mean(1,2), chunks tokens:8:2:max\n" in told(*arguments, "--chunks", "tokens:8:2:max")
    store = EmbeddingStore.open("store")
    encoder = make(tiny_bert, "mean(1,2)", max_length=12, chunks="tokens:8:2:max")
    assert_allclose(store.rows(store.row_ids), encoder.encode(long), rtol=1e-5, atol=1e-6)
    for others in ([], ["--chunks", "tokens:8:2:mean"]):
        assert "chunks 'tokens:8:2:max'" in refused(3, *arguments, *others)
    told("fit", "--store", "store", "--calibrator", "center", "--output", "center")
    calibrated = CalibratedEncoder(encoder, load_calibrator("center"))
    assert_allclose(calibrated.encode(long).mean(0), 0, atol=1e-5)
