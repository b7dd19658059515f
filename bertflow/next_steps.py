"""What to type next about an encoder: for the card of a report, and for the end of a command.

The end of a command is read where it ran, so it knows what is installed and which names are free. A card is kept, and
read elsewhere: it knows neither.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

Words: TypeAlias = Sequence[object]
"""A command without ``bertflow``; a string is what to do in words, where no command works as it stands."""
FEWEST = 200
"""Number of different sentences that ``fix`` needs."""


@dataclass(frozen=True)
class Reader:
    """Where a command is read; by default the place of a card, elsewhere.

    Attributes:
        serves: Whether what ``bertflow serve`` needs is installed there.
        text: The file to fit on, where the user gave none.
        before: The command that writes this file; None if it is the reader's own.
        output: Options that name a new place; without them the command's own default.
    """

    serves: bool = True
    text: object = "mine.txt"
    before: Words | None = None
    output: Words = ()


def steps_after(
    model: object, reader: Reader, *, calibrated: bool = True, text: object = None, n: int = FEWEST, options: Words = ()
) -> list[Words]:
    """The commands that come next, once an encoder was made or looked at.

    Args:
        model: Its name; None for the encoder that comes as a package. No command can name an encoder in memory.
        reader: Where they are read.
        calibrated: Whether it has a calibrator.
        text: The text that was looked at, if it is a file.
        n: Number of its different sentences.
        options: How a raw encoder was opened.
    """
    own = text if isinstance(text, str | Path) else None
    if n < FEWEST and not calibrated:
        return [f"give more text: fix needs {FEWEST} different sentences or more, and {own or 'this text'} has {n}"]
    if model is None:
        return [["demo"]]
    if not isinstance(model, str | Path):
        return []
    if calibrated:
        return [["serve" if reader.serves else "inspect", model]]
    fix = ["fix", model, own or reader.text, *reader.output, *options]
    return [fix] if own or not reader.before else [reader.before, fix]


def option_words(**given: object) -> list[object]:
    """The options that were given, as words; None was not."""
    return [word for name, value in given.items() if value is not None for word in (f"--{name}", value)]


def new_place(path: object) -> Path:
    """The path, or the first like it where nothing stands yet: out, out-2, out-3."""
    wanted = Path(str(path))
    wanted = wanted / "out" if wanted.name in ("", "..") else wanted
    names = (wanted.with_stem(f"{wanted.stem}-{number}") if number > 1 else wanted for number in count(1))
    return next(one for one in names if not one.exists())


def command_line(words: Words) -> str:
    """A command as it is typed, quoted for the shell; a string as it is."""
    return words if isinstance(words, str) else shlex.join(["bertflow", *map(str, words)])


def next_command(model: object, **how: Any) -> str:
    """The line of a card: the one command of ``steps_after``, or nothing."""
    return "".join(map(command_line, steps_after(model, Reader(), **how)))
