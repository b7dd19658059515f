"""What the package decides for its user, as lines on stderr."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def notes_on_stderr(speaks: bool = True) -> Iterator[None]:
    """Show what the package decides for its user.

    Args:
        speaks: Whether this process does; several processes decide alike, and one of them is enough.
    """
    logger, handler = logging.getLogger("bertflow"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("note: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if speaks else logging.ERROR)
    try:
        with warnings.catch_warnings():
            if not speaks:
                warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
