"""Work in parts: whatever cuts a job off or damages its folder, it comes to the end of one that was left alone.

``JOBS`` has a row for each kind of job: how it is made, and what is in it. ``reindex`` has its own, with a database.
"""

import errno
import fcntl
import json
import logging
import multiprocessing
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertflow import jobs
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.errors import BertflowError, DataError
from bertflow.jobs import locked
from bertflow.store.store import EmbeddingStore

recipe = pytest.importorskip("bertflow.integrations.ray", reason="the ray extra is not installed")
FORK = multiprocessing.get_context("fork")
SENTENCES = [f"sentence {k} of {k % 7} kinds" for k in range(48)]
CORPUS = [*SENTENCES, *SENTENCES[:9]]
SHARDS = 4
TEXT = []
"""The file that holds the corpus."""
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


class LetterEncoder(AbstractEncoder):
    """The embedding of a sentence is made of its letters; after ``left`` sentences the user presses Ctrl-C.

    What it is given is written to ``log``; it takes ``seconds`` for each call, or until ``hold`` is set.
    """

    dim = 4

    def __init__(self, left=10**6, log=None, seconds=0.0, hold=None):
        self.left, self.log, self.seconds, self.hold = left, log, seconds, hold

    def _encode(self, sentences, *_):
        self.left -= len(sentences)
        if self.left < 0:
            raise KeyboardInterrupt
        if self.log:
            with self.log.open("a") as file:
                file.writelines(f"{sentence}\n" for sentence in sentences)
        if self.hold:
            self.hold.wait(60)
        time.sleep(self.seconds)
        rows = [[np.sin(ord(text[place])) for place in (9, 10, 14, 15)] for text in sentences]
        return np.array(rows, dtype=np.float32).reshape(-1, self.dim)

    def describe(self):
        return {"encoder": "letters", "pooling": "mean"}


def of_list(folder, encoder):
    return EmbeddingStore.build(encoder, CORPUS, folder, SHARDS)


def of_stream(folder, encoder, storage=None):
    return EmbeddingStore.build_streamed(encoder, lambda: iter(CORPUS), folder, SHARDS, storage)


def of_store(folder, encoder):
    source = EmbeddingStore.build(LetterEncoder(), CORPUS, folder.with_name("source"), SHARDS)
    return source.mapped(lambda x: x - encoder.encode(SENTENCES[: len(x)]), folder, {"encoder": "less"}, 4)


def by_ray(folder, encoder):
    """One part after the other in this process: a worker is called as Ray calls it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe.ray.data, "from_items", InProcess)
        return recipe.embed_with_ray([TEXT[0]], folder, lambda: encoder, piece=15)


class InProcess:
    """What the recipe asks of ``ray.data``."""

    def __init__(self, rows, **_):
        self.rows = rows

    def map(self, kind, fn_constructor_args, **_):
        self.worker = kind(*fn_constructor_args)
        return self

    def iter_rows(self):
        return map(self.worker, self.rows)


def rows_of(folder):
    store = EmbeddingStore.open(folder)
    return [store.rows(range(len(store))), np.array(store.row_ids), np.array(store.text_hashes)]


def tables_of(folder):
    tables = [pq.read_table(path) for path in sorted((folder / "vectors").glob("*.parquet"))]
    rows = [np.concatenate([np.array(table["row"].to_pylist(), dtype=int) for table in tables])]
    return [*rows, np.concatenate([np.stack(table["vector"].to_numpy()) for table in tables])]


JOBS = {
    "a store of a list": (of_list, rows_of),
    "a store of a stream": (of_stream, rows_of),
    "a store of float16": (lambda *given: of_stream(*given, "float16"), rows_of),
    "a function of a store": (of_store, rows_of),
    "vectors by ray": (by_ray, tables_of),
}
STORES = [name for name, (_, read) in JOBS.items() if read is rows_of]


def require_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Jobs that are done, jobs that were cut off, and what is in one that is done, by name."""
    folder, expected = tmp_path_factory.mktemp("whole"), {}
    TEXT[:] = [folder / "text.txt"]
    TEXT[0].write_text("\n".join(CORPUS))
    for name, (make, read) in JOBS.items():
        make(folder / name / "done", LetterEncoder())
        expected[name] = read(folder / name / "done")
        with pytest.raises(KeyboardInterrupt):
            make(folder / name / "begun", LetterEncoder(25))
    return folder, expected


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("left", range(5, 48, 9))
def test_a_job_that_is_cut_off_keeps_the_parts_that_are_done(whole, tmp_path, name, left):
    (make, read), log = JOBS[name], tmp_path / "log"
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "job", LetterEncoder(left))
    if read is rows_of:
        with pytest.raises(DataError, match=f"is not finished: {SHARDS - left // 12} of {SHARDS} shards are missing"):
            read(tmp_path / "job")
    make(tmp_path / "job", LetterEncoder(log=log))
    require_equal(read(tmp_path / "job"), whole[1][name])
    size = 15 if read is tables_of else 12
    assert len(log.read_text().splitlines()) == (57 if read is tables_of else 48) - left // size * size
    assert not list((tmp_path / "job").rglob(".*")), "no half-written file stays behind"
    make(tmp_path / "job", LetterEncoder(0))


