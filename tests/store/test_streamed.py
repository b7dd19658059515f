"""A store that is made of a stream; the second voice is the one that is made of a list."""

import logging
import os

import numpy as np
import pytest

from bertflow.encoder.abstract import AbstractEncoder
from bertflow.errors import DataError, UsageError
from bertflow.records import read_record, write_record
from bertflow.store import build as store_build
from bertflow.store.store import EmbeddingStore
from bertflow.text_keys import hash_texts

SENTENCES = [f"sentence {k}" for k in range(40)]
CORPUS = [*SENTENCES[:20], "sentence 3", *SENTENCES[10:], "sentence 0"]


class LengthEncoder(AbstractEncoder):
    """The embedding of a sentence is its length and its last letter; what was encoded is remembered."""

    dim = 2

    def __init__(self, pooling="mean", dtype="float32"):
        self.encoded, self.pooling, self.dtype = [], pooling, dtype

    def _encode(self, sentences, *_):
        self.encoded += sentences
        return np.array([[len(text), ord(text[-1])] for text in sentences], dtype=np.float32)

    def describe(self):
        return {"encoder": "length", "pooling": self.pooling, "dtype": self.dtype}


def streamed(folder, encoder=None, text=CORPUS, **options):
    return EmbeddingStore.build_streamed(encoder or LengthEncoder(), lambda: iter(text), folder, **options)


def test_a_stream_and_a_list_make_the_same_store(tmp_path):
    streamed(tmp_path / "stream")
    EmbeddingStore.build(LengthEncoder(), CORPUS, tmp_path / "list")
    names = sorted(path.relative_to(tmp_path / "list") for path in (tmp_path / "list").rglob("*.*"))
    assert names == sorted(path.relative_to(tmp_path / "stream") for path in (tmp_path / "stream").rglob("*.*"))
    for name in names:
        assert (tmp_path / "stream" / name).read_bytes() == (tmp_path / "list" / name).read_bytes()


def test_each_sentence_of_the_stream_has_its_row(tmp_path):
    built = streamed(tmp_path / "store")
    assert len(built) == len(SENTENCES)
    np.testing.assert_array_equal(built.rows(built.row_ids), LengthEncoder().encode(CORPUS))
    np.testing.assert_array_equal(built.text_hashes, hash_texts(CORPUS))


def test_the_text_does_not_stay(tmp_path):
    streamed(tmp_path / "store")
    assert not (tmp_path / "store/text").exists()


def test_the_same_stream_again_computes_nothing(tmp_path):
    streamed(tmp_path / "store")
    again = LengthEncoder()
    streamed(tmp_path / "store", again)
    assert again.encoded == []


@pytest.mark.parametrize("text", [CORPUS[::-1], CORPUS[:-1], [*CORPUS, "one more"]], ids=["order", "repeat", "more"])
def test_another_stream_is_refused(tmp_path, text):
    streamed(tmp_path / "store")
    streamed(tmp_path / "other", text=text)
    old, new = (read_record(tmp_path / name / "store.json", dict)["corpus"] for name in ("store", "other"))
    with pytest.raises(DataError) as caught:
        streamed(tmp_path / "store", text=text)
    assert str(caught.value) == (
        f"{tmp_path / 'store'} holds a store of something else: corpus '{old}' (now '{new}'). "
        "Choose another folder, or delete this one."
    )


def test_the_distinct_sentences_as_a_list_find_everything_there(tmp_path):
    streamed(tmp_path / "store", shards=5, dtype="float16")
    encoder = LengthEncoder()
    found = EmbeddingStore.build(encoder, SENTENCES, tmp_path / "store")
    assert encoder.encoded == []
    assert found.row_ids.tolist() == list(range(len(SENTENCES))), "the row ids are those of the list"


def test_a_shard_that_is_lost_later_is_made_from_the_text_again(tmp_path):
    built = streamed(tmp_path / "store")
    expected = built.rows(range(built.n))
    (tmp_path / "store/shards/00003-of-00008.npy").unlink()
    encoder = LengthEncoder()
    again = streamed(tmp_path / "store", encoder)
    assert encoder.encoded == SENTENCES[15:20]
    np.testing.assert_array_equal(again.rows(range(again.n)), expected)
    assert not (tmp_path / "store/text").exists()


def test_a_list_finishes_what_a_killed_stream_left(tmp_path):
    streamed(tmp_path / "store")
    (tmp_path / "store/done/00003-of-00008.json").unlink()
    (tmp_path / "store/text").mkdir()
    EmbeddingStore.build(LengthEncoder(), SENTENCES, tmp_path / "store")
    assert not (tmp_path / "store/text").exists()


def test_who_wants_to_is_told_what_is_done(tmp_path):
    done, totals = [], []
    streamed(tmp_path / "store", begun=lambda store: totals.append(store.n) or done.append)
    assert totals == [sum(done)] == [len(SENTENCES)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": []}, "A store needs sentences, got none. Give text."),
        ({"shards": 0}, "shards should be from 1 to 99,999, got 0."),
    ],
)
def test_a_store_of_nothing_is_refused(tmp_path, options, message):
    with pytest.raises(UsageError) as caught:
        streamed(tmp_path / "store", **options)
    assert str(caught.value) == message
    assert not (tmp_path / "store/store.json").exists()


