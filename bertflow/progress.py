"""Progress of long work: a bar where somebody watches, a log line now and then where the output goes to a file.

Work that cannot be counted is named (``working``), and a program says it where nothing else is said (``never_silent``).
Of several processes that a launcher started, the first one speaks.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from bertflow.errors import UsageError, how_many, logger

Advance = Callable[[int], object]
"""Function that is told how many more units are done."""
RANKS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
"""Variables in which torchrun and SLURM give rank and number of processes; the first pair that is set counts."""
EVERY = 15.0
"""Seconds between two log lines."""
READ = 1_000_000
"""Sentences between two log lines while text is read."""
DELAY = 1.0
"""Seconds of work after which a bar appears that was not asked for, or the name of work that has none."""
SILENCE = 20.0
"""Seconds without a word after which a program says that it is still at work."""
RATE = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"
"""Look of a bar: units a second, also where one takes longer, since tqdm's own look then has "1.23s/ steps"."""
_NAMED: list["Stretch"] = []
"""What is being done in this process, the innermost last."""


def watched() -> bool:
    """Whether somebody watches: stderr is a terminal, or this is a notebook."""
    return bool(sys.stderr and sys.stderr.isatty()) or "ipykernel" in sys.modules


@contextmanager
def bar(total: int, label: str, show: bool | None = None, unit: str = "sentences", done: int = 0) -> Iterator[Advance]:
    """Show the progress of some work on stderr, or in a notebook.

    Args:
        total: Number of units.
        label: What is being done.
        show: Whether to show a bar. None shows one in a terminal and in a notebook, and elsewhere logs a line from
            time to time.
        unit: What is counted, in the plural.
        done: Units that were done before.

    Yields:
        A function that is told how many more units are done.
    """
    first = rank_and_world()[0] == 0
    if total and first and (show or (show is None and watched())):
        from tqdm.auto import tqdm  # loads asyncio

        look: dict[str, Any] = {"unit": f" {unit}", "bar_format": RATE, "delay": 0 if show else DELAY}
        with (
            tqdm(total=total, desc=label, initial=done, dynamic_ncols=True, **look) as shown,
            working("", shown.refresh),
        ):
            yield shown.update
    else:
        with working(f"{label} {how_many(total, unit)}"):
            yield log_lines(total, label, unit, done) if first and show is None else lambda units: None


@dataclass(eq=False)
class Stretch:
    """Some work that is named; one with a bar has no name, as the bar says it."""

    label: str
    draw: Callable[[], object] = lambda: None
    """Draws its bar again."""
    begun: float = field(default_factory=time.monotonic)
    named: bool = False
    """Whether it was said."""


@contextmanager
def working(label: str, draw: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Name work that has no bar: a program says so where it takes long (``never_silent``), and draws a bar again."""
    _NAMED.append(stretch := Stretch(label, draw))
    try:
        yield
    finally:
        _NAMED.remove(stretch)


class LastWord(logging.Handler):
    """Knows when something was logged last."""

    def __init__(self) -> None:
        super().__init__()
        self.when = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        """Look at the clock."""
        self.when = time.monotonic()

    def silent(self, now: float) -> str:
        """What is to be said now: what was begun a moment ago, or that it goes on; empty for nothing."""
        stretches = list(_NAMED)
        if not stretches or not all(one.label for one in stretches):
            return ""
        stretch = stretches[-1]
        if now - self.when < SILENCE and (stretch.named or now - stretch.begun < DELAY):
            return ""
        if not stretch.named:
            stretch.named = True
            return stretch.label
        return f"{stretch.label}: still at work after {now - stretch.begun:.0f} s"


@contextmanager
def never_silent(label: str) -> Iterator[None]:
    """Log what is being done, whenever nothing was logged for ``SILENCE`` seconds; at most one at a time in a process.

    Args:
        label: What is done as a whole; was said before.
    """
    own, last, ended = logging.getLogger("bertflow.progress"), LastWord(), threading.Event()

    def watch() -> None:
        while not ended.wait(DELAY):
            if words := last.silent(time.monotonic()):
                own.info("%s", words)
            for stretch in [*_NAMED]:  # where no unit is done for long, the clock of a bar goes on
                stretch.draw()

    watcher = threading.Thread(target=watch, name="bertflow-progress", daemon=True)
    logger.addHandler(last)
    try:
        # A logger of its own, which also speaks where our other notes would mislead (``unsaid``).
        with at_level(logging.INFO, own.name), working(label):
            _NAMED[-1].named = True
            watcher.start()
            yield
    finally:
        ended.set()
        watcher.join()
        logger.removeHandler(last)


def reading(sentences: Iterable[str]) -> Iterator[str]:
    """The sentences; how many were read is logged from time to time, as the length of the text is unknown."""
    for number, sentence in enumerate(sentences, start=1):
        yield sentence
        if number % READ == 0:
            logger.info("reading: %s sentences", f"{number:,}")


def log_lines(total: int, label: str, unit: str, done: int = 0) -> Advance:
    """Progress as log lines; the time left is taken from the speed since the last line.

    Args:
        total: Number of units.
        label: What is being done.
        unit: What is counted, in the plural.
        done: Units that were done before.

    Returns:
        A function that counts more units, and logs a line if it is time.
    """
    said, when = done, time.monotonic()

    def advance(units: int) -> None:
        nonlocal done, said, when
        done += units
        now = time.monotonic()
        if now - when >= EVERY:
            rate = (done - said) / (now - when)
            left = f"{(total - done) / rate / 60:.1f} min left" if rate else "waiting"
            told = (label, f"{done:,}", f"{total:,}", unit, f"{rate:,.0f}", left)
            logger.info("%s: %s of %s %s, %s a second, %s", *told)
            said, when = done, now

    return advance


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


def rank_and_world(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
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
