"""Paths that were given: what is read is there, and what is to be written can be, before anything is computed."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from bertflow.errors import DataError, UsageError
from bertflow.next_steps import new_place


def expand(path: object) -> Path:
    """A path whose ``~`` is the home folder; ``~name`` stays as it is if there is no such user."""
    return Path(os.path.expanduser(str(path)))  # noqa: PTH111 - that of a Path fails where there is no such user


def require_files(*paths: object, parts: bool = False) -> None:
    """Refuse by a ``DataError`` files that are missing, or pipes, which cannot be read twice, before any is read.

    What is not a path, or is on the hub, is not checked. ``parts`` are of a folder that was written whole.
    """
    for path in paths:
        place = expand(path) if isinstance(path, str | Path) and not str(path).startswith("hub:") else None
        if place is None or place.is_file():
            continue
        if place.is_dir():
            wrong = "is a folder"
            known = (place / "config.json").is_file()
            do = "Name the encoder before the text." if known else "Name the files in it, or join them into one."
        elif not place.exists():
            wrong = "is a link that leads nowhere" if place.is_symlink() else "is missing"
            do = "Give the path of an existing file."
        else:
            wrong, do = "is a pipe or a device, not a file", "Write what comes out of it to a file."
        raise DataError(f"{path} {wrong}. {f'Is {place.parent} the right folder, and complete?' if parts else do}")


def require_place(
    path: str | Path | None, folder: bool = False, new: bool = False, sign: str = "", what: str = "", by: str = "output"
) -> None:
    """Refuse a place where no file, or no ``folder``, can be made, before anything is computed; None is not checked.

    Nothing is left there. If ``new``, it is not there, an empty folder, or ``what``, by the file ``sign``.

    Raises:
        OSError: As the system would later: for a file where a folder should be, missing permissions, or a long name.
        UsageError: If it has to be new, and something is there.
    """
    if path is None:
        return
    place = Path(os.path.realpath(path))
    held = place.exists() and not (place.is_dir() and not any(place.iterdir()))
    if new and held and not (sign and (place / sign).is_file()):
        full = f"folder {path} is {'not empty' if place.is_dir() else 'a file'}"
        full += f" and is not {what}" if what else ""
        full = full if folder else f"file {path} is there already"
        raise UsageError(f"Output {full}. Choose another {by}, as {new_place(path)}.")
    found = place if folder and place.exists() else next(one for one in place.parents if os.path.lexists(one))
    try:
        if place.is_dir() and not folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with TemporaryFile(dir=found), suppress(FileNotFoundError):
            for name in place.relative_to(found).parts:
                (found / f".{name}.{'0' * 8}").lstat()  # too long?
    except OSError as error:
        error.filename = str(path)
        raise


def require_room(path: Path, size: int) -> None:
    """Refuse to begin a file of ``size`` bytes that the disk cannot hold, by a ``DataError``."""
    if (free := shutil.disk_usage(path.parent).free) < size:
        raise DataError(
            f"{path} needs {size / 1e9:.3g} GB, but only {free / 1e9:.3g} GB are free there. "
            "Make room on that disk, or choose another place."
        )
