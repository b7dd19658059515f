"""Progress of long work: a bar where somebody watches, a log line now and then where the output goes to a file.

Of several processes that a launcher started, the first one speaks.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from bertflow.errors import UsageError

logger = logging.getLogger("bertflow")

Advance = Callable[[int], object]
"""Is told how many more units are done."""
RANKS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
"""Where torchrun and SLURM give the rank and the number of processes; the first pair that is set counts."""
EVERY = 15.0
"""Seconds between two log lines."""
READ = 1_000_000
"""Sentences between two log lines while text is read."""
DELAY = 1.0
"""Seconds of work after which a bar appears that was not asked for."""


def watched() -> bool:
    """Whether somebody watches: stderr is a terminal, or this is a notebook."""
    return bool(sys.stderr and sys.stderr.isatty()) or "ipykernel" in sys.modules


@contextmanager
def bar(total: int, label: str, show: bool | None = None, unit: str = "sentences") -> Iterator[Advance]:
    """Show the progress of some work on stderr, or in a notebook.

    Args:
        total: Number of units.
        label: What is being done.
        show: Whether to show a bar. None shows one in a terminal and in a notebook, and elsewhere logs a line from
            time to time.
        unit: What is counted, in the plural.

    Yields:
        A function that is told how many more units are done.
    """
    first = place()[0] == 0
    if first and (show or (show is None and watched())):
        from tqdm.auto import tqdm  # loads asyncio

        with tqdm(total=total, desc=label, unit=f" {unit}", delay=0 if show else DELAY, dynamic_ncols=True) as shown:
            yield shown.update
    else:
        yield Lines(total, label, unit).advance if first and show is None else lambda units: None


def reading(sentences: Iterable[str]) -> Iterator[str]:
    """The same sentences; how many were read is logged from time to time, as the length of the text is unknown."""
    for number, sentence in enumerate(sentences, start=1):
        yield sentence
        if number % READ == 0:
            logger.info("reading: %s sentences", f"{number:,}")


class Lines:
    """Progress as log lines; the time left is taken from the speed since the last line.

    Args:
        total: Number of units.
        label: What is being done.
        unit: What is counted, in the plural.
        clock: Gives seconds.
    """

    def __init__(self, total: int, label: str, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.label, self.unit, self.clock = total, label, unit, clock
        self.done = self._said = 0
        self._when = clock()

    def advance(self, units: int) -> None:
        """Count ``units`` more, and log a line if it is time."""
        self.done += units
        now = self.clock()
        seconds = now - self._when
        if seconds >= EVERY:
            rate = (self.done - self._said) / seconds
            left = f"{(self.total - self.done) / rate / 60:.1f} min left" if rate else "waiting"
            logger.info(
                "%s: %s of %s %s, %s a second, %s",
                *(self.label, f"{self.done:,}", f"{self.total:,}", self.unit, f"{rate:,.0f}", left),
            )
            self._said, self._when = self.done, now


def unsaid() -> AbstractContextManager[None]:
    """Without our own notes, where the work is a trial whose notes would mislead."""
    return at_level(logging.ERROR, "bertflow")


@contextmanager
def at_level(level: int, *names: str) -> Iterator[None]:
    """Silence some loggers below ``level``."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(level)
        yield
    finally:
        for logger, before in zip(loggers, levels, strict=True):
            logger.setLevel(before)


def place(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank of this process and number of processes, as torchrun or SLURM give them; (0, 1) without a launcher.

    Raises:
        UsageError: If they contradict each other.
    """
    for names in RANKS:
        values = [environment.get(name, "") for name in names]
        if all(values):
            if not (all(value.isdecimal() for value in values) and int(values[0]) < int(values[1])):
                raise UsageError(
                    f"{names[0]} should be a number from 0 to below {names[1]}, got {values[0]} of {values[1]}. "
                    "Set both, or neither."
                )
            return int(values[0]), int(values[1])
    return 0, 1


def peak_memory() -> int | None:
    """Most bytes of memory that this process has held; None on Windows, which has no such figure."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
