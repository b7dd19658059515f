"""The program ``bertflow COMMAND ...``: what it says, and how whatever goes wrong ends.

A program says first what it will do. What is refused ends in one line and an exit code: 0 done, 1 interrupted,
2 usage, 3 data or disk, 4 a threshold was missed, 5 an error of bertflow itself.
"""

import atexit
import errno
import gc
import logging
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import version
from itertools import takewhile
from typing import Any

from bertflow.cli.commands import COMMANDS
from bertflow.cli.printing import say
from bertflow.errors import KEEP_SECRET, BertflowError, DataError, UsageError, is_secret, logger, reason_of, redacted
from bertflow.progress import at_level, never_silent
from bertflow.registry import did_you_mean

HELP = frozenset(("-h", "--help"))
"""Options with which a command shows something at once, and does nothing."""
DEBUG = "--debug"
"""The option of every command that shows the traceback of an error of bertflow itself."""
IMPORT = "--import"
"""The option of every command that imports a module of the user's, which may add rows to our tables."""
imported: list[str] = []
"""What it imported."""
_WHOLE = "Is it whole, and is there room on the disk?"
_MEMORY = "There is not enough memory: {}. Ask for less at a time, or take a larger machine."
OTHERS: Mapping[str, str] = {
    "SafetensorError": f"A file of weights cannot be read or written: {{}}. {_WHOLE}",
    "OperationalError": f"An index cannot be read or written: {{}}. {_WHOLE}",
    **dict.fromkeys(("MemoryError", "OutOfMemoryError"), _MEMORY),
}
"""Errors of the machine that the operating system does not raise, by the name of a class (safetensors', SQLite's and
torch's are slow to import)."""
INTERNAL = 5
"""The exit code of an error of bertflow itself."""
ADVICE: Mapping[int, str] = {
    errno.ENOSPC: "Make room on that disk, or choose another place",
    errno.EDQUOT: "Make room in your quota, or choose another place",
    errno.EFBIG: "Raise the limit on the size of a file (ulimit -f), or choose another place",
    errno.EROFS: "Choose a place that can be written",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Change its permissions, or choose another place"),
    errno.EEXIST: "Something stands there that should not: choose another place",
    errno.ENOTDIR: "A file stands where a folder should be: choose another place",
    errno.EISDIR: "A folder stands where a file should be: choose another place",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.EMFILE: "Raise the limit on open files (ulimit -n)",
}
"""What to do about what the operating system refuses, by its number."""
USING = re.compile(r": using columns? ")
"""Words of a note on what is read of a table, which is said again below a long answer."""
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
"""Variables in which launchers write which process this is; the first that is set counts, as in Lightning."""


def main(argv: Sequence[str] | None = None, script: str | None = None) -> int:
    """Run ``bertflow``; returns the exit code.

    Args:
        argv: The words of a command line; by default those of this process, which then is never silent for long.
        script: The command, for a script that is one command.
    """
    if argv is None:
        atexit.register(gc.freeze)  # else Python looks for cycles among all that was loaded: more than a second
    if sys.flags.optimize > 1:
        return _failed("Python runs without docstrings (-OO), which hold the options. Use -O.", UsageError.exit_code)
    words = [*([script] if script else []), *(sys.argv[1:] if argv is None else argv)]
    if not words or words[0] in HELP:
        return run(lambda _: print(_help()) or 0, [])
    if words[0] == "--version":
        return run(lambda _: print(f"bertflow {version('bertflow')}") or 0, [])
    if words[0] not in COMMANDS:
        meant = did_you_mean(words[0], COMMANDS)
        return _failed(f"Unknown command {words[0]!r}.{meant} Known: {', '.join(COMMANDS)}.", UsageError.exit_code)
    said = argv is None and is_first_process() and not HELP.intersection(words)
    return run(lambda rest: called(words[0], rest), words[1:], announced(words) if said else "")


def announced(words: Sequence[str]) -> str:
    """What a command line will do, in one line: its command, what was given by place, and what that command is for.

    It is cut off where a password or a key begins.
    """
    import shlex
    import textwrap

    given = takewhile(lambda word: not word.startswith("-"), words)
    # The whole of a long path would be all that is seen.
    named = (word.rstrip("/").rsplit("/", 1)[-1] if word.startswith("/") else word for word in given)
    line = textwrap.shorten(redacted(shlex.join(named)), 48, placeholder=" ...")
    line += "'" * (line.count("'") % 2)  # of a text that was cut
    row = COMMANDS[words[0]]
    row = row.actions.get(" ".join(words[1:2]), row)
    does = "show all options with their values" if "--print_config" in words else row.does
    return _printable(f"bertflow {line}: {does}")


def called(name: str, argv: Sequence[str]) -> int:
    """Run a command, or the action of it that comes first; returns the exit code.

    Raises:
        UsageError: If there is no action, or none of that name.
    """
    from bertflow.cli.command import command, help_of_actions  # loads jsonargparse, which --help does without

    actions = COMMANDS[name].actions
    if not actions:
        return command(name).main(argv)
    action, *rest = argv or [""]
    if action in HELP:
        print(help_of_actions(name))
        return 0
    if action not in actions:
        got = f"Unknown action {action!r} of bertflow {name}." if action else "An action is wanted, got none."
        raise UsageError(f"{got}{did_you_mean(action, actions)} Known: {', '.join(actions)}.")
    return command(f"{name} {action}").main(rest)


