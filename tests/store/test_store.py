"""The store; the second voice is the encoder, asked directly.

How it survives a kill and damage, and what several processes make of it: ``tests/test_jobs.py``.
"""

import logging
import os

import numpy as np
import pytest

from bertflow.encoder.abstract import AbstractEncoder
from bertflow.errors import DataError, UnknownNameError, UsageError
from bertflow.files import write_json
from bertflow.records import read_record, write_record
from bertflow.store.build import default_shards
from bertflow.store.store import EmbeddingStore
from bertflow.text_keys import hash_texts

from ..test_jobs import flip

WORDS = ["dog", "cat", "bird", "man", "house", "garden"]
SENTENCES = [f"the {first} and the {second}" for first in WORDS for second in WORDS]
CORPUS = [*SENTENCES[:20], "the dog and the dog", *SENTENCES[10:], "the cat and the dog"]
HALF = "float16"
AGAIN = "Build the store again with the same text and encoder; what is whole is kept."


class CountingEncoder(AbstractEncoder):
    """The embedding of a sentence is made of its length and letters; what was encoded is remembered."""

    dim = 5

    def __init__(self, pooling="mean", scale=1.0, dtype="float32"):
        self.encoded, self.pooling, self.scale, self.dtype = [], pooling, scale, dtype

    def _encode(self, sentences, *_):
        self.encoded += sentences
        rows = [[len(text), *(text.count(letter) for letter in "adeo")] for text in sentences]
        return np.array(rows, dtype=np.float32).reshape(-1, self.dim) * np.float32(self.scale)

    def describe(self):
        return {"encoder": "counting", "pooling": self.pooling, "dtype": self.dtype}


EXPECTED = CountingEncoder().encode(SENTENCES)


def of_list(folder, encoder=None, text=CORPUS, **options):
    return EmbeddingStore.build(encoder or CountingEncoder(), text, folder, **options)


def of_stream(folder, encoder=None, text=CORPUS, **options):
    return EmbeddingStore.build_streamed(encoder or CountingEncoder(), lambda: iter(text), folder, **options)


@pytest.fixture(params=[of_list, of_stream])
def build(request):
    return request.param


@pytest.fixture(params=[1, 3, 8, 50])
def built(request, tmp_path):
    return of_list(tmp_path / "store", shards=request.param)


def test_a_stream_and_a_list_make_the_same_store(tmp_path):
    of_stream(tmp_path / "stream")
    of_list(tmp_path / "list")
    names = sorted(path.relative_to(tmp_path / "list") for path in (tmp_path / "list").rglob("*"))
    assert names == sorted(path.relative_to(tmp_path / "stream") for path in (tmp_path / "stream").rglob("*"))
    for name in names:
        if (tmp_path / "list" / name).is_file():
            assert (tmp_path / "stream" / name).read_bytes() == (tmp_path / "list" / name).read_bytes()


def test_every_sentence_of_the_corpus_has_its_row(built):
    assert len(built) == built.n == len(SENTENCES)
    np.testing.assert_array_equal(built.rows(built.row_ids), CountingEncoder().encode(CORPUS))
    np.testing.assert_array_equal(built.text_hashes, hash_texts(CORPUS))


def test_rows_come_in_the_order_asked_for(built):
    indices = np.random.default_rng(0).integers(0, built.n, size=100)
    np.testing.assert_array_equal(built.rows(indices), EXPECTED[indices])
    assert built.rows([]).shape == (0, 5)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("start", "stop"), [(0, None), (3, 17), (35, 36), (5, 5)])
def test_rows_come_in_blocks(built, size, start, stop):
    blocks = list(built.blocks(size, start, stop))
    assert max([0, *map(len, blocks)]) <= size
    np.testing.assert_array_equal(np.concatenate([np.empty((0, 5)), *blocks]), EXPECTED[start:stop])


def test_a_distinct_sentence_is_encoded_once(build, tmp_path):
    encoder = CountingEncoder()
    build(tmp_path / "store", encoder)
    build(tmp_path / "store", encoder)
    assert encoder.encoded == SENTENCES


def test_long_shards_are_encoded_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("bertflow.store.build.CHUNK", 4)
    built = of_list(tmp_path / "store", shards=2)
    np.testing.assert_array_equal(built.rows(built.row_ids), CountingEncoder().encode(CORPUS))


def test_the_distinct_sentences_as_a_list_find_everything_there(tmp_path):
    of_stream(tmp_path / "store", shards=5, dtype="float16")
    encoder = CountingEncoder()
    found = of_list(tmp_path / "store", encoder, SENTENCES)
    assert encoder.encoded == []
    assert found.row_ids.tolist() == list(range(len(SENTENCES))), "the row ids are those of the list"