def test_a_folder_with_other_files_is_not_made_a_store(tmp_path):
    (tmp_path / "thesis.doc").write_text("")
    with pytest.raises(DataError) as caught:
        streamed(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} should be a store, new or begun, but holds thesis.doc. Name another folder."
    )


# What changed since


def test_the_precision_of_encoder_and_storage_are_two_things(tmp_path):
    streamed(tmp_path / "store", dtype="float16")
    with pytest.raises(DataError, match=r"something else: dtype 'float32' \(now 'bfloat16'\)\. Choose"):
        streamed(tmp_path / "store", LengthEncoder(dtype="bfloat16"))
    with pytest.raises(DataError, match=r"something else: storage 'float16' \(now 'float32'\)\. Choose"):
        streamed(tmp_path / "store", dtype="float32")


@pytest.fixture
def older(tmp_path):
    """A finished store that was made with another transformers."""
    streamed(tmp_path / "store")
    manifest = read_record(tmp_path / "store/store.json", dict)
    write_record(tmp_path / "store/store.json", manifest | {"versions": manifest["versions"] | {"transformers": "5.0"}})
    return tmp_path / "store", f"transformers '5.0' (now '{manifest['versions']['transformers']}')"


def test_a_finished_store_of_another_version_is_used_and_that_is_said(older, caplog):
    folder, change = older
    with caplog.at_level(logging.WARNING):
        streamed(folder)
    assert caplog.messages == [f"{folder} was made by another version: {change}."]


def test_an_unfinished_store_of_another_version_is_not_gone_on_with(older):
    folder, change = older
    (folder / "done/00003-of-00008.json").unlink()
    with pytest.raises(DataError) as caught:
        streamed(folder)
    assert str(caught.value) == (
        f"{folder} holds a store of something else: {change}. Choose another folder, or delete this one."
    )


# Reading and checking


@pytest.mark.parametrize(("start", "stop"), [(0, None), (3, 17), (39, 40), (5, 5)])
def test_some_rows_come_in_blocks(tmp_path, start, stop):
    built = streamed(tmp_path / "store")
    expected = LengthEncoder().encode(SENTENCES)[start:stop]
    blocks = list(built.blocks(3, start, stop))
    np.testing.assert_array_equal(np.concatenate([np.empty((0, 2)), *blocks]), expected)


def test_a_finished_store_is_used_where_nothing_can_be_written(tmp_path, monkeypatch):
    streamed(tmp_path / "store")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(store_build, "locked", None)
    assert len(EmbeddingStore.build(LengthEncoder(), SENTENCES, tmp_path / "store")) == len(SENTENCES)
    with pytest.raises(DataError, match="pooling 'mean'"):
        EmbeddingStore.build(LengthEncoder("cls"), SENTENCES, tmp_path / "store")


def test_verify_reads_every_byte(tmp_path):
    built = streamed(tmp_path / "store")
    built.verify()
    path = tmp_path / "store/shards/00002-of-00008.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(DataError) as caught:
        EmbeddingStore.open(tmp_path / "store").verify()
    assert str(caught.value) == (
        f"{tmp_path / 'store'} is damaged: 1 of 8 shards are not what was written, 00002-of-00008.npy the first. "
        "Build the store again with the same text and encoder; what is whole is kept."
    )


def test_a_shard_that_was_cut_short_is_missing(tmp_path):
    streamed(tmp_path / "store")
    path = tmp_path / "store/shards/00002-of-00008.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="1 of 8 shards are missing"):
        EmbeddingStore.open(tmp_path / "store")


def test_many_rows_are_kept_in_more_shards():
    assert [store_build.default_shards(n) for n in (1, 8 * 65536, 8 * 65536 + 1, 10**7)] == [8, 8, 9, 153]


# A function of a store


def test_a_function_of_a_store_is_a_store_of_the_same_text(tmp_path):
    built = streamed(tmp_path / "store")
    doubled = built.mapped(lambda x: 2 * x[:, :1], tmp_path / "doubled", {"encoder": "length", "doubled": True}, 1)
    np.testing.assert_array_equal(doubled.rows(doubled.row_ids), 2 * built.rows(built.row_ids)[:, :1])
    np.testing.assert_array_equal(doubled.text_hashes, built.text_hashes)
    assert doubled.recipe == {"encoder": "length", "doubled": True}


def test_a_function_of_a_store_is_gone_on_with(tmp_path):
    built, seen = streamed(tmp_path / "store"), []
    for _ in range(2):
        built.mapped(lambda x: seen.append(len(x)) or x, tmp_path / "same", {}, 2)
        (tmp_path / "same/done/00001-of-00008.json").unlink(missing_ok=True)
    assert seen == [5] * 8 + [5]
