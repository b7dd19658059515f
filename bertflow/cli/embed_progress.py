"""How far a long command is: a bar where somebody watches, a line now and then where the output goes to a file.

Of several processes the first one speaks.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bertflow.store.locks import place

EVERY = 15.0
"""Seconds between two lines."""
READ = 1_000_000
"""Sentences between two lines, while text is read whose length nobody knows."""
Advance = Callable[[int], None]


@contextmanager
def progress(what: str, total: int) -> Iterator[Advance]:
    """Give a function that is told how many more of ``total`` rows are done."""
    if sys.stderr.isatty():
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=total)
            yield lambda rows: bar.advance(task, rows)
    else:
        yield Lines(what, total).advance


class Lines:
    """Progress as lines on stderr; the time left is taken from the speed since the last line.

    Args:
        what: What is being done.
        total: Rows in all.
        clock: Gives seconds.
    """

    def __init__(self, what: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.what, self.total, self.clock = what, total, clock
        self.done = self._said = 0
        self._when = clock()

    def advance(self, rows: int) -> None:
        """So many more are done."""
        self.done += rows
        now = self.clock()
        seconds = now - self._when
        if seconds >= EVERY:
            rate = (self.done - self._said) / seconds
            left = f"{(self.total - self.done) / rate / 60:.1f} min left" if rate else "waiting"
            say(f"{self.what}: {self.done:,} of {self.total:,} rows, {rate:,.0f} a second, {left}")
            self._said, self._when = self.done, now


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
