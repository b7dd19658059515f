import errno
import fcntl
import logging
import multiprocessing
import os
import signal

import pytest

from bertflow.errors import DataError, UsageError
from bertflow.store import locks as store_locks
from bertflow.store.locks import Locks, place

FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def _hold(path, number, held):
    with Locks(path) as locks:
        assert locks.take(number)
        held.set()
        signal.pause()


@pytest.fixture
def holder(tmp_path):
    """A process that holds lock 3."""
    held = FORK.Event()
    process = FORK.Process(target=_hold, args=(tmp_path / "lock", 3, held))
    process.start()
    assert held.wait(30)
    yield process
    process.kill()
    process.join(30)


@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize(("number", "free"), [(3, False), (2, True), (4, True)])
def test_what_another_process_holds_cannot_be_taken(tmp_path, number, free):
    with Locks(tmp_path / "lock") as locks:
        assert locks.take(number) is free


def test_a_process_that_is_killed_holds_nothing(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(30)
    with Locks(tmp_path / "lock") as locks:
        assert locks.take(3)


def test_who_waits_says_so_once_and_gets_it(tmp_path, holder, caplog, monkeypatch):
    monkeypatch.setattr(store_locks.time, "sleep", lambda seconds: (holder.kill(), holder.join(30)))
    with caplog.at_level(logging.INFO), Locks(tmp_path / "lock") as locks, locks.waiting(3, "reads the text"):
        pass
    assert caplog.messages == [f"{tmp_path}: waiting for another process, which reads the text."]


def test_what_is_given_back_is_free(tmp_path):
    with Locks(tmp_path / "lock") as locks:
        locks.take(3)
        locks.give_back(3)
        taken = FORK.Process(target=_take, args=(tmp_path / "lock", 3))
        taken.start()
        taken.join(30)
        assert taken.exitcode == 0


def _take(path, number):
    with Locks(path) as locks:
        os._exit(0 if locks.take(number) else 1)


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with Locks(tmp_path / "lock") as locks, pytest.raises(DataError) as caught:
        locks.take(0)
    assert str(caught.value) == (
        f"{tmp_path / 'lock'} cannot be locked (No locks available), so several processes could spoil each other's "
        "work. Put the folder on a file system with locks."
    )


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError) as caught, Locks(tmp_path / "file/lock"):
        pass
    assert str(caught.value) == (
        f"{tmp_path / 'file/lock'} cannot be written (File exists). Name a folder where you may write."
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, (3, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (1, 2)),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (0, 1)),
    ],
)
def test_the_launcher_says_which_process_this_is(environment, expected):
    assert place(environment) == expected


@pytest.mark.parametrize("rank", ["2", "-1", "x"])
def test_an_impossible_rank_is_refused(rank):
    with pytest.raises(UsageError) as caught:
        place({"RANK": rank, "WORLD_SIZE": "2"})
    assert str(caught.value) == (
        f"RANK should be a number from 0 to below WORLD_SIZE, got {rank} of 2. Set both, or neither."
    )
