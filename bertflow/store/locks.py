"""Locks between the processes that fill one store, with one lock file a shard.

A process takes the lock of the shard that it computes, and no other process touches that shard until the lock is given
back. The kernel gives back the locks of a process that ends, however it ends: ``kill -9`` leaves nothing behind but an
empty file that nobody holds. The locks hold between machines where their file system carries locks (NFS, GPFS, Lustre
mounted with ``flock``). Where it does not, they are refused instead of being replaced by something weaker.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from bertflow.errors import DataError, UsageError

logger = logging.getLogger("bertflow")

POLL = 0.2
"""Seconds between two attempts at a lock that another process holds."""
TEXT = "text"
"""The lock for reading the text; the lock of a shard has its number."""
RANKS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
"""Where torchrun and SLURM give the rank and the number of processes; the first pair that is set counts."""


class Locks:
    """The locks of one folder.

    Args:
        folder: The folder, made if it is missing. A lock is the file ``.lock.NAME`` in it while somebody holds it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str | int, FileLock] = {}

    def take(self, name: str | int) -> bool:
        """Take a lock.

        Returns:
            False if somebody else holds it.

        Raises:
            DataError: If nothing can be written there, or the file system has no locks.
        """
        path = self.folder / f".lock.{name}"
        lock = FileLock(path, timeout=0, fallback_to_soft=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            return False
        except OSError as error:
            raise DataError(
                f"{path} cannot be locked ({error.strerror}), so several processes could overwrite each other's work. "
                "Choose a folder where you may write, on a file system with locks."
            ) from error
        self._held[name] = lock
        return True

    def give_back(self, name: str | int) -> None:
        """Let others take the lock; its file is deleted while nobody else can hold it."""
        lock = self._held.pop(name)
        with suppress(OSError):  # Windows deletes the file itself, after the lock is released
            Path(lock.lock_file).unlink()
        lock.release()

    @contextmanager
    def waiting(self, name: str | int, why: str) -> Iterator[None]:
        """Hold a lock as soon as nobody else does; ``why`` is logged once if that takes time."""
        if not self.take(name):
            logger.info("%s: waiting for another process, which %s.", self.folder, why)
            while not self.take(name):
                time.sleep(POLL)
        try:
            yield
        finally:
            self.give_back(name)


def place(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Which process this is and of how many, as torchrun or SLURM say; (0, 1) where neither does.

    Raises:
        UsageError: If they say something impossible.
    """
    environment = os.environ if environment is None else environment
    for names in RANKS:
        values = [environment.get(name, "") for name in names]
        if all(values):
            if not (all(value.isdecimal() for value in values) and int(values[0]) < int(values[1])):
                raise UsageError(
                    f"{names[0]} should be a number from 0 to below {names[1]}, got {values[0]} of {values[1]}. "
                    "Set both, or neither."
                )
            return int(values[0]), int(values[1])
    return 0, 1
