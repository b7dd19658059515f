"""Text on its way into a store; the second voice is a dictionary."""

import numpy as np
import pytest

from bertflow.store import text as store_text
from bertflow.store.text import (
    distinct_rows,
    exact_hashes,
    index_text,
    text_digest,
    text_rows,
)
from bertflow.text_keys import hash_texts


def corpus(n=500, distinct=120):
    return [f"sentence {k} é {'x' * (k % 7)}" for k in np.random.default_rng(0).integers(0, distinct, n)]


@pytest.fixture(params=[(7, 2**20), (64, 16), (65536, 50)], ids=["small chunks", "many buckets", "few buckets"])
def sizes(request, monkeypatch):
    """Sizes at which a text of a few hundred sentences takes all roads."""
    monkeypatch.setattr(store_text, "CHUNK", request.param[0])
    monkeypatch.setattr(store_text, "BUCKET", request.param[1])


@pytest.mark.usefixtures("sizes")
def test_a_text_that_is_read_as_a_stream_is_the_text_in_memory(tmp_path):
    text = corpus()
    index = index_text(iter(text), tmp_path)
    distinct, row_ids = distinct_rows(text)
    assert index == (len(distinct), text_digest([exact_hashes(distinct)]), text_digest([exact_hashes(text)]))
    np.testing.assert_array_equal(np.load(tmp_path / "row_ids.npy"), row_ids)
    np.testing.assert_array_equal(np.load(tmp_path / "text_hashes.npy"), hash_texts(text))
    assert list(text_rows(tmp_path, 0, index[0])) == distinct


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (3, 40), (118, 119)])
def test_some_rows_of_a_text_are_read_alone(tmp_path, start, stop):
    index = index_text(corpus(), tmp_path)
    assert index[0] == 119
    assert list(text_rows(tmp_path, start, stop)) == distinct_rows(corpus())[0][start:stop]


def test_the_order_and_the_repeats_of_a_text_are_in_its_fingerprint():
    hashes = exact_hashes(["a", "b", "a"])
    assert len({text_digest([hashes]), text_digest([hashes[:2]]), text_digest([hashes[1::-1]])}) == 3
    assert text_digest([hashes[:1], hashes[1:]]) == text_digest([hashes])


def test_a_sentence_of_several_lines_is_refused(refusal, tmp_path):
    assert refusal(index_text, ["one", "two", "a\nb"], tmp_path) == (
        "Sentence 2 of the stream has several lines. Replace its line ends by spaces."
    )
