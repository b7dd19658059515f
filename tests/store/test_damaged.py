"""Stores that an accident has changed: what is read of them is what was written, or they are refused in one line."""

import json
import shutil
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertflow.encoder.abstract import AbstractEncoder
from bertflow.errors import BertflowError, DataError
from bertflow.records import read_record, write_record
from bertflow.store.store import EmbeddingStore

CORPUS = [*(f"sentence {k}" for k in range(12)), "sentence 3"]
AGAIN = "Build the store again with the same text and encoder; what is whole is kept."


class LetterEncoder(AbstractEncoder):
    """The embedding of a sentence is made of its letters; after ``left`` sentences the user presses Ctrl-C."""

    dim = 4

    def __init__(self, left=100):
        self.left = left

    def _encode(self, sentences, *_):
        self.left -= len(sentences)
        if self.left < 0:
            raise KeyboardInterrupt
        rows = [[np.sin(ord(text[-1 - k])) for k in range(self.dim)] for text in sentences]
        return np.array(rows, dtype=np.float32).reshape(-1, self.dim)

    def describe(self):
        return {"encoder": "letters", "pooling": "mean"}


def build(folder, storage=None, left=100):
    return EmbeddingStore.build_streamed(LetterEncoder(left), lambda: iter(CORPUS), folder, 3, storage)


def contents(store):
    return [store.rows(range(len(store))), np.array(store.row_ids), np.array(store.text_hashes)]


def flip(path, place=-3):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << 6
    path.write_bytes(content)


# A file is compared with its checksum when it is first read


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_a_flipped_number_is_refused_when_it_is_read_and_names_the_shard(tmp_path, storage):
    path = build(tmp_path / "store", storage).folder / "shards/00001-of-00003.npy"
    flip(path)
    opened = EmbeddingStore.open(tmp_path / "store")
    assert opened.rows([3, 8]).shape == (2, 4), "shards that are not read are not compared"
    with pytest.raises(DataError) as caught:
        opened.rows([4])
    marker = tmp_path / "store/done/00001-of-00003.json"
    assert str(caught.value) == f"{path} is damaged: its checksum is not the one in {marker}. {AGAIN}"
    np.testing.assert_allclose(build(tmp_path / "store").rows([4]), LetterEncoder().encode(["sentence 4"]), atol=1e-3)


@pytest.mark.parametrize("name", ["row_ids.npy", "text_hashes.npy"])
def test_damaged_arrays_beside_the_rows_are_refused_and_made_again(tmp_path, name):
    store = build(tmp_path / "store")
    expected = contents(store)
    flip(tmp_path / "store" / name)
    for check in (contents, EmbeddingStore.verify):
        with pytest.raises(DataError) as caught:
            check(EmbeddingStore.open(tmp_path / "store"))
        assert str(caught.value) == (
            f"{tmp_path / 'store' / name} is damaged: it is not what the store was begun with. {AGAIN}"
        )
    for found, wanted in zip(contents(build(tmp_path / "store")), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_text_that_was_damaged_before_a_store_was_finished_is_read_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "store", left=4)
    flip(tmp_path / "store/text/sentences.txt", place=-4)
    np.testing.assert_array_equal(build(tmp_path / "store").rows(range(12)), LetterEncoder().encode(CORPUS[:12]))


def test_a_shard_of_another_width_is_refused(tmp_path):
    store = build(tmp_path / "store")
    write_record(store.folder / "store.json", read_record(store.folder / "store.json", dict) | {"dim": 5})
    with pytest.raises(DataError) as caught:
        EmbeddingStore.open(tmp_path / "store").rows([0])
    assert str(caught.value) == (
        f"{tmp_path / 'store/shards/00000-of-00003.npy'} should hold 4 x 5 float32, as store.json says, but holds "
        f"4 x 4 float32. {AGAIN}"
    )


# Any accident

WRONG = [
    *("null", "true", "-1", "0", "1", "1000001", "9" * 30, "9" * 5000, "1e400", "NaN", "0.5", '""', '"x"', '"../x"'),
    *("[]", "[null]", "{}", '{"x": 1}', "[" * 3000, '"float16"', '"\\ud800"'),
]
"""What a value of a record is replaced by."""


def places(value, place=()):
    """Where each value of a record is."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*place, key))


def rewrite(path, number, raw):
    """Replace a value of a record; nothing else changes, its own checksum neither."""
    tree = [json.loads(path.read_text("utf-8"))]
    *parents, last = list(places(tree))[1:][number % (len(list(places(tree))) - 1)]
    inside = tree
    for key in parents:
        inside = inside[key]
    inside[last] = "@"
    path.write_text(json.dumps(tree[0]).replace('"@"', raw), "utf-8")


def loop(path):
    path.unlink()
    path.symlink_to(path.name)


def as_folder(path):
    path.unlink()
    path.mkdir()


ACCIDENTS = {
    "a flipped bit": lambda path, number, _: flip(path, number % path.stat().st_size),
    "cut short": lambda path, number, _: path.write_bytes(path.read_bytes()[: number % path.stat().st_size]),
    "longer": lambda path, number, _: path.write_bytes(path.read_bytes() + bytes(number % 200 + 1)),
    "gone": lambda path, *_: path.unlink(),
    "a folder": lambda path, *_: as_folder(path),
    "a link to itself": lambda path, *_: loop(path),
    "another value": lambda path, number, raw: rewrite(path, number, raw),
}
JSON = ("another value",)
accidents = st.tuples(st.sampled_from(sorted(ACCIDENTS)), st.integers(0, 10**6), st.integers(0, 10**6),
                      st.sampled_from(WRONG))  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Stores by name, one of them begun, and what they hold when they are finished."""
    folder = tmp_path_factory.mktemp("whole")
    expected = {name: contents(build(folder / name, name)) for name in ("float32", "float16")}
    with pytest.raises(KeyboardInterrupt):
        build(folder / "begun", left=4)
    return folder, {**expected, "begun": expected["float32"]}


def damaged(folder, tmp_path, accident):
    """A copy of a store, or of another folder with records, that had an accident."""
    kind, which, number, raw = accident
    copy = tmp_path / "store"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    paths = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.stat().st_size]
    records = [path for path in paths if path.suffix in (".json", ".journal")]
    chosen = records if kind in JSON else paths
    ACCIDENTS[kind](chosen[which % len(chosen)], number, raw)
    return copy


def require_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def read_or_refused(read):
    """What is read, or nothing: then it was refused."""
    with suppress(BertflowError, OSError):
        return contents(read())
    return None


@pytest.mark.parametrize("name", ["float32", "float16"])
@settings(max_examples=settings.default.max_examples // 2)
@given(accident=accidents)
def test_what_is_read_is_what_was_written(whole, tmp_path, name, accident):
    folder, expected = whole
    copy = damaged(folder / name, tmp_path, accident)
    if (found := read_or_refused(lambda: EmbeddingStore.open(copy))) is not None:
        require_equal(found, expected[name])


@pytest.mark.parametrize("name", ["float32", "begun"])
@settings(max_examples=settings.default.max_examples // 12)
@given(accident=accidents)
def test_what_is_built_again_is_what_was_written(whole, tmp_path, name, accident):
    folder, expected = whole
    copy = damaged(folder / name, tmp_path, accident)
    if (found := read_or_refused(lambda: build(copy))) is not None:
        require_equal(found, expected[name])
        assert not (copy / "text").exists()
