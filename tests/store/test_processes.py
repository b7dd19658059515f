"""One store, several processes; the second voice is the store that one process makes."""

import multiprocessing
import os
import time

import numpy as np
import pytest

from bertflow.encoder.abstract import AbstractEncoder
from bertflow.store import build as store_build
from bertflow.store.store import EmbeddingStore

FORK = multiprocessing.get_context("fork")
SENTENCES = [f"sentence {k} of {k % 7} kinds" for k in range(160)]
CORPUS = [*SENTENCES, *SENTENCES[:20]]
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


class SlowEncoder(AbstractEncoder):
    """Takes its time over each call, and writes down what it was given."""

    dim = 3

    def __init__(self, log=None, seconds=0.0, hold=None):
        self.log, self.seconds, self.hold = log, seconds, hold

    def _encode(self, sentences, *_):
        if self.log:
            with self.log.open("a") as file:
                file.writelines(f"{sentence}\n" for sentence in sentences)
        if self.hold:
            self.hold.wait(60)
        time.sleep(self.seconds)
        return np.array([[len(text), hash_of(text), 1] for text in sentences], dtype=np.float32)

    def describe(self):
        return {"encoder": "slow", "pooling": "mean"}


def hash_of(text):
    return sum(text.encode()) % 101


def _build(folder, streamed, environment, log, seconds, hold):
    os.environ.update(environment)
    store_build.POLL = 0.01
    encoder = SlowEncoder(log, seconds, hold)
    if streamed:
        EmbeddingStore.build_streamed(encoder, lambda: iter(CORPUS), folder)
    else:
        EmbeddingStore.build(encoder, CORPUS, folder)


def start(folder, streamed=False, environment=(), log=None, seconds=0.0, hold=None):
    process = FORK.Process(target=_build, args=(folder, streamed, dict(environment), log, seconds, hold))
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
    """Every file of a store, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module", params=[False, True], ids=["in memory", "streamed"])
def alone(request, tmp_path_factory):
    """What one process makes, and whether of a stream."""
    folder = tmp_path_factory.mktemp("alone") / "store"
    _build(folder, request.param, {}, None, 0.0, None)
    return request.param, files(folder)


@pytest.mark.parametrize("ranked", [False, True], ids=["started by hand", "ranks"])
def test_two_processes_share_the_work_and_make_the_same_bytes(tmp_path, alone, ranked):
    streamed, expected = alone
    places = [{"RANK": str(rank), "WORLD_SIZE": "2"} if ranked else {} for rank in (0, 1)]
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    folder = tmp_path / "store"
    finish(*(start(folder, streamed, place, log, 0.05) for place, log in zip(places, logs, strict=True)))
    assert files(folder) == expected
    encoded = [log.read_text().splitlines() for log in logs]
    assert sorted(encoded[0] + encoded[1]) == sorted(SENTENCES), "nothing is encoded twice"


def test_a_rank_begins_with_its_own_shards(tmp_path):
    log = tmp_path / "log"
    finish(start(tmp_path / "store", environment={"RANK": "1", "WORLD_SIZE": "2"}, log=log))
    shard = len(SENTENCES) // 8
    assert log.read_text().splitlines()[: 2 * shard] == SENTENCES[shard : 2 * shard] + SENTENCES[3 * shard : 4 * shard]


def test_the_unfinished_file_of_another_process_is_left_alone(tmp_path, alone):
    streamed, expected = alone
    folder, go_on = tmp_path / "store", FORK.Event()
    first = start(folder, streamed, hold=go_on)
    theirs = wait_for(lambda: list(folder.glob("shards/.*")))
    second = start(folder, streamed)
    wait_for(lambda: len(list(folder.glob("done/*.json"))) == 7)
    assert list(folder.glob("shards/.*")) == theirs
    go_on.set()
    finish(first, second)
    assert files(folder) == expected


def test_the_shard_of_a_killed_process_is_taken_over(tmp_path, alone):
    streamed, expected = alone
    folder = tmp_path / "store"
    first = start(folder, streamed, hold=FORK.Event())
    wait_for(lambda: list(folder.glob("shards/.*")))
    second = start(folder, streamed)
    wait_for(lambda: len(list(folder.glob("done/*.json"))) == 7)
    first.kill()
    finish(second)
    assert files(folder) == expected, "also nothing half-written is left"


def test_a_process_that_is_killed_while_it_reads_text_leaves_nothing_in_the_way(tmp_path, alone):
    streamed, expected = alone
    if not streamed:
        pytest.skip("text in memory is not read")
    folder, hold = tmp_path / "store", FORK.Event()

    def stuck():
        yield from CORPUS[:50]
        hold.wait(60)

    reader = FORK.Process(
        target=lambda: EmbeddingStore.build_streamed(SlowEncoder(), stuck, folder),
    )
    reader.start()
    wait_for(lambda: list(folder.glob(".text.*/*")))
    reader.kill()
    reader.join(30)
    finish(start(folder, streamed))
    assert files(folder) == expected


def wait_for(condition):
    """What ``condition`` gives, as soon as that is something."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happened for a minute"
        time.sleep(0.01)
    return found