def test_a_list_finishes_what_a_killed_stream_left(tmp_path):
    of_stream(tmp_path / "store")
    (tmp_path / "store/done/00003-of-00008.json").unlink()
    (tmp_path / "store/text").mkdir()
    of_list(tmp_path / "store")
    assert not (tmp_path / "store/text").exists()


def test_who_wants_to_is_told_what_is_done(tmp_path):
    done, totals = [], []
    of_stream(tmp_path / "store", begun=lambda store: totals.append(store.n) or done.append)
    assert totals == [sum(done)] == [len(SENTENCES)]


def test_half_precision_is_kept_around_a_center(tmp_path):
    # A common mean of 1000 with differences of a few hundredths: float16 alone has steps of half there.
    x = 1000 + np.random.default_rng(0).normal(size=(len(SENTENCES), 5), scale=0.05).astype(np.float32)

    class Far(CountingEncoder):
        def _encode(self, sentences, *_):
            return x[[SENTENCES.index(sentence) for sentence in sentences]]

    built = of_list(tmp_path / "store", Far(), SENTENCES, dtype="float16")
    np.testing.assert_allclose(built.rows(range(built.n)), x, atol=2e-4)
    assert np.load(next((tmp_path / "store/shards").iterdir())).dtype == np.float16


def test_many_rows_are_kept_in_more_shards():
    assert [default_shards(n) for n in (1, 8 * 65536, 8 * 65536 + 1, 10**7)] == [8, 8, 9, 153]


def test_a_finished_store_is_used_where_nothing_can_be_written(tmp_path, monkeypatch, refusal):
    of_stream(tmp_path / "store")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr("bertflow.jobs.locked", None)
    for again in (of_list, of_stream):
        assert len(again(tmp_path / "store")) == len(SENTENCES)
        assert "pooling 'mean'" in refusal(again, tmp_path / "store", CountingEncoder("cls"))


def test_a_function_of_a_store_is_a_store_of_the_same_text(tmp_path):
    built = of_stream(tmp_path / "store")
    doubled = built.mapped(lambda x: 2 * x[:, :1], tmp_path / "doubled", {"encoder": "length", "doubled": True}, 1)
    np.testing.assert_array_equal(doubled.rows(doubled.row_ids), 2 * built.rows(built.row_ids)[:, :1])
    np.testing.assert_array_equal(doubled.text_hashes, built.text_hashes)
    assert doubled.recipe == {"encoder": "length", "doubled": True}


# What is damaged, missing or different


@pytest.mark.parametrize(
    ("make", "digest"),
    [
        (lambda folder: of_list(folder, CountingEncoder("cls")), "pooling 'mean' (now 'cls')"),
        (lambda folder: of_stream(folder, CountingEncoder(dtype="bfloat16")), "dtype 'float32' (now 'bfloat16')"),
        (lambda folder: of_list(folder, shards=9), "shards 8 (now 9)"),
        (lambda folder: of_stream(folder, dtype="float16"), "storage 'float32' (now 'float16')"),
        (lambda folder: of_list(folder, text=CORPUS[::-1]), "text"),
        (lambda folder: of_stream(folder, text=CORPUS[::-1]), "corpus"),
        (lambda folder: of_stream(folder, text=CORPUS[:-1]), "corpus"),
        (lambda folder: of_stream(folder, text=[*CORPUS, "one more"]), "corpus"),
    ],
)
def test_a_store_of_something_else_is_not_mixed_in(refusal, tmp_path, make, digest):
    of_list(tmp_path / "store")
    if digest in ("text", "corpus"):
        make(tmp_path / "other")
        old, new = (read_record(tmp_path / name / "store.json", dict)[digest] for name in ("store", "other"))
        digest = f"{digest} {old!r} (now {new!r})"
    assert refusal(make, tmp_path / "store") == (
        f"{tmp_path / 'store'} holds a store of something else: {digest}. Choose another folder, or delete this one."
    )


@pytest.mark.parametrize("name", ["shards/00002-of-00008.npy", "done/00002-of-00008.json"])
@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-2])])
def test_a_shard_that_is_gone_or_cut_short_is_named(refusal, tmp_path, name, damage):
    of_list(tmp_path / "store")
    damage(tmp_path / "store" / name)
    assert refusal(EmbeddingStore.open, tmp_path / "store") == (
        f"{tmp_path / 'store'} is not finished: 1 of 8 shards are missing, 00002-of-00008.npy the first. "
        "Build it again with the same text and encoder; what is done is kept."
    )


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_a_flipped_number_is_refused_when_it_is_read_and_names_the_shard(refusal, tmp_path, storage):
    path = of_list(tmp_path / "store", shards=3, dtype=storage).folder / "shards/00001-of-00003.npy"
    flip(path)
    opened = EmbeddingStore.open(tmp_path / "store")
    assert opened.rows([3, 30]).shape == (2, 5), "shards that are not read are not compared"
    marker = tmp_path / "store/done/00001-of-00003.json"
    assert refusal(opened.rows, [14]) == f"{path} is damaged: its checksum is not the one in {marker}. {AGAIN}"
    assert refusal(opened.verify) == (
        f"{tmp_path / 'store'} is damaged: 1 of 3 shards are not what was written, 00001-of-00003.npy the first. "
        f"{AGAIN}"
    )
    of_list(tmp_path / "store").verify()


