"""Lines of text files; and rows that cannot be used: refused, or left out and listed where the user asks for it.

A file is UTF-8, or UTF-16 with its byte-order mark, or in the encoding of Windows for Western Europe, as a note says; a
line that is none of these is refused. It ends at LF or CRLF alone, since other characters that Unicode counts as line
ends occur in sentences; a byte-order mark is removed.

    with bertflow.skip_bad("bad.tsv") as skipped:        bertflow embed text.tsv --store mine --skip_bad bad.tsv
        bertflow.embed(["text.tsv"], store="mine")
    len(skipped)

A bad row is a line that is not UTF-8 or not JSON, a line with a cell too many, an empty cell, a score that is not a
number, a vector with a NaN or of zeros alone, a sentence whose embedding is not finite, for ``embed``. What is wrong
with a whole file (it is missing, it is damaged, its columns or its first line) is refused all the same, and so is a
task that has a known number of pairs.

The rows that are left are numbered without gaps, so row i of what is made is row i of those that were kept: what stands
in the list must be taken out of the input, too, to put both side by side.
"""

import codecs
import gzip
import io
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from bertflow.errors import BadRowsError, DataError, RowError, logger, reason_of, shown
from bertflow.places import require_files, require_place
from bertflow.progress import rank_and_world
from bertflow.tables import require_writable, write_rows

Given = TypeVar("Given")
Made = TypeVar("Made")
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How a file in UTF-16 begins."""
WINDOWS = "cp1252"
"""The encoding in which programs of Windows save text in languages of Western Europe."""
LONGEST = 2**26
"""Longest line that is read, in bytes: a file without line ends, or a bomb, should not fill the memory."""
NOT_SEEN = frozenset(("Cc", "Cf", "Zs", "Zl", "Zp"))
"""Unicode's categories of characters that nobody sees: controls, signs of format, white space."""
TEXT_BYTES, MOST_ZEROS = bytes([*b"\t\n\r\f\x1b", *range(32, 256)]), 3
"""Bytes of text, and stray zeros that a text may begin with: a file with more of others is binary."""
HEADER = ("file", "row", "line", "reason")
"""Columns of the list: rows are numbered as in messages, from 0 in vectors and from 1 in tables; lines from 1."""
OWN = (b"file\trow\tline\t", b"file,row,line,", b'{"file": ')
"""How such a list begins."""


class SkippedRows(dict[tuple[str, int | str], RowError]):
    """The rows that were left out so far, by file and number; one that is read twice counts once."""

    def add(self, error: RowError) -> None:
        """Leave out one more row."""
        self.setdefault((error.file, error.number), error)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """File, row, line and reason of each; of row and line one is empty."""
        numbers = (("", one.number) if one.unit == "line" else (one.number, "") for one in self.values())
        return [(one.file, *number, one.reason) for one, number in zip(self.values(), numbers, strict=True)]


_ACTIVE: ContextVar[SkippedRows | None] = ContextVar("skipped", default=None)


@contextmanager
def skip_bad(file: str | Path) -> Iterator[SkippedRows]:
    """Leave out rows that cannot be used, and list them, instead of refusing the first one.

    Args:
        file: Where the list is written when the block ends without an error: .tsv, .csv or .jsonl, with the columns
            file, row, line and reason. A list that is there is replaced.

    Yields:
        What is left out, as it becomes known.

    Raises:
        UnknownNameError: For another ending.
        DataError: If ``file`` holds something other than such a list.
        OSError: If nothing can be written there.
    """
    require_writable(file, "skip_bad")
    require_place(file)
    before = next(read_raw_lines(file), (0, b""))[1] if Path(file).is_file() else b""
    if before and not before.startswith(OWN):
        raise DataError(f"{file} should become the list of bad rows, but holds something else. Name another file.")
    skipped = SkippedRows()
    token = _ACTIVE.set(skipped)
    try:
        yield skipped
    finally:
        _ACTIVE.reset(token)
    if rank_and_world()[0] == 0:
        write_rows(file, HEADER, skipped.rows)


@contextmanager
def none_skipped() -> Iterator[None]:
    """Refuse bad rows in a block in any case, because they say how others are to be read."""
    token = _ACTIVE.set(None)
    try:
        yield
    except RowError as error:
        error.skippable = False
        raise
    finally:
        _ACTIVE.reset(token)


def skipping() -> SkippedRows | None:
    """What is left out so far; None where bad rows are refused."""
    return _ACTIVE.get()


def leave_out(error: RowError) -> None:
    """Refuse a row, unless bad rows are left out."""
    if (skipped := _ACTIVE.get()) is None:
        error.skippable = True
        raise error
    skipped.add(error)


