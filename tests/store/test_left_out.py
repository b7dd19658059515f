"""Sentences whose embeddings are not finite: refused by their line, or left out of the store for good.

The encoder is real, and has one word whose embedding is NaN. The second voice is the text without the sentences with
that word.
"""

import shutil

import numpy as np
import pytest
import torch
from transformers import BertModel

import bertflow
from bertflow.calibration.closed_forms import Whitening
from bertflow.cli import main
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import BadRowsError, DataError
from bertflow.moments import Moments
from bertflow.store.store import EmbeddingStore
from bertflow.text_keys import hash_texts

LINES = [
    *("the dog sings .", "a cat sings .", "the bird runs .", "the dog sings ."),
    *("the man eats .", "the CAT eats", "a cat sings .", "the cat", "the man sleeps .", "the Man sleeps"),
]
BAD = [2, 6, 7, 8]
"""Lines, from 1, with the word."""
KEPT = [line for number, line in enumerate(LINES, start=1) if number not in BAD]
WHY = "the embedding is not finite. Use float32 where half precision overflows; else the weights are damaged."


@pytest.fixture(scope="module")
def bert(tiny_bert, tmp_path_factory):
    """A tiny BERT in which the embedding of one word is not a number."""
    folder = tmp_path_factory.mktemp("broken") / "bert"
    shutil.copytree(tiny_bert, folder)
    model, word = BertModel.from_pretrained(folder), TransformerEncoder(folder).spec.folder.tokenizer.get_vocab()["cat"]
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[word] = torch.nan
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES))
    return path


def embed(text, bert, store, *more):
    options = ["--model", str(bert), "--store", str(store), "--device", "cpu", "--shards", "3"]
    return main(["embed", str(text), *options, *map(str, more)])


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def listed(path):
    return [line.split("\t") for line in path.read_text().splitlines()[1:]]


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_they_are_left_out_and_the_store_is_that_of_the_other_sentences(text, bert, tmp_path, capsys, storage):
    store, bad = tmp_path / "store", tmp_path / "bad.tsv"
    assert embed(text, bert, store, "--storage", storage, "--skip_bad", bad) == 0
    assert f"skipped 4 rows, listed in {bad}" in capsys.readouterr().out.splitlines()
    assert listed(bad) == [[str(text), "", str(line), f"{LINES[line - 1]!r}: {WHY}"] for line in BAD]
    opened, encoder = EmbeddingStore.open(store), TransformerEncoder(bert, device="cpu")
    distinct = list(dict.fromkeys(KEPT))
    assert (opened.n, len(opened)) == (5, 5)
    assert opened.row_ids.tolist() == [distinct.index(line) for line in KEPT]
    assert opened.sentences_left_out() == {line - 1: WHY for line in BAD}
    np.testing.assert_array_equal(opened.text_hashes, hash_texts(LINES))
    expected = encoder.encode(distinct)
    np.testing.assert_allclose(opened.rows(range(5)), expected, atol=1e-6 if storage == "float32" else 2e-3)
    np.testing.assert_array_equal(np.concatenate(list(opened.blocks(2))), opened.rows(range(5)))
    np.testing.assert_array_equal(np.concatenate(list(opened.blocks(2, 1, 4))), opened.rows([1, 2, 3]))
    opened.verify()
    whole = files(store)
    for _ in range(2):  # again: everything is there, and the list is the same
        assert embed(text, bert, store, "--skip_bad", bad) == 0
        assert len(listed(bad)) == 4
    assert files(store) == whole
    calibrator = bertflow.fit(calibrator="center", store=store, output=tmp_path / "center").calibrator
    assert calibrator.moments_.n == 5
    np.testing.assert_allclose(calibrator.moments_.mean, Moments.of(opened.rows(range(5))).mean)


def test_without_it_the_line_is_named_and_a_later_run_goes_on(refusal, text, bert, tmp_path, capsys):
    store = tmp_path / "store"
    for _ in range(2):
        assert embed(text, bert, store) == 3
        said = f"error: {text}, line 2: {LINES[1]!r}: {WHY} With --skip_bad FILE such rows are left out and listed."
        assert capsys.readouterr().err.splitlines()[-1] == said
    with pytest.raises(DataError, match=r"is not finished: \d of 3 shards are missing"):
        EmbeddingStore.open(store)
    assert embed(text, bert, store, "--skip_bad", tmp_path / "bad.tsv") == 0
    assert embed(text, bert, tmp_path / "at once", "--skip_bad", tmp_path / "bad.tsv") == 0
    assert files(store) == files(tmp_path / "at once")
    capsys.readouterr()
    assert embed(text, bert, store) == 3  # they are still no sentences with an embedding
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert refusal(EmbeddingStore.build, TransformerEncoder(bert, device="cpu"), LINES, store, error=BadRowsError) == (
        f"Sentence 1: {WHY}"
    )


