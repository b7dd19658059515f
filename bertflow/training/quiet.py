"""What Lightning says that its user can do nothing about."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def known_warnings() -> Iterator[None]:
    """Hide the warning that Lightning 2.6 itself sets off under torch 2.13."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
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
