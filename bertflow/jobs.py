"""Work in parts: it survives ``kill -9``, and several processes share it.

    plan.json         what decides the result, and its parts; written once, before anything else (its name is the job's)
    done/PART.json    the mark of a part, written last: its rows, and size and checksum of its files
    .lock.PART        while a process makes a part; .lock.plan while one begins the job, or tidies up

A job is continued by calling it again: a part with a mark is kept, the others are made. A file is written aside and
renamed, so a part is there whole or is missing. A process takes the lock of the part that it makes, and no other
process touches that part until the lock is given back. The kernel gives back the locks of a process that ends, however
it ends: ``kill -9`` leaves nothing behind but an empty file that no process holds. The locks hold between machines
where their file system carries locks (NFS, GPFS, Lustre mounted with ``flock``). Where it does not, they are refused
instead of being replaced by something weaker; a scheduler that gives each part to one worker needs none
(``unlocked``).
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from filelock import FileLock, Timeout

from bertflow.errors import DataError, UsageError, how_many, logger
from bertflow.files import file_xxh3
from bertflow.progress import Advance, rank_and_world
from bertflow.records import Count, read_record, write_record

POLL = 0.2
"""Seconds between two attempts at a lock that another process holds."""
SAY_EVERY = 20.0
"""Fewest seconds between two lines that say which part is made."""
PLAN_LOCK = ".lock.plan"
DONE = "done"


@dataclass(frozen=True)
class Mark:
    """What the mark of a part says.

    Attributes:
        rows: Rows that it was made of.
        left_out: Rows that it lacks, by number or id, and what is wrong with each.
        files: Size and XXH3 of each of its files, by their paths in the folder of the job.
    """

    rows: Count
    left_out: list[tuple[int | str, str]]
    files: dict[str, tuple[Count, str]]


MarkOf = TypeVar("MarkOf", bound=Mark)
Lock: TypeAlias = Callable[[Path, str], AbstractContextManager[bool]]
"""``locked`` or ``unlocked``: the file of a lock, and what another process does while it is waited for."""


@contextmanager
def locked(path: Path, why: str = "") -> Iterator[bool]:
    """Hold a lock in a block, as the file ``path``, which is deleted while no other process can hold it.

    Args:
        path: The file; its folder is made if it is missing.
        why: Waits until no other process holds the lock; this is logged once as what another process does. Empty: does
            not wait.

    Yields:
        Whether the lock is held; False only without ``why``.

    Raises:
        DataError: If nothing can be written there, or the file system has no locks.
    """
    lock, new = FileLock(path, fallback_to_soft=False), not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout):
            lock.acquire(timeout=0)
        if why and not lock.is_locked:
            logger.info("%s: waiting for another process, which %s.", path.parent, why)
            lock.acquire(poll_interval=POLL)
    except OSError as error:
        raise DataError(
            f"{path} cannot be locked ({error.strerror}), so several processes could overwrite each other's work. "
            "Choose a folder where you may write, on a file system with locks."
        ) from error
    try:
        yield lock.is_locked
    finally:
        if lock.is_locked:
            with suppress(OSError):  # Windows deletes the file itself, after the lock is released
                path.unlink()
            lock.release()
        if new:
            with suppress(OSError):  # not empty: what the folder was made for is in it
                path.parent.rmdir()


def unlocked(_: Path, __: str = "") -> AbstractContextManager[bool]:
    """No lock: a scheduler gives each part to one worker at a time."""
    return nullcontext(True)


def begin_job(
    plan: Path, kind: str, own: Collection[str], make: Callable[[], Mapping[str, Any]], lock: Lock = locked
) -> bool:
    """Write the plan of a new job; returns whether it is new.

    Args:
        plan: File of the plan.
        kind: What its folder becomes, for messages.
        own: What the folder may hold before there is a plan: what a killed process left of this job.
        make: Makes the plan, and what has to be there before it.
        lock: ``locked`` or ``unlocked``.

    Raises:
        UsageError: If the folder holds other files.
    """
    with lock(plan.parent / PLAN_LOCK, f"begins the {kind}"):
        if plan.exists():
            return False
        require_own(plan, kind, own)
        write_record(plan, make())
    return True


def require_own(plan: Path, kind: str, own: Collection[str]) -> None:
    """Refuse the folder of a new job that holds other files.

    Raises:
        UsageError: If it does.
    """
    there = sorted(path.name for path in plan.parent.glob("*") if path.name not in own and path.name[0] != ".")
    if there and not plan.exists():
        raise UsageError(f"{plan.parent} should be a {kind}, new or begun, but holds {there[0]}. Name another folder.")


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between a plan and what is wanted now, in words."""
    keys = [key for key in sorted({**before, **now}) if before.get(key) != now.get(key)]
    return [f"{key} {before.get(key)!r} (now {now.get(key)!r})" for key in keys]