def run(command: Callable[[list[str]], int], argv: Sequence[str] | None = None, announcement: str = "") -> int:
    """Run one command; whatever goes wrong becomes one line and an exit code.

    ``--debug``, or ``BERTFLOW_DEBUG=1`` in the environment, prints the traceback of an error of bertflow itself.

    Args:
        command: Takes the words, returns the exit code.
        argv: The words; those of this process by default.
        announcement: A line on stderr before the command; there are others then wherever it is silent for long.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if odd := [word for word in argv if any("\ud800" <= character <= "\udfff" for character in word)]:
        return _failed(f"{odd[0]!r} is not UTF-8. Set LC_ALL=C.UTF-8, or rename the file.", BertflowError.exit_code)
    try:
        with stopped_by_sigterm(), notes_on_stderr(), ExitStack() as stack:
            if announcement and sys.stderr:
                say(announcement, sys.stderr)
                stack.enter_context(never_silent(" ".join(announcement.split()[:2]).rstrip(":")))
            code = command([word for word in without_imports(argv) if word != DEBUG])
        if sys.stdout:  # none where a process is started without one
            sys.stdout.flush()  # a closed pipe shows here, not when the interpreter ends
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the output has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BertflowError as error:
        return _failed(str(error), error.exit_code)
    except OSError as error:
        return _failed(_of_the_system(error), DataError.exit_code)
    except Exception as error:
        if DEBUG in argv or os.environ.get("BERTFLOW_DEBUG") == "1":
            traceback.print_exc()
        if line := next((OTHERS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in OTHERS), ""):
            return _failed(line.format(reason_of(error)), DataError.exit_code)
        what = f"{type(error).__name__}: {reason_of(error)}"
        return _failed(f"Internal error: {what}. Please report it, with what {DEBUG} prints.", INTERNAL)
    return code


def without_imports(argv: Sequence[str]) -> list[str]:
    """The words without ``--import MODULE``; such modules are imported, also from the current folder.

    Raises:
        UsageError: If one cannot be.
    """
    rest, words = [], iter(argv)
    for word in words:
        option, _, given = word.partition("=")
        if option != IMPORT:
            rest.append(word)
            continue
        name = given or next(words, "")
        sys.path += [here] if (here := os.getcwd()) not in sys.path else []  # noqa: PTH109 - as Python spells it
        try:
            import_module(name)
        except (ImportError, SyntaxError, TypeError, ValueError) as error:
            raise UsageError(
                f"{IMPORT} {name} failed: {reason_of(error)}. Name a module that Python finds: in this folder, on "
                "PYTHONPATH, or installed."
            ) from None
        imported.append(name)
    return rest


def _failed(message: str, code: int) -> int:
    if (shown := redacted(message)) != message:
        shown += f" {KEEP_SECRET}"
    say(f"error: {_printable(shown)}", sys.stderr)
    return code


def _printable(message: str) -> str:
    """A message in one line, without what would move the cursor of a terminal."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in " ".join(message.split()))


def without_secrets(name: str, value: Any) -> Any:
    """The value of an option as it may be printed: a password in an address is hidden.

    Raises:
        UsageError: If the whole value is a secret.
    """
    if isinstance(value, list):
        return [without_secrets(name, one) for one in value]
    if isinstance(value, str) and is_secret(name):
        raise UsageError(f"{name} would be shown here. Leave it out, and set it in the environment.")
    return redacted(value) if isinstance(value, str) else value


def _of_the_system(error: OSError) -> str:
    """What the operating system refused, where, and what to do."""
    place = f"{error.filename}: " if error.filename is not None else ""
    advice = ADVICE.get(error.errno or 0, "Look at the path, and try again")
    return f"{place}{error.strerror or error}. {advice}."


def is_first_process() -> bool:
    """Whether this is the first of the processes that a launcher (torchrun, srun, Lightning) started together."""
    return next((os.environ[name] for name in RANKS if name in os.environ), "0") == "0"


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Heed SIGTERM as Ctrl-C: a job that is stopped says what was kept, and leaves nothing half written.

    A process of a launcher is ended by it, as it may wait for another one, which no handler interrupts. A thread gets
    no signals, and a handler of others stays. In a training Lightning heeds it (``bertflow.training.checkpoints``).
    """
    alone = not any(name in os.environ for name in RANKS) and threading.current_thread() is threading.main_thread()
    if ours := alone and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Notes(logging.Handler):
    """Shows what is logged as notes: each once, apart from progress."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Print one."""
        if (message := record.getMessage()) not in self.said or record.name == "bertflow.progress":
            self.said[message] = None
            say(f"note: {message}", sys.stderr)


@contextmanager
def notes_on_stderr() -> Iterator[None]:
    """Show on stderr what the package decides for its user; of several processes, only the first one does."""
    handler, speaks = Notes(), is_first_process()
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(), at_level(logging.INFO if speaks else logging.ERROR, logger.name):
            warnings.showwarning = lambda message, *_: logger.warning("%s", redacted(str(message)))
            if not speaks:
                warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeHandler(handler)


def repeat_columns() -> None:
    """Say once more what is read of tables, which a long answer has moved out of sight."""
    for handler in logger.handlers:
        for message in filter(USING.search, handler.said if isinstance(handler, Notes) else ()):
            say(f"note: {message}", sys.stderr)


def _help() -> str:
    rows = listed({name: row.does for name, row in COMMANDS.items()})
    return (
        f"usage: bertflow COMMAND [options]\n\n{rows}\n\n`bertflow COMMAND --help` lists the options of one.\n"
        "Exit codes: 0 done, 1 interrupted, 2 usage, 3 data or disk,\n"
        "4 a threshold was missed, 5 an error of bertflow itself."
    )


def listed(summaries: Mapping[str, str]) -> str:
    """A line a name, with what it does."""
    width = max(map(len, summaries))
    return "\n".join(f"  {name:<{width}}  {summary}" for name, summary in summaries.items())
