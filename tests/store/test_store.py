"""The store; the second voice is the encoder, asked directly."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bertflow.encoder.abstract import AbstractEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UnknownNameError, UsageError
from bertflow.files import write_json
from bertflow.moments import Moments
from bertflow.records import read_record
from bertflow.store.store import EmbeddingStore
from bertflow.text_keys import hash_texts

WORDS = ["dog", "cat", "bird", "man", "house", "garden"]
SENTENCES = [f"the {first} and the {second}" for first in WORDS for second in WORDS]
CORPUS = [*SENTENCES[:20], "the dog and the dog", *SENTENCES[10:], "the cat and the dog"]


class CountingEncoder(AbstractEncoder):
    """The embedding of a sentence is made of its length and letters; what was encoded is remembered."""

    dim = 5

    def __init__(self, pooling="mean", scale=1.0, seconds=0.0):
        self.encoded, self.pooling, self.scale, self.seconds = [], pooling, scale, seconds

    def _encode(self, sentences, *_):
        time.sleep(self.seconds)
        self.encoded += sentences
        rows = [[len(text), *(text.count(letter) for letter in "adeo")] for text in sentences]
        return np.array(rows, dtype=np.float32).reshape(-1, self.dim) * np.float32(self.scale)

    def describe(self):
        return {"encoder": "counting", "pooling": self.pooling}

    def fitted_hashes(self):
        return np.empty(0, dtype=np.uint64)


@pytest.fixture(params=[1, 3, 8, 50])
def built(request, tmp_path):
    return EmbeddingStore.build(CountingEncoder(), CORPUS, tmp_path / "store", shards=request.param)


def test_a_shard_that_is_written_again_is_missing_until_it_is_whole(built):
    shard = built._shards[0]

    def blocks():
        yield np.zeros((1, built.dim), dtype=np.float32), {}
        raise RuntimeError

    with pytest.raises(RuntimeError):
        shard.write(blocks())
    assert not shard.is_done()


def test_every_sentence_of_the_corpus_has_its_row(built):
    assert len(built) == built.n == len(SENTENCES)
    np.testing.assert_array_equal(built.rows(built.row_ids), CountingEncoder().encode(CORPUS))


def test_rows_come_in_the_order_asked_for(built):
    indices = np.random.default_rng(0).integers(0, built.n, size=100)
    expected = CountingEncoder().encode([list(dict.fromkeys(CORPUS))[index] for index in indices])
    np.testing.assert_array_equal(built.rows(indices), expected)


def test_no_rows_are_an_empty_array(built):
    assert built.rows([]).shape == (0, 5)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_blocks_are_all_rows_in_order(built, size):
    blocks = list(built.blocks(size))
    assert max(len(block) for block in blocks) <= size
    np.testing.assert_array_equal(np.concatenate(blocks), built.rows(range(built.n)))


def test_moments_stream_over_it(built):
    streamed, whole = Moments.merged(map(Moments.of, built.blocks(7))), Moments.of(built.rows(range(built.n)))
    np.testing.assert_allclose(streamed.covariance, whole.covariance, rtol=1e-12, atol=1e-12)


def test_a_distinct_sentence_is_encoded_once(tmp_path):
    encoder = CountingEncoder()
    EmbeddingStore.build(encoder, CORPUS, tmp_path / "store")
    assert encoder.encoded == list(dict.fromkeys(CORPUS))


def test_long_shards_are_encoded_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("bertflow.store.build.CHUNK", 4)
    built = EmbeddingStore.build(CountingEncoder(), CORPUS, tmp_path / "store", shards=2)
    np.testing.assert_array_equal(built.rows(built.row_ids), CountingEncoder().encode(CORPUS))


def test_it_remembers_what_it_was_made_of(tmp_path):
    EmbeddingStore.build(CountingEncoder("cls"), CORPUS, tmp_path / "store")
    opened = EmbeddingStore.open(tmp_path / "store")
    assert opened.recipe == {"encoder": "counting", "pooling": "cls"}
    assert opened.dim == 5
    np.testing.assert_array_equal(opened.text_hashes, hash_texts(CORPUS))


def test_building_again_computes_nothing(tmp_path):
    EmbeddingStore.build(CountingEncoder(), CORPUS, tmp_path / "store")
    again = CountingEncoder()
    EmbeddingStore.build(again, CORPUS, tmp_path / "store")
    assert again.encoded == []


def test_half_precision_is_kept_around_a_center(tmp_path):
    # A common mean of 1000 with differences of a few hundredths: float16 alone has steps of half there.
    x = 1000 + np.random.default_rng(0).normal(size=(len(SENTENCES), 5), scale=0.05).astype(np.float32)

    class Far(CountingEncoder):
        def _encode(self, sentences, *_):
            return x[[SENTENCES.index(sentence) for sentence in sentences]]

    built = EmbeddingStore.build(Far(), SENTENCES, tmp_path / "store", dtype="float16")
    np.testing.assert_allclose(built.rows(range(built.n)), x, atol=2e-4)
    assert np.load(next((tmp_path / "store/shards").iterdir())).dtype == np.float16


def test_what_float16_cannot_hold_is_refused(tmp_path):
    with pytest.raises(DataError) as caught:
        EmbeddingStore.build(CountingEncoder(scale=1e5), ["a", "a longer text"], tmp_path / "store", 1, "float16")
    assert str(caught.value) == "Embeddings reach 600000, more than float16 can hold. Use a store of float32."


# What is damaged, missing or different


@pytest.mark.parametrize(
    ("encoder", "sentences", "shards", "changes"),
    [
        (CountingEncoder("cls"), CORPUS, 8, "pooling 'mean' (now 'cls')"),
        (CountingEncoder(), CORPUS, 9, "shards 8 (now 9)"),
        (CountingEncoder(), CORPUS[::-1], 8, "text '{old}' (now '{new}')"),
    ],
)
def test_a_store_of_something_else_is_not_mixed_in(tmp_path, encoder, sentences, shards, changes):
    folder = tmp_path / "store"
    EmbeddingStore.build(CountingEncoder(), CORPUS, folder)
    EmbeddingStore.build(CountingEncoder(), CORPUS[::-1], tmp_path / "other")
    old, new = (read_record(path / "store.json", dict)["text"] for path in (folder, tmp_path / "other"))
    with pytest.raises(DataError) as caught:
        EmbeddingStore.build(encoder, sentences, folder, shards)
    assert str(caught.value) == (
        f"{folder} holds a store of something else: {changes.format(old=old, new=new)}. "
        "Choose another folder, or delete this one."
    )


@pytest.mark.parametrize("kind", ["shards", "done"])
def test_a_shard_that_is_gone_is_named(tmp_path, kind):
    EmbeddingStore.build(CountingEncoder(), CORPUS, tmp_path / "store")
    suffix = {"shards": "npy", "done": "json"}[kind]
    (tmp_path / "store" / kind / f"00002-of-00008.{suffix}").unlink()
    with pytest.raises(DataError) as caught:
        EmbeddingStore.open(tmp_path / "store")
    assert str(caught.value) == (
        f"{tmp_path / 'store'} is not finished: 1 of 8 shards are missing, 00002-of-00008.npy the first. "
        "Build it again with the same text and encoder; what is done is kept."
    )


def test_a_damaged_shard_is_computed_again(tmp_path):
    built = EmbeddingStore.build(CountingEncoder(), CORPUS, tmp_path / "store")
    expected = built.rows(range(built.n))
    path = tmp_path / "store/shards/00002-of-00008.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    again = CountingEncoder()
    rebuilt = EmbeddingStore.build(again, CORPUS, tmp_path / "store")
    assert len(again.encoded) == len(SENTENCES) // 8
    np.testing.assert_array_equal(rebuilt.rows(range(rebuilt.n)), expected)


def test_a_folder_that_is_no_store_is_said(tmp_path):
    with pytest.raises(DataError) as caught:
        EmbeddingStore.open(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'store.json'} is missing. Is {tmp_path} the right folder, and complete?"


def test_a_store_of_another_format_is_refused(tmp_path):
    write_json(tmp_path / "store.json", {"format": 99})
    with pytest.raises(DataError) as caught:
        EmbeddingStore.open(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'store.json'} was made by another version of bertflow: it has format 99, this one reads 2. "
        "Build it again."
    )


@pytest.mark.parametrize(("indices", "got"), [([-1], "-1 to -1"), ([0, 36], "0 to 36")])
def test_a_row_out_of_range_gives_the_range(built, indices, got):
    with pytest.raises(UsageError) as caught:
        built.rows(indices)
    assert str(caught.value) == f"Rows go from 0 to 35, got {got}. Use row_ids for sentences."


@pytest.mark.parametrize(
    ("sentences", "shards", "message"),
    [
        ([], 8, "A store needs sentences, got none. Give text."),
        (["a"], 0, "shards should be from 1 to 99,999, got 0."),
    ],
)
def test_a_store_of_nothing_is_refused(tmp_path, sentences, shards, message):
    with pytest.raises(UsageError) as caught:
        EmbeddingStore.build(CountingEncoder(), sentences, tmp_path / "store", shards)
    assert str(caught.value) == message


def test_an_unknown_dtype_lists_the_known_ones(tmp_path):
    with pytest.raises(UnknownNameError) as caught:
        EmbeddingStore.build(CountingEncoder(), CORPUS, tmp_path / "store", dtype="bfloat16")
    assert str(caught.value) == "Unknown store dtype 'bfloat16'. Known: float32, float16. Did you mean float16?"


def test_a_killed_run_is_continued(tmp_path):
    folder = tmp_path / "store"
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_store import CORPUS, CountingEncoder, EmbeddingStore\n"
        "EmbeddingStore.build(CountingEncoder(seconds=0.2), CORPUS, sys.argv[2])\n"
    )
    here = str(Path(__file__).parent)
    run = subprocess.Popen([sys.executable, "-c", program, here, str(folder)])
    while len(list(folder.glob("done/*.json"))) < 3:
        assert run.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    done = len(list(folder.glob("done/*.json")))
    with pytest.raises(DataError, match=f"is not finished: {8 - done} of 8 shards are missing"):
        EmbeddingStore.open(folder)

    encoder = CountingEncoder()
    continued = EmbeddingStore.build(encoder, CORPUS, folder)
    assert 0 < len(encoder.encoded) <= len(SENTENCES) * (8 - done) // 8 + 1, "finished shards are kept"
    np.testing.assert_array_equal(continued.rows(continued.row_ids), CountingEncoder().encode(CORPUS))
    assert not list(folder.glob("shards/.*")), "no half-written file stays behind"


def test_the_real_encoder_fills_it(tiny_bert, tmp_path):
    encoder = TransformerEncoder(tiny_bert, "mean(2)", device="cpu")
    built = EmbeddingStore.build(encoder, CORPUS, tmp_path / "store")
    assert built.recipe == json.loads(json.dumps(encoder.describe()))
    np.testing.assert_allclose(built.rows(built.row_ids), encoder.encode(CORPUS), rtol=1e-5, atol=1e-6)