# Damage

WRONG = [
    *("null", "true", "-1", "0", "1", "1000001", "9" * 30, "9" * 5000, "1e400", "NaN", "0.5", '""', '"x"', '"../x"'),
    *("[]", "[null]", "{}", '{"x": 1}', "[" * 3000, '"float16"', '"\\ud800"'),
]
"""What a value of a record is replaced by."""


def flip(path, place=-3):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << 6
    path.write_bytes(content)


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


def instead(path, make):
    path.unlink()
    make(path)


ACCIDENTS = {
    "a flipped bit": lambda path, number, _: flip(path, number % path.stat().st_size),
    "cut short": lambda path, number, _: path.write_bytes(path.read_bytes()[: number % path.stat().st_size]),
    "longer": lambda path, number, _: path.write_bytes(path.read_bytes() + bytes(number % 200 + 1)),
    "gone": lambda path, *_: path.unlink(),
    "a folder": lambda path, *_: instead(path, lambda there: there.mkdir()),
    "a link to itself": lambda path, *_: instead(path, lambda there: there.symlink_to(there.name)),
    "another value": rewrite,
}
accidents = st.tuples(st.sampled_from(sorted(ACCIDENTS)), st.integers(0, 10**6), st.integers(0, 10**6),
                      st.sampled_from(WRONG))  # fmt: skip


def damaged(folder, tmp_path, accident):
    """A copy of a job that had an accident."""
    kind, which, number, raw = accident
    copy = tmp_path / "job"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    paths = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.stat().st_size]
    chosen = [path for path in paths if path.suffix == ".json"] if kind == "another value" else paths
    ACCIDENTS[kind](chosen[which % len(chosen)], number, raw)
    return copy