def test_rows_of_tables_are_named_and_the_place_is_that_in_the_whole_source(bert, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bertflow.store.build.CHUNK", 3)
    path = tmp_path / "text.csv"
    path.write_text("id,sentence1,sentence2\n" + "".join(f'{k},"{line}",the dog\n' for k, line in enumerate(LINES)))
    assert embed(path, bert, tmp_path / "store", "--skip_bad", tmp_path / "bad.tsv") == 0
    assert [line for _, _, line, _ in listed(tmp_path / "bad.tsv")] == [str(line + 1) for line in BAD]
    assert EmbeddingStore.open(tmp_path / "store").n == 6
    path.write_text("sentence\nthe cat\n")
    assert embed(path, bert, tmp_path / "none", "--skip_bad", tmp_path / "bad.tsv") == 3
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {tmp_path / 'none'} holds no row: {WHY}"


@pytest.mark.parametrize("left", range(1, 12))
def test_a_run_that_is_cut_off_anywhere_comes_to_the_same_store(text, bert, tmp_path, monkeypatch, left):
    encoder = TransformerEncoder(bert, device="cpu")
    encode, calls = encoder.encode, iter(range(left))

    def cut_off(*given, **options):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return encode(*given, **options)

    monkeypatch.setattr("bertflow.store.build.CHUNK", 2)
    with bertflow.skip_bad(tmp_path / "bad.tsv"):
        bertflow.embed([text], store=tmp_path / "whole", model=encoder, shards=3)
    monkeypatch.setattr(encoder, "encode", cut_off)
    try:
        with bertflow.skip_bad(tmp_path / "bad.tsv"):
            bertflow.embed([text], store=tmp_path / "store", model=encoder, shards=3)
    except KeyboardInterrupt:
        assert left < 11
    monkeypatch.setattr(encoder, "encode", encode)
    with bertflow.skip_bad(tmp_path / "bad.tsv") as skipped:
        bertflow.embed([text], store=tmp_path / "store", model=encoder, shards=3)
    assert len(skipped) == 4
    assert files(tmp_path / "store") == files(tmp_path / "whole")


def test_a_damaged_file_beside_such_a_store_is_made_again(text, bert, tmp_path):
    store = tmp_path / "store"
    assert embed(text, bert, store, "--skip_bad", tmp_path / "bad.tsv") == 0
    whole = files(store)
    for name in ("row_ids.npy", "text_hashes.npy", "shards/00000-of-00003.npy"):
        (store / name).write_bytes(b"damaged")
        assert embed(text, bert, store, "--skip_bad", tmp_path / "bad.tsv") == 0
        assert files(store) == whole


@pytest.mark.parametrize("output", ["z.npy", "z.parquet", "z"])
def test_rows_of_a_store_that_come_out_infinite_are_left_out(tmp_path, capsys, monkeypatch, output):
    class Wide(bertflow.AbstractEncoder):
        dim = 3

        def _encode(self, sentences, *_):
            x = np.array([[len(text), text.count("a"), ord(text[0])] for text in sentences], np.float32)
            return x * np.where(["zz" in text for text in sentences], np.float32(1e30), 1)[:, None]

        def describe(self):
            return {"encoder": "wide", "pooling": "none"}

    monkeypatch.setattr("bertflow.store.build.CHUNK", 7)
    sentences = [f"{'abc'[k % 3]}{'a' * (k % 5)}{k}" for k in range(40)]
    sentences[17] += "zz"
    store = EmbeddingStore.build(Wide(), sentences, tmp_path / "store")
    calibrator = Whitening().fit(np.delete(store.rows(range(40)), 17, axis=0) * np.float32(1e-12))
    calibrator.save(tmp_path / "c")
    folder, bad = tmp_path / "store", tmp_path / "bad.tsv"
    given = ["transform", "--calibrator", str(tmp_path / "c"), "--store", str(folder), "--bare", "--output"]
    assert main([*given, str(tmp_path / output)]) == 3
    assert f"error: {folder}, row 17: comes out as " in capsys.readouterr().err
    for _ in range(2 if output == "z" else 1):
        assert main([*given, str(tmp_path / output), "--skip_bad", str(bad)]) == 0
        assert [row for _, row, _, _ in listed(bad)] == ["17"]
    expected = calibrator.transform(np.delete(store.rows(range(40)), 17, axis=0))
    if output == "z":
        made = EmbeddingStore.open(tmp_path / "z")
        assert made.row_ids.tolist() == list(range(39))
        found = made.rows(range(39))
    elif output == "z.npy":
        found = np.load(tmp_path / output)
    else:
        found = np.concatenate(list(bertflow.data.vectors.open_vectors(tmp_path / output).blocks()))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_store_without_hashes_keeps_none_when_its_rows_are_made_again(text, tiny_bert, tmp_path):
    store = tmp_path / "store"
    for damaged in (None, "row_ids.npy", "shards/00001-of-00003.npy"):
        if damaged:
            (store / damaged).write_bytes(b"damaged")
        assert embed(text, tiny_bert, store, *([] if damaged else ["--without_text_hashes"])) == 0
        assert not (store / "text_hashes.npy").exists()
        EmbeddingStore.open(store).verify()
