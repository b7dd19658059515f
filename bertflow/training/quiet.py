"""What Lightning says that its user can do nothing about."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def known_warnings() -> Iterator[None]:
    """Hide the warning that Lightning 2.6 itself sets off under torch 2.13, and that of a run that is resumed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
        warnings.filterwarnings("ignore", message="The dirpath has changed from")
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Without banners: which devices there are, why the fit ended, what else could be installed."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