def require_plan(folder: Path, kind: str, changed: Sequence[str]) -> None:
    """Refuse to continue a job whose plan differs.

    Raises:
        DataError: If it does; the message names what differs.
    """
    if changed:
        raise DataError(
            f"{folder} holds a {kind} of something else: {', '.join(changed)}. "
            "Choose another folder, or delete this one."
        )


@dataclass(frozen=True)
class Job(Generic[MarkOf]):
    """The parts of a job.

    Attributes:
        folder: The folder of the job.
        names: Name of each part.
        schema: What a mark says.
        files: Files of a part, with ``{}`` for its name.
        noun: What a part is called.
        said: Fewest seconds between two lines that say which part is made.
    """

    folder: Path
    names: Sequence[str]
    schema: type[MarkOf]
    files: Sequence[str] = ()
    noun: str = "part"
    said: float = SAY_EVERY

    def paths(self, part: int) -> dict[str, Path]:
        """The files of a part, by their names in the folder."""
        return {name: self.folder / name for name in (file.format(self.names[part]) for file in self.files)}

    def mark_path(self, part: int) -> Path:
        """Where the mark of a part is."""
        return self.folder / DONE / f"{self.names[part]}.json"

    def mark(self, part: int) -> MarkOf | None:
        """The mark of a part; None if it is missing or damaged, or a file does not have the size that it gives."""
        try:
            found = read_record(self.mark_path(part), self.schema)
            sizes = {name: path.stat().st_size for name, path in self.paths(part).items()}
        except (DataError, OSError):
            return None
        return found if sizes == {name: size for name, (size, _) in found.files.items()} else None

    def set_mark(self, part: int, **facts: Any) -> None:
        """Mark a part as done, once its files are written."""
        files = {name: (path.stat().st_size, file_xxh3(path)) for name, path in self.paths(part).items()}
        write_record(self.mark_path(part), {**facts, "files": files})

    def is_whole(self, part: int) -> bool:
        """Whether the files of a part have the checksums that its mark gives; reads all of them."""
        mark = self.mark(part)
        return mark is not None and all(file_xxh3(self.folder / name) == one for name, (_, one) in mark.files.items())

    def marks(self) -> dict[int, MarkOf]:
        """The marks of the parts that are there."""
        found = ((part, self.mark(part)) for part in range(len(self.names)))
        return {part: mark for part, mark in found if mark is not None}

    def work(
        self,
        make: Callable[[int], object],
        advance: Advance = lambda rows: None,
        parts: Iterable[int] | None = None,
        lock: Lock = locked,
    ) -> None:
        """Make the parts that are missing, and wait for those that other processes make.

        Of several processes that a launcher started each begins with its share. A part that was there before is
        compared with its checksums by the process whose share it is in; a damaged one is made again. Which part is made
        is logged from time to time; so is each part that a process left when it ended, or that all were there before.

        Args:
            make: Makes and marks a part.
            advance: Is told the rows of the parts that are there already.
            parts: Some of them; all by default.
            lock: ``locked`` or ``unlocked``.
        """
        rank, world = rank_and_world()
        left = sorted(range(len(self.names)) if parts is None else parts, key=lambda one: ((one - rank) % world, one))
        there = {part for part in left if self.mark(part)}
        inherited = {part for part in there if part % world == rank}
        begun, made = -math.inf, False

        def finish(part: int) -> bool:
            """Make or check a part; False if another process holds it."""
            nonlocal begun, made
            left_behind = (path := self.folder / f".lock.{self.names[part]}").exists()
            with lock(path, "") as held:
                if held and (mark := self.mark(part)) and (part not in inherited or self.is_whole(part)):
                    advance(mark.rows)
                elif held:
                    self.mark_path(part).unlink(missing_ok=True)  # until the new files are complete, it is missing
                    if left_behind or (time.monotonic() - begun > self.said and len(self.names) > 1):
                        over = ", taken over from a process that has ended" * left_behind
                        logger.info("%s: %s %d of %d%s.", self.folder, self.noun, part + 1, len(self.names), over)
                        begun = time.monotonic()
                    made = True
                    make(part)
            return held

        while left:
            busy = [part for part in left if not finish(part)]
            if len(busy) == len(left):
                time.sleep(POLL)
            left = busy
        if not made and len(there) == len(self.names):
            parts_there = how_many(len(there), f"{self.noun}s")
            logger.info("%s is complete already: %s. Nothing is left to do.", self.folder, parts_there)
