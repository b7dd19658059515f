"""The command line: ``bertflow COMMAND ...``. Each command is one file, loaded when it is called.

Whatever bertflow refuses ends in one line on stderr and an exit code: 0 done, 1 interrupted, 2 usage, 3 data, 4 a
threshold was missed.
"""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TextIO

from bertflow.errors import BertflowError

COMMANDS: Mapping[str, str] = {
    "demo": "calibrate the embedded encoder on embedded text and show what it bought",
    "fix": "all my cosines are 0.9: measure, decide, write an encoder that is better",
    "train": "fit a flow to your encoder and text",
    "finetune": "fine-tune an encoder on labelled pairs, as SBERT does",
    "embed": "embed a corpus once, into a store that can be resumed",
    "fit": "fit a calibrator to a store, or to plain vectors",
    "transform": "calibrate a store or plain vectors, at the speed of the disk",
    "evaluate": "score encoders and calibrated encoders on the STS tasks",
    "sweep": "find the layer and pooling for your encoder and data",
    "verify-paper": "compute the published figures of bert-base-uncased again",
    "inspect": "one report on the geometry of an encoder, before and after calibration",
    "tokens": "show how text becomes tokens, and what their input embeddings are made of",
    "words": "compare static and contextual vectors of words",
    "export": "write a sentence-transformers folder, an ONNX graph, a model card",
    "score": "give pairs of sentences scores that mean something",
    "search": "rank known answers for a question",
    "serve": "answer requests for embeddings over HTTP",
    "doctor": "find out why a server's embeddings differ from yours",
}
"""What each command does; the command A-B is ``bertflow.cli.a_b.main``."""
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
"""Where launchers write which process this is; the first that is set counts, as in Lightning."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``bertflow``; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0
    if argv[0] == "--version":
        from bertflow import __version__

        print(f"bertflow {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        print(f"error: Unknown command {argv[0]!r}. Known: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    return run(load(argv[0]), argv[1:])


def load(name: str) -> Callable[[list[str]], int]:
    """The command ``name``."""
    command: Callable[[list[str]], int] = import_module(f"bertflow.cli.{name.replace('-', '_')}").main
    return command


def run(command: Callable[[list[str]], int], argv: Sequence[str] | None = None) -> int:
    """Run one command; what it refuses becomes one line and an exit code."""
    warnings.showwarning = _show_warning
    try:
        with notes_on_stderr():
            return command(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except BertflowError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code


def is_first_process() -> bool:
    """Whether this is the first of the processes that a launcher (torchrun, srun, Lightning) started together."""
    return next((os.environ[name] for name in RANKS if name in os.environ), "0") == "0"


@contextmanager
def notes_on_stderr() -> Iterator[None]:
    """Show on stderr what the package decides for its user; of several processes, those of the first."""
    logger, handler = logging.getLogger("bertflow"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("note: %(message)s"))
    level, speaks = logger.level, is_first_process()
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


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return f"usage: bertflow COMMAND [options]\n\n{rows}\n\n`bertflow COMMAND --help` lists the options of one."


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"note: {message}", file=file or sys.stderr)
