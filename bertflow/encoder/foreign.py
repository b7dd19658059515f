"""What other libraries say and raise while they read a model: nothing, and one line."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

from bertflow.encoder.architecture import WANTS_MORE
from bertflow.errors import BertflowError, DataError, reason_of

FOREIGN = (*WANTS_MORE, EOFError, MemoryError, OSError)
"""What other libraries raise about damaged files, beside errors of their own."""
LIBRARIES = ("_pickle", "huggingface_hub", "onnxruntime", "pyo3_runtime", "safetensors", "zipfile", "zlib")
"""The libraries that have errors of their own."""


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No report about the weights that are left out on purpose, no progress bar for a file on disk."""
    verbosity, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bar:
            transformers_logging.enable_progress_bar()


class OneLine(AbstractContextManager[None]):
    """Says in one line, as ``DataError``, what another library cannot read.

    Args:
        failed: Begins the line; the first line of the reason follows.
    """

    def __init__(self, failed: str) -> None:
        self.failed, self._quiet = failed, quiet_transformers()

    def __enter__(self) -> None:
        self._quiet.__enter__()

    def __exit__(self, kind: Any, error: Any, *place: Any) -> None:
        self._quiet.__exit__(None, None, None)
        # tokenizers raise Exception itself
        foreign = kind is Exception or isinstance(error, FOREIGN) or _library(kind) in LIBRARIES
        if foreign and not isinstance(error, BertflowError):
            raise DataError(f"{self.failed}: {reason_of(error)}.") from error


def _library(kind: type[BaseException] | None) -> str:
    return kind.__module__.partition(".")[0] if kind else ""
