"""Notes on sentences that an encoder does not read as they stand; not said of each part of a text."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertflow.errors import how_many, logger

EMPTY = "Empty, and embedded by special tokens alone: %s of %s."
CUT = "Cut: %s of %s, at max_length=%d tokens. To read whole sentences, use %s."
_PARTS: list[dict[tuple[Any, ...], list[tuple[int, int]]]] = []
"""Numbers of sentences that a note holds for, and that it was asked of, part by part."""


def say(note: str, found: int, n: int, *how: object) -> None:
    """Say that ``note`` holds for ``found`` of ``n`` sentences, if it does for any."""
    before = _PARTS[-1].setdefault((note, *how), []) if _PARTS else []
    if found and not any(some for some, _ in before):
        logger.warning(note, f"{found:,}", how_many(n, "sentences"), *how)
    before.append((found, n))


@contextmanager
def said_once() -> Iterator[None]:
    """Say a note of the first part of a text that it holds for, and in the end of the whole; not of each part."""
    _PARTS.append({})
    try:
        yield
    finally:
        for (note, *how), parts in _PARTS.pop().items():
            if len(parts) > 1:
                say(note, sum(found for found, _ in parts), sum(n for _, n in parts), *how)
