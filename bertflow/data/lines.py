"""The lines of a text file: UTF-8 or refused.

A line ends at LF or CRLF alone; other characters that Unicode counts as line ends stand inside sentences. A byte-order
mark is taken off. Files that end in ``.gz`` are read through gzip.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from bertflow.errors import DataError


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers from 1, without their line ends.

    Raises:
        DataError: If the file is missing, is damaged or is no UTF-8; the message gives line and byte, both from 1.
    """
    path = Path(path)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                text = _decode(raw, path, number)
                yield number, text.removeprefix("\ufeff") if number == 1 else text
    except FileNotFoundError:
        raise DataError(f"{path} is missing. Give the path of an existing file.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder. Name the files in it.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).rstrip(".")
        raise DataError(f"{path} is damaged: it should be gzip-compressed, but: {reason}. Fetch it again.") from None


def _decode(raw: bytes, path: Path, number: int) -> str:
    try:
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}, byte {error.start + 1}: 0x{raw[error.start]:02x} is no UTF-8. "
            "Save the file as UTF-8."
        ) from None
