"""What users meet when something is wrong.

Every message says what was wanted, what was got, and what to do. ``exit_code`` is what the command line ends with:
2 for how a command was called, 3 for what was in the data, 4 for a threshold that was missed.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class BertflowError(Exception):
    """Anything that bertflow refuses, with a message for the user."""

    exit_code = 2


class UsageError(BertflowError, ValueError):
    """An option or argument that cannot be used."""


class UnknownNameError(UsageError):
    """A name that is in no table; the message lists the known ones."""


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


class ThresholdMissedError(BertflowError):
    """A score fell below what the user asked for."""

    exit_code = 4


class NullDirectionWarning(UserWarning):
    """Some directions of the embeddings hold no variance and were left out."""


def first_line(error: Exception) -> str:
    """The first line of what a library says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