@pytest.mark.parametrize("name", ["row_ids.npy", "text_hashes.npy"])
def test_damaged_arrays_beside_the_rows_are_refused_and_made_again(refusal, build, tmp_path, name):
    expected = (build(tmp_path / "store").folder / name).read_bytes()
    flip(tmp_path / "store" / name)
    assert refusal(lambda: EmbeddingStore.open(tmp_path / "store").verify()) == (
        f"{tmp_path / 'store' / name} is damaged: it is not what the store was begun with. {AGAIN}"
    )
    build(tmp_path / "store").verify()
    assert (tmp_path / "store" / name).read_bytes() == expected


def test_a_shard_of_another_width_is_refused(refusal, tmp_path):
    store = of_list(tmp_path / "store", shards=3)
    write_record(store.folder / "store.json", read_record(store.folder / "store.json", dict) | {"dim": 6})
    assert refusal(lambda: EmbeddingStore.open(tmp_path / "store").rows([0])) == (
        f"{tmp_path / 'store/shards/00000-of-00003.npy'} should hold 12 x 6 float32, as store.json says, but holds "
        f"12 x 5 float32. {AGAIN}"
    )


@pytest.fixture
def older(tmp_path):
    """A finished store that was made with another transformers."""
    of_stream(tmp_path / "store")
    manifest = read_record(tmp_path / "store/store.json", dict)
    write_record(tmp_path / "store/store.json", manifest | {"versions": manifest["versions"] | {"transformers": "5.0"}})
    return tmp_path / "store", f"transformers '5.0' (now '{manifest['versions']['transformers']}')"


def test_a_finished_store_of_another_version_is_used_and_that_is_said(refusal, older, caplog):
    folder, change = older
    with caplog.at_level(logging.WARNING):
        of_stream(folder)
    assert caplog.messages == [f"{folder} was made by another version: {change}."]
    (folder / "done/00003-of-00008.json").unlink()
    assert refusal(of_stream, folder) == (
        f"{folder} holds a store of something else: {change}. Choose another folder, or delete this one."
    )


def other_files(folder):
    folder.mkdir()
    (folder / "thesis.doc").write_text("")
    of_stream(folder)


def other_format(folder):
    folder.mkdir()
    write_json(folder / "store.json", {"format": 99})
    EmbeddingStore.open(folder)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (EmbeddingStore.open, DataError, "{0}/store.json is missing. Is {0} the right folder, and complete?"),
        (
            other_format,
            DataError,
            "{0}/store.json was made by another version of bertflow: it has format 99, this one reads 3. Build it "
            "again.",
        ),
        (other_files, UsageError, "{0} should be a store, new or begun, but holds thesis.doc. Name another folder."),
        (lambda folder: of_list(folder).rows([-1]), UsageError, "Rows go from 0 to 35, got -1 to -1. Use row_ids for "
         "sentences."),
        (lambda folder: of_list(folder).rows([0, 36]), UsageError, "Rows go from 0 to 35, got 0 to 36. Use row_ids "
         "for sentences."),
        (lambda folder: of_list(folder, text=[]), UsageError, "A store needs sentences, got none. Give text."),
        (lambda folder: of_stream(folder, text=[]), UsageError, "A store needs sentences, got none. Give text."),
        (lambda folder: of_list(folder, shards=0), UsageError, "shards should be from 1 to 99,999, got 0."),
        (lambda folder: of_stream(folder, shards=0), UsageError, "shards should be from 1 to 99,999, got 0."),
        (
            lambda folder: of_list(folder, dtype="bfloat16"),
            UnknownNameError,
            "Unknown store dtype 'bfloat16'. Known: float32, float16. Did you mean float16?",
        ),
        (
            lambda folder: of_list(folder, CountingEncoder(scale=1e5), ["a", "a longer text"], shards=1, dtype=HALF),
            DataError,
            "Embeddings reach 600000, more than float16 can hold. Use a store of float32.",
        ),
    ],
)  # fmt: skip
def test_what_is_no_store_or_cannot_be_one_is_refused(refusal, tmp_path, use, error, message):
    assert refusal(use, tmp_path / "store", error=error) == message.format(tmp_path / "store")