def usable(make: Callable[[Given], Made], rows: Iterable[Given]) -> Iterator[Made]:
    """What ``make`` makes of rows, without those that it refuses with a ``RowError`` if ``skip_bad`` asks for it."""
    for row in rows:
        try:
            made = make(row)
        except RowError as error:
            leave_out(error)
        else:
            yield made


def refuse(bad: Mapping[int, str]) -> None:
    """Refuse rows, unless there are none or bad rows are left out."""
    if bad and _ACTIVE.get() is None:
        raise BadRowsError(bad)


def read_raw_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, also of one that ends in .gz, with their numbers from 1; without a byte-order mark.

    Those of UTF-16 come as UTF-8.

    Raises:
        DataError: If the file is missing or damaged, is not a file, or has a line of more than ``LONGEST`` bytes.
    """
    path = Path(path)
    require_files(path)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            lines: Iterator[bytes] = iter(lambda: file.readline(LONGEST), b"")
            if file.peek(2)[:2] in UTF_16:
                text = io.TextIOWrapper(file, "utf-16", newline="\n")
                lines = (line.encode() for line in iter(lambda: text.readline(LONGEST), ""))
            for number, line in enumerate(lines, start=1):
                if len(line) == LONGEST:
                    raise DataError(f"{path}, line {number}: it has {LONGEST:,} bytes or more. Break it into lines.")
                yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        wanted = "in UTF-16, as it begins" if isinstance(error, UnicodeDecodeError) else "gzip-compressed"
        raise DataError(f"{path} is damaged: it should be {wanted}, but: {reason_of(error)}. Fetch it again.") from None


State = tuple[str, int, int, int]
"""What a file is at one time: name, number, bytes and nanoseconds of its last change."""


def state_of(path: str | Path) -> State:
    """What a file is now; for what is kept of it."""
    require_files(path)
    facts = Path(path).stat()
    return str(path), facts.st_ino, facts.st_size, facts.st_mtime_ns


@lru_cache
def _is_windows(state: State) -> bool:
    """Whether no line of a file is UTF-8 beyond ASCII, and all of them are text in ``WINDOWS``: mostly ASCII."""
    beyond, signs, example = 0, 0, ""
    for _, raw in read_raw_lines(state[0]):
        if raw.isascii():
            continue
        try:
            text = raw.decode(WINDOWS)
            raw.decode()
        except UnicodeDecodeError as error:
            if error.encoding == "utf-8":
                beyond += len(raw) - len(raw.decode("ascii", "ignore"))
                signs += len(b"".join(raw.split()))
                example = example or text.strip()
                if b"\xff" not in raw:
                    continue
        return False
    if 3 * beyond >= signs:
        return False
    logger.info("%s is not UTF-8 and is read as text of Windows (%s): %s.", state[0], WINDOWS, shown(example))
    return True


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers from 1, without their line ends.

    Raises:
        DataError: If the file is missing or damaged, or a line is not UTF-8; the message gives line and byte, from 1.
    """
    return ((number, decoded(path, number, raw)) for number, raw in read_raw_lines(path))


def usable_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Lines that ``read_lines`` reads; those that are not text are left out where ``skip_bad`` asks for it."""
    return usable(lambda line: (line[0], decoded(path, *line)), read_raw_lines(path))


def decoded(path: str | Path, number: int, raw: bytes) -> str:
    """A line of a file as text, without its end.

    Raises:
        RowError: If it is not text, or holds a zero.
    """
    line = raw.removesuffix(b"\n").removesuffix(b"\r")
    if number == 1 and b"\r" in line and not raw.endswith(b"\n"):
        raise DataError(f"{path}: its lines end with CR alone. Save it with LF as the end of a line.")
    try:
        if (at := line.find(b"\0")) < 0:
            return line.decode()
        what, do = "zero, as in UTF-16", "Save the file as UTF-8, without zeros."
    except UnicodeDecodeError as error:
        if _is_windows(state_of(path)):
            return line.decode(WINDOWS)
        at, what, do = error.start, f"0x{line[error.start]:02x}, which is not UTF-8", "Save the file as UTF-8."
    if _is_binary(state_of(path)):
        raise DataError(f"{path} should hold text, but it is a binary file. Name a file of text, or convert it.")
    raise RowError(str(path), number, f"byte {at + 1} is {what}. {do}")


@lru_cache
def _is_binary(state: State) -> bool:
    """Whether a file begins with some zeros or many controls, but not with zeros at every second place, as UTF-16."""
    head = b"".join(line for _, line in islice(read_raw_lines(state[0]), 100))[:4096]
    if 4 * max(head[side::2].count(0) for side in (0, 1)) > len(head):
        return False
    return head.count(0) > MOST_ZEROS or 16 * len(head.translate(None, TEXT_BYTES)) > len(head)


def is_blank(text: str) -> bool:
    """Whether there is nothing to be seen in a text: it is empty, or white space, zeros and the like."""
    return all(unicodedata.category(sign) in NOT_SEEN for sign in text)
