"""Files and folders that are complete or absent.

They are written under another name and renamed when they are complete, so a run that is killed leaves the old file or
the new one, never half of one. JSON has sorted keys and no NaN, so that equal content is equal bytes.
"""

import gzip
import hashlib
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertflow.errors import DataError


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _aside(path: Path) -> Path:
    """A name beside ``path`` that nothing has yet, and that is hidden."""
    return path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Give a path to write to; it becomes ``path`` when the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    aside.touch(exist_ok=False)
    try:
        yield aside
        _sync(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: str | Path) -> Iterator[Path]:
    """Give an empty folder to fill; it becomes ``folder``, or replaces it, when the block ends without an error."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} should become a folder, but a file of that name is there. Choose another name.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(folder)
    aside.mkdir()
    try:
        yield aside
        for path in aside.rglob("*"):
            if path.is_file():
                _sync(path)
        _swap(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _swap(aside: Path, folder: Path) -> None:
    """Replace ``folder`` by ``aside``; the system cannot do that in one call if ``folder`` is not empty."""
    if not folder.exists():
        aside.rename(folder)
        return
    old = _aside(folder)
    folder.rename(old)
    aside.rename(folder)
    shutil.rmtree(old)


def file_sha256(*paths: Path) -> str:
    """SHA-256 of a file, or of several as if they were one."""
    sha = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: sha)
    return sha.hexdigest()


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all."""
    with atomic_file(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def to_json(value: Any) -> str:
    """One spelling for equal content: sorted keys, two spaces, no NaN, a final newline."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as JSON, whole or not at all."""
    write_text(path, to_json(value))


def read_raw_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, also of one that ends in .gz, with their numbers from 1.

    Raises:
        DataError: If the file is missing or damaged.
    """
    path = Path(path)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            yield from enumerate(file, start=1)
    except FileNotFoundError:
        raise DataError(f"{path} is missing. Give the path of an existing file.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder. Name the files in it.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).rstrip(".")
        raise DataError(f"{path} is damaged: it should be gzip-compressed, but: {reason}. Fetch it again.") from None
