"""What is said that its reader can do nothing about."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def known_warnings() -> Iterator[None]:
    """Hide the warning that Lightning 2.6 itself sets off under torch 2.13, and that of a run that is resumed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
        warnings.filterwarnings("ignore", message="The dirpath has changed from")
        yield


def quiet() -> AbstractContextManager[None]:
    """Without banners: which devices there are, why the fit ended, what else could be installed."""
    return at_level(logging.WARNING, "pytorch_lightning", "lightning_fabric")


def unsaid() -> AbstractContextManager[None]:
    """Without notes of our own, where nobody asked for what is done: a trial, a text made to be cut."""
    return at_level(logging.ERROR, "bertflow")


@contextmanager
def at_level(level: int, *names: str) -> Iterator[None]:
    """These loggers say nothing below ``level``."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(level)
        yield
    finally:
        for logger, before in zip(loggers, levels, strict=True):
            logger.setLevel(before)