@pytest.mark.parametrize("name", STORES[1:3])
@settings(max_examples=settings.default.max_examples // 2)
@given(accident=accidents)
def test_what_is_read_is_what_was_written_or_is_refused(whole, tmp_path, name, accident):
    folder, expected = whole
    copy = damaged(folder / name / "done", tmp_path, accident)
    with suppress(BertflowError, OSError):
        require_equal(rows_of(copy), expected[name])


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("state", ["done", "begun"])
@settings(max_examples=settings.default.max_examples // 10)
@given(accident=accidents)
def test_what_is_made_again_is_what_was_written_or_is_refused(whole, tmp_path, name, state, accident):
    (make, read), (folder, expected) = JOBS[name], whole
    copy = damaged(folder / name / state, tmp_path, accident)
    with suppress(BertflowError, OSError):
        make(copy, LetterEncoder())
        require_equal(read(copy), expected[name])
        assert not (copy / "text").exists()


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("damage", ["cut short", "a flipped bit"])
@pytest.mark.parametrize("which", ["file", "mark"])
def test_a_part_that_is_damaged_is_made_again_alone(whole, tmp_path, name, damage, which):
    (make, read), (folder, expected), log = JOBS[name], whole, tmp_path / "log"
    shutil.copytree(folder / name / "done", tmp_path / "job")
    files = {"mark": "done/*.json", "file": "vectors/*.parquet" if read is tables_of else "shards/*.npy"}
    path = sorted((tmp_path / "job").glob(files[which]))[1]
    ACCIDENTS[damage](path, path.stat().st_size - 9, "")
    make(tmp_path / "job", LetterEncoder(log=log))
    assert len(log.read_text().splitlines()) == (15 if read is tables_of else 12)
    require_equal(read(tmp_path / "job"), expected[name])


# Several processes


def _make(folder, name, environment, options):
    os.environ.update(environment)
    jobs.POLL = 0.01
    JOBS[name][0](folder, LetterEncoder(**options))


def start(folder, name, environment=(), **options):
    process = FORK.Process(target=_make, args=(folder, name, dict(environment), options))
    process.start()
    return process


def finish(*processes):
    for process in processes:
        process.join(60)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * len(processes)


def files(folder):
    """Every file of a job, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wait_for(condition):
    """What ``condition`` gives, as soon as that is something."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happened for a minute"
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("name", STORES[:2])
@pytest.mark.parametrize("ranked", [False, True], ids=["started by hand", "ranks"])
def test_two_processes_share_the_work_and_make_the_same_bytes(tmp_path, whole, name, ranked):
    places = [{"RANK": str(rank), "WORLD_SIZE": "2"} if ranked else {} for rank in (0, 1)]
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    given = zip(places, logs, strict=True)
    finish(*(start(tmp_path / "job", name, place, log=log, seconds=0.05) for place, log in given))
    assert files(tmp_path / "job") == files(whole[0] / name / "done")
    encoded = [line for log in logs if log.exists() for line in log.read_text().splitlines()]
    assert sorted(encoded) == sorted(SENTENCES), "nothing is encoded twice"


def test_a_rank_begins_with_its_own_parts(tmp_path):
    log = tmp_path / "log"
    finish(start(tmp_path / "job", STORES[0], {"RANK": "1", "WORLD_SIZE": "2"}, log=log))
    assert log.read_text().splitlines()[:24] == SENTENCES[12:24] + SENTENCES[36:48]


@pytest.mark.parametrize("name", STORES[:2])
@pytest.mark.parametrize("killed", [False, True])
def test_a_part_is_taken_over_only_from_a_process_that_is_killed(tmp_path, whole, name, killed):
    folder, go_on = tmp_path / "job", FORK.Event()
    first = start(folder, name, hold=go_on)
    theirs = wait_for(lambda: list(folder.glob("shards/.*")))
    second = start(folder, name)
    wait_for(lambda: len(list(folder.glob("done/*.json"))) == SHARDS - 1)
    assert list(folder.glob("shards/.*")) == theirs
    if killed:
        first.kill()
    else:
        go_on.set()
        finish(first)
    finish(second)
    assert files(folder) == files(whole[0] / name / "done"), "also nothing half-written is left"


def test_it_is_said_which_part_is_made_and_which_was_left_by_a_process_that_ended(tmp_path, caplog, monkeypatch):
    folder = tmp_path / "job"
    with pytest.raises(KeyboardInterrupt):
        of_list(folder, LetterEncoder(left=30))
    names = [f"{k:05d}-of-{SHARDS:05d}" for k in range(SHARDS)]
    left = sorted({*names} - {path.stem for path in folder.glob("done/*.json")})
    (folder / f".lock.{left[0]}").touch()  # what kill -9 leaves behind
    monkeypatch.setattr("bertflow.store.shards.SAY_SHARD_EVERY", -1.0)
    with caplog.at_level(logging.INFO, "bertflow"):
        of_list(folder, LetterEncoder())
    said = [message.removeprefix(f"{folder}: ") for message in caplog.messages if " of 4" in message]
    numbers = [names.index(one) + 1 for one in left]
    over = ", taken over from a process that has ended"
    assert said == [f"shard {one} of 4{over if one == numbers[0] else ''}." for one in numbers]
    caplog.clear()
    with caplog.at_level(logging.INFO, "bertflow"):
        of_list(folder, LetterEncoder())
    assert caplog.messages == [f"{folder} is complete already: 4 shards. Nothing is left to do."]


def test_the_first_part_of_several_is_said_at_once_and_a_quick_one_after_it_is_not(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("bertflow.store.shards.SAY_SHARD_EVERY", 1e9)
    with caplog.at_level(logging.INFO, "bertflow"):
        of_list(tmp_path / "job", LetterEncoder())
    assert caplog.messages == [f"{tmp_path / 'job'}: shard 1 of 4."]


def test_a_process_that_is_killed_while_it_reads_text_leaves_nothing_in_the_way(tmp_path, whole):
    folder, hold = tmp_path / "job", FORK.Event()

    def stuck():
        yield from CORPUS[:50]
        hold.wait(60)

    reader = FORK.Process(target=lambda: EmbeddingStore.build_streamed(LetterEncoder(), stuck, folder, SHARDS))
    reader.start()
    wait_for(lambda: list(folder.glob(".text.*/*")))
    reader.kill()
    reader.join(30)
    finish(start(folder, STORES[1]))
    assert files(folder) == files(whole[0] / STORES[1] / "done")


# Locks


def is_free(path, number=3):
    with locked(path / f".lock.{number}") as held:
        return held


def _hold(path, held):
    with locked(path / ".lock.3") as mine:
        assert mine
        held.set()
        signal.pause()


@pytest.fixture
def holder(tmp_path):
    """A process that holds lock 3."""
    held = FORK.Event()
    process = FORK.Process(target=_hold, args=(tmp_path, held))
    process.start()
    assert held.wait(30)
    yield process
    process.kill()
    process.join(30)


def test_what_another_process_holds_cannot_be_taken_until_it_is_killed(tmp_path, holder):
    assert [is_free(tmp_path, number) for number in (2, 3, 4)] == [True, False, True]
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(30)
    assert is_free(tmp_path)


def test_who_waits_says_so_once_and_gets_it(tmp_path, holder, caplog, monkeypatch):
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: (holder.kill(), holder.join(30)))
    with caplog.at_level(logging.INFO), locked(tmp_path / ".lock.3", "reads the text"):
        pass
    assert caplog.messages == [f"{tmp_path}: waiting for another process, which reads the text."]


def test_threads_exclude_each_other_as_processes_do_and_no_file_is_left(tmp_path):
    with locked(tmp_path / ".lock.3"), ThreadPoolExecutor() as threads:
        assert not threads.submit(is_free, tmp_path).result()
    assert is_free(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, number, refusal):
    def no_locks(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert refusal(is_free, tmp_path) == (
        f"{tmp_path / '.lock.3'} cannot be locked ({os.strerror(number)}), so several processes could overwrite each "
        "other's work. Choose a folder where you may write, on a file system with locks."
    )


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path, refusal):
    (tmp_path / "file").write_text("")
    assert ".lock.3 cannot be locked (File exists)" in refusal(is_free, tmp_path / "file")
