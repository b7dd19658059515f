"""Files and folders that are complete or absent.

They are written under another name and renamed when complete, so a run that is killed leaves the old file or the new
one, never half of one. JSON has sorted keys and no NaN, so that equal content is equal bytes.
"""

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from operator import methodcaller
from pathlib import Path
from typing import Any

import xxhash

from bertflow.errors import DataError, UsageError

if sys.platform != "win32":
    import fcntl

PARTIAL = re.compile(r"[0-9a-f]{8}")
"""What follows the name of a file in the hidden name of its unfinished successor."""
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
"""Error numbers of a call that the system, or its file system, does not know."""


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Give a path to write to; it becomes ``path`` when the block ends without an error."""
    path = Path(path)
    with _aside(path, lambda aside: aside.touch(exist_ok=False)) as aside:
        mode = aside.stat().st_mode  # by the umask; libraries and copies give the files that they write other ones
        yield aside
        aside.chmod(mode)
        _sync(aside)
        aside.replace(path)
        _sync(path.parent)


@contextmanager
def atomic_folder(folder: str | Path) -> Iterator[Path]:
    """Give an empty folder to fill; it becomes ``folder``, or replaces it, when the block ends without an error."""
    folder = Path(os.path.realpath(folder))  # what a link points to is replaced, not the link
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} should become a folder, but a file of that name is there. Choose another name.")
    restore(folder)
    held = folder.exists() and any(folder.iterdir())
    with _aside(folder, Path.mkdir) as aside:
        if folder.exists():
            _share(aside, folder.stat())
        mode = aside.stat().st_mode
        yield aside
        for path in (aside, *aside.rglob("*")):
            if not path.is_symlink():  # its mode is that of something else
                path.chmod(mode if path.is_dir() else mode & 0o666)
                _sync(path)
        _swap(aside, folder, held)


def _share(folder: Path, like: os.stat_result) -> None:
    """Give a folder, and what will be made in it, the group and permissions of the one that it replaces."""
    if hasattr(os, "chown"):  # not on Windows
        with suppress(PermissionError):
            os.chown(folder, -1, like.st_gid)
        folder.chmod(stat.S_IMODE(like.st_mode))


def scratch_folder(path: Path) -> AbstractContextManager[Path]:
    """A hidden folder beside ``path``, removed in the end; if this process is killed, by the next one."""
    return _aside(path, Path.mkdir)


def allocate(path: Path) -> None:
    """Take the disk blocks of a sparse file, before it is memory-mapped: a full disk would kill the process later."""
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def restore(folder: Path) -> None:
    """Bring back a folder whose replacement was cut off between two renames, or finish that replacement."""
    if _abandoned(old := _old(folder)):
        if folder.exists():
            _remove(old)
        else:
            old.rename(folder)


def _sync(path: Path) -> None:
    if sys.platform == "win32" and path.is_dir():  # it opens no folders
        return
    with _opened(path) as number:
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno not in UNSUPPORTED:  # some network file systems do not sync folders
                raise


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Lock a file or folder while this process writes it; the system releases it when the process dies."""
    if sys.platform == "win32":
        yield
        return
    with _opened(path) as number:
        with suppress(OSError):  # a file system without locks: nothing on it is ever taken for abandoned
            fcntl.flock(number, fcntl.LOCK_EX)
        yield


def _abandoned(path: Path) -> bool:
    """Whether there is an unfinished file or folder that no process holds."""
    if sys.platform == "win32":
        return False
    try:
        with _opened(path) as number:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, ValueError):  # held, or missing, or not even a path
        return False
    return True


@contextmanager
def _aside(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """A new hidden name beside ``path``, removed in the end; those that dead processes left are removed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(path)
    while True:
        aside = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
        make(aside)
        try:
            with _held(aside):
                if aside.exists():  # else another process swept it before it was held
                    yield aside
                    return
        except OSError as error:
            if error.filename is None and error.errno is not None:  # a write to an open file knows no path
                error.filename = str(path)
            raise
        finally:
            _remove(aside)


def remove_unfinished(path: Path) -> None:
    """Remove what dead processes left of ``path``, unfinished."""
    hidden = f".{path.name}."
    with os.scandir(path.parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(hidden)]
    for name in names:
        if PARTIAL.fullmatch(name.removeprefix(hidden)) and _abandoned(path.parent / name):
            _remove(path.parent / name)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _old(folder: Path) -> Path:
    """Where a folder lies while it is replaced, on systems that cannot exchange two folders."""
    return folder.parent / f".{folder.name}.old"


def _swap(aside: Path, folder: Path, held: bool) -> None:
    """Give ``aside`` the name ``folder``; what that ``held`` before is at ``aside`` afterwards, or gone."""
    try:
        aside.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not held:
            raise UsageError(f"Another process wrote {folder} meanwhile. Choose another place.") from None
        if not _exchanged(aside, folder):
            with _held(folder):
                folder.rename(_old(folder))
                aside.rename(folder)
            _remove(_old(folder))
    _sync(folder.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system, or the file system, has no such step."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, paths are relative to the working directory; and RENAME_EXCHANGE
    if rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    if (number := ctypes.get_errno()) in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))


def file_sha256(*paths: Path) -> str:
    """SHA-256 of a file, or of several as if they were one."""
    return _digest(hashlib.sha256(), *paths)


def file_xxh3(path: Path) -> str:
    """XXH3 of a file, 64 bits: it finds accidents, and is many times faster than a disk."""
    return _digest(xxhash.xxh3_64(), path)


def _digest(digest: Any, *paths: Path) -> str:
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return str(digest.hexdigest())


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all."""
    with atomic_file(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def to_json(value: Any, indent: int | None = 2) -> str:
    """One spelling for equal content: sorted keys, two spaces, no NaN, a final newline; NumPy's numbers are plain."""
    plain = methodcaller("item")
    return json.dumps(value, indent=indent, sort_keys=True, ensure_ascii=False, allow_nan=False, default=plain) + "\n"


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as JSON, whole or not at all."""
    write_text(path, to_json(value))
