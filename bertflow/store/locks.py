"""Who works on what, where several processes fill one store.

One file, one byte a lock. A process takes the byte of the shard that it computes, and no other process touches that
shard until it is given back. The kernel gives back all bytes of a process that ends, however it ends: nothing is left
behind by ``kill -9``, and nobody has to guess whether a claim is still alive. Such locks hold between the machines of a
cluster where its file system carries them (NFS, GPFS, Lustre mounted with ``flock``).

They hold between processes, not between the threads of one.
"""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from bertflow.errors import DataError, UsageError

logger = logging.getLogger("bertflow")

POLL = 0.2
"""Seconds between two looks at a lock that another process holds."""
TEXT, SHARDS = 0, 1
"""The byte for reading the text; that of shard k is ``SHARDS + k``."""
RANKS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
"""Where torchrun and SLURM say which process this is, and of how many; the first pair that is set counts."""


class Locks:
    """The locks in one file; use it as a context, at the end of which all are given back.

    Args:
        path: The file, made if it is not there; it stays, empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be written ({error.strerror}). Name a folder where you may write."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def take(self, number: int) -> bool:
        """Take a lock; False if another process holds it.

        Raises:
            DataError: If the file system has no locks.
        """
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise DataError(
                f"{self.path} cannot be locked ({error.strerror}), so several processes could spoil each other's work. "
                "Put the folder on a file system with locks."
            ) from error
        return True

    def give_back(self, number: int) -> None:
        """Let others have it."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    @contextmanager
    def waiting(self, number: int, why: str) -> Iterator[None]:
        """Hold a lock, as soon as nobody else does; ``why`` is said once if that takes time."""
        if not self.take(number):
            logger.info("%s: waiting for another process, which %s.", self.path.parent, why)
            while not self.take(number):
                time.sleep(POLL)
        try:
            yield
        finally:
            self.give_back(number)


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
