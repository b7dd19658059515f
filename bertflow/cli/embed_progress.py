"""What ``embed``, ``fit`` and ``transform`` say while they work; of several processes the first one speaks."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from bertflow.progress import Advance, bar
from bertflow.store.locks import place

READ = 1_000_000
"""Sentences between two lines, while text is read whose length nobody knows."""


def progress(what: str, total: int) -> AbstractContextManager[Advance]:
    """Give a function that is told how many more of ``total`` rows are done."""
    return bar(total, what, None if place()[0] == 0 else False, "rows")


def counted(sentences: Iterable[str]) -> Iterator[str]:
    """The same sentences; how many were read is said now and then."""
    for number, sentence in enumerate(sentences, start=1):
        yield sentence
        if number % READ == 0:
            say(f"reading: {number:,} sentences")


def say(line: str) -> None:
    """A line on stderr, from the first process alone."""
    if place()[0] == 0:
        print(line, file=sys.stderr, flush=True)
