"""A bar on stderr, for those who asked for one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def sentence_bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many more sentences are done."""
    columns = (TextColumn("encoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as progress:
        task = progress.add_task("encoding", total=total)
        yield lambda done: progress.advance(task, done)
