import errno
import fcntl
import logging
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from bertflow.errors import DataError
from bertflow.store import build as store_build
from bertflow.store.build import locked

FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def _hold(path, number, held):
    with locked(path / f".lock.{number}") as mine:
        assert mine
        held.set()
        signal.pause()


def is_free(path, number):
    with locked(path / f".lock.{number}") as held:
        return held


@pytest.fixture
def holder(tmp_path):
    """A process that holds lock 3."""
    held = FORK.Event()
    process = FORK.Process(target=_hold, args=(tmp_path, 3, held))
    process.start()
    assert held.wait(30)
    yield process
    process.kill()
    process.join(30)


@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize(("number", "free"), [(3, False), (2, True), (4, True)])
def test_what_another_process_holds_cannot_be_taken(tmp_path, number, free):
    assert is_free(tmp_path, number) is free


def test_a_process_that_is_killed_holds_nothing(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(30)
    assert is_free(tmp_path, 3)


def test_who_waits_says_so_once_and_gets_it(tmp_path, holder, caplog, monkeypatch):
    monkeypatch.setattr(store_build.time, "sleep", lambda seconds: (holder.kill(), holder.join(30)))
    with caplog.at_level(logging.INFO), locked(tmp_path / ".lock.3", "reads the text"):
        pass
    assert caplog.messages == [f"{tmp_path}: waiting for another process, which reads the text."]


def test_what_is_given_back_is_free_and_leaves_no_file(tmp_path):
    assert is_free(tmp_path, 3)
    assert not list(tmp_path.iterdir())
    taken = FORK.Process(target=_take, args=(tmp_path, 3))
    taken.start()
    taken.join(30)
    assert taken.exitcode == 0


def _take(path, number):
    os._exit(0 if is_free(path, number) else 1)


def test_threads_exclude_each_other_as_processes_do(tmp_path):
    with locked(tmp_path / ".lock.3"), ThreadPoolExecutor() as threads:
        assert not threads.submit(is_free, tmp_path, 3).result()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, number):
    def no_locks(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(DataError) as caught:
        is_free(tmp_path, 0)
    assert str(caught.value) == (
        f"{tmp_path / '.lock.0'} cannot be locked ({os.strerror(number)}), so several processes could overwrite each "
        "other's work. Choose a folder where you may write, on a file system with locks."
    )


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"\.lock\.0 cannot be locked \(File exists\)"):
        is_free(tmp_path / "file", 0)
