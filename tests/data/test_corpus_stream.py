"""Sentences as a stream; the second voice is the list."""

import gc
import itertools

import pytest
from datasets import Dataset

from bertflow.data.corpus import load_sentences, stream_sentences
from bertflow.errors import DataError


def test_the_distinct_ones_of_a_stream_are_the_list(write):
    path = write("a.txt", "  Two\twords \n\nOne.\nTwo words\n \none.\nOne.\n")
    assert list(stream_sentences([path])) == ["Two words", "One.", "Two words", "one.", "One."]
    assert list(dict.fromkeys(stream_sentences([path]))) == load_sentences(path)


def test_a_stream_is_read_no_further_than_it_is_asked_for(write):
    path = write("a.txt", b"one\ntwo\n\xff\n")
    assert list(itertools.islice(stream_sentences([path]), 2)) == ["one", "two"]
    with pytest.raises(DataError, match="line 3"):
        list(stream_sentences([path]))


# The csv reader of datasets leaves a file to be closed when it is forgotten.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("name", "content"),
    [("train.jsonl", '{"text": "A b."}\n{"text": "C d."}\n'), ("train.csv", "text,n\nA b.,1\nC d.,2\n")],
)
def test_a_dataset_of_the_hub_is_streamed_and_not_stored(tmp_path, write, own_cache, name, content):
    write(f"owner/name/{name}", content)
    assert list(stream_sentences([f"hub:{tmp_path}/owner/name"])) == ["A b.", "C d."]
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    gc.collect()


def test_parquet_of_the_hub_is_streamed_too(tmp_path, own_cache):
    (tmp_path / "owner/name").mkdir(parents=True)
    Dataset.from_dict({"text": ["A b.", "C d."]}).to_parquet(str(tmp_path / "owner/name/train.parquet"))
    assert list(stream_sentences([f"hub:{tmp_path}/owner/name"])) == ["A b.", "C d."]


def test_no_sentences_are_refused(write):
    path = write("a.txt", "\n \n")
    with pytest.raises(DataError) as caught:
        list(stream_sentences([path]))
    assert str(caught.value) == f"{path} should hold sentences, but holds none. Give text."
