"""What users meet when something is wrong.

Every message says what was wanted, what was got, and what to do. ``exit_code`` is what the command line ends with:
2 for how a command was called, 3 for what was in the data, 4 for a threshold that was missed.
"""

import logging
import re
import reprlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import unquote

logger = logging.getLogger("bertflow")
"""What a user should know though nothing is refused: a command prints it as notes."""
MOST_RESAMPLES = 10**6
"""Most resamples of a bootstrap: all of them are kept in memory."""
HIDDEN = "***"
"""Text in place of a secret, and of whatever follows it."""
KEEP_SECRET = (
    "Leave it out. Passwords and keys belong in the environment or in a file of your own: PGPASSWORD or ~/.pgpass "
    "for Postgres, QDRANT_API_KEY for Qdrant, AWS_SECRET_ACCESS_KEY and the like for LanceDB in an object store."
)
"""What to do about a secret in an address."""
_SECRET = re.compile(
    r"pass(?:w|phrase|$)|pwd|secret|credential|(?:token|bearer|(?<!ssl)key)$|^(?:pw|auth|authorization|sig|sas)$", re.I
)
"""Names whose values are secrets; ``sslkey`` of Postgres is a file."""
_NAMED = re.compile(r"([\w.%+-]+)\s*=(?!=)")
"""A name with a value: an option after a ``?``, or a keyword of libpq."""
_USER = re.compile(
    r"(?:://[^\s/?#@:]*:|(?<![^\s'\"=])[a-z]{2,}:[^\s/?#@:]*:(?![/\\]))"
    r"(?=(?:(?!\d+(?:[/?,\s]|$)).*|\S*)@)|https?://(?=[^\s/?#@]+@)"
)
"""What stands before a password: ``://USER:`` or ``KIND:USER:`` where an ``@`` follows. A port is not one, unless an
``@`` follows it without a space. With http, a user is a key."""


class BertflowError(Exception):
    """Anything that bertflow refuses, with a message for the user."""

    exit_code = 2


class UsageError(BertflowError, ValueError):
    """An option or argument that cannot be used."""


class UnknownNameError(UsageError):
    """A name that is in no table; the message lists the known ones."""


class MissingAttributeError(UsageError, AttributeError):
    """A method or attribute that another library has; the message names what is used here."""


class MissingCodeError(BertflowError, ImportError):
    """A folder needs code of a user's own; the message names its module."""


class MissingExtraError(BertflowError, ImportError):
    """An optional package is not installed; the message carries the pip line."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"This needs the package {package}. Install it with: pip install 'bertflow[{extra}]'")


@contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """Imports of an optional package; without it, ``MissingExtraError``."""
    try:
        yield
    except ImportError:
        raise MissingExtraError(package, extra) from None


class DataError(BertflowError, ValueError):
    """Text, scores, embeddings or a folder that cannot be used; the message says where and what was there."""

    exit_code = 3


class RowError(DataError):
    """One row of a file that cannot be used: ``bertflow.skip_bad`` leaves such rows out.

    Args:
        file: The file, as messages call it.
        number: Number of the row, or its id in a database.
        reason: What was wanted, what was got, and what to do.
        unit: What the number counts: lines of the file, or rows; or "id".
    """

    skippable = False
    """Whether ``bertflow.skip_bad`` would leave the row out."""

    def __init__(self, file: str, number: int | str, reason: str, unit: str = "line") -> None:
        super().__init__(file, number, reason, unit)
        self.file, self.number, self.reason, self.unit = file, number, reason, unit

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}: {self.reason}"


class BadRowsError(DataError):
    """Rows of an array, or sentences of a list, that cannot be used.

    Args:
        bad: What is wrong with each of them, by its number from 0.
        message: What is said of the first; its number and what is wrong with it by default.
    """

    def __init__(self, bad: Mapping[int, str], message: str = "") -> None:
        super().__init__(message or "Row {}: {}".format(*min(bad.items())))
        self.bad = dict(bad)


class ThresholdMissedError(BertflowError):
    """A score fell below what the user asked for."""

    exit_code = 4


class NullDirectionWarning(UserWarning):
    """Some directions of the embeddings hold no variance and were left out."""


def without_null_warnings() -> AbstractContextManager[object]:
    """Leave out that warning where null directions are expected, or are reported otherwise."""
    return warnings.catch_warnings(action="ignore", category=NullDirectionWarning)


def require_between(least: float, most: float = sys.float_info.max, **given: Any) -> None:
    """Refuse numbers that are too small, too large or NaN; None (not given) and words such as "all" pass.

    Raises:
        UsageError: For the first one, with its name.
    """
    for name, value in given.items():
        if not isinstance(value, str | None) and not least <= value <= most:
            span = f"{least:,} or more" if most == sys.float_info.max else f"from {least:,} to {most:,}"
            raise UsageError(f"{name} should be {span}, got {value:,}.")


def require_one(**given: object) -> None:
    """Refuse several of these options, or none.

    Raises:
        UsageError: If not exactly one is given: is neither None, nor false, nor an empty list.
    """
    named = [name for name, value in given.items() if value not in (None, False, "", (), [])]
    if len(named) != 1:
        *first, last = given
        wanted = f"One of {', '.join(first)} and {last} is wanted"
        raise UsageError(f"{wanted}, got {' and '.join(named) or 'none'}. Give one.")


def require_seed(seed: int | None) -> None:
    """Refuse a random seed that NumPy or Lightning refuses.

    Raises:
        UsageError: If it is negative, or needs more than 32 bits.
    """
    require_between(0, 2**32 - 1, seed=seed)


_SHORT = reprlib.Repr()
vars(_SHORT).update(maxstring=60, maxother=60, maxlong=60, maxlevel=2)


def how_many(n: int, units: str) -> str:
    """How a message counts: 1 step, 2,000 steps."""
    return f"{n:,} {re.sub('ies$', 'y', units).removesuffix('s') if n == 1 else units}"


def shown(value: object) -> str:
    """A value for a message: its ``repr``, cut where it is long or deep."""
    return _SHORT.repr(value)


def reason_of(error: BaseException) -> str:
    """What a library says, for a message: in one line, without a stop, and cut, since some hold what they refuse."""
    text = redacted(" ".join(str(error).split()).rstrip(".")) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def is_secret(name: str) -> bool:
    """Whether the value of an option of that name is a secret."""
    return bool(_SECRET.search(unquote(name)))


def redacted(text: str) -> str:
    """A text without what follows the first password or key in it, in an address of any form."""
    ends = [one.end() for one in _USER.finditer(text)]
    ends += [one.end() for one in _NAMED.finditer(text) if is_secret(one[1])]
    return text[: min(ends)] + HIDDEN if ends else text


def require_no_secret(address: str) -> None:
    """Refuse an address with a password or a key, or one whose secret was hidden, without showing it.

    Raises:
        UsageError: If it holds one.
    """
    if redacted(address) != address or address.endswith(HIDDEN):
        raise UsageError(
            f"The address of a collection holds a password or a key, which others could read. {KEEP_SECRET}"
        )
