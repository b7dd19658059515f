"""What ``bertflow verify-paper`` does: load, verify, print, write."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from bertflow.cli.printing import print_lines, print_table
from bertflow.data.sts import load_sts
from bertflow.encoder.batching import tokenize
from bertflow.encoder.checkpoint import Checkpoint
from bertflow.encoder.folders import open_model
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import ThresholdMissedError
from bertflow.evaluation.paper_checks import CHECKS, tasks_of
from bertflow.evaluation.verification import verify
from bertflow.files import write_json, write_text


def run_verification(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Carry out what the command line asks for; returns the exit code.

    Raises:
        ThresholdMissedError: If a figure is not reproduced.
    """
    begin, out = time.perf_counter(), Console()
    checks = CHECKS
    if options.max_length is not None:
        checks = [replace(check, max_length=options.max_length) for check in CHECKS]
    longest = max(check.max_length for check in checks)

    def encoder_of(max_length: int) -> TransformerEncoder:
        # "mean" reads the last layer, so that all blocks are loaded; the papers' encoders had no prompt.
        return TransformerEncoder(options.model, "mean", max_length, device=options.device, dtype="float32", prompt="")

    def tokens(sentences: Sequence[str]) -> NDArray[np.integer[Any]]:
        return tokenize(sentences, Checkpoint.read(open_model(options.model, None)).tokenizer, longest).lengths

    sets = {task: load_sts(task, options.data_dir) for task in tasks_of(checks)}
    found = verify(encoder_of, tokens, sets, checks, sys.stderr.isatty())
    print_table(out, found.table())
    print_lines(out, found.summary())
    if options.output:
        write_text(options.output / "verification.json", found.to_json())
        write_text(options.output / "verification.md", found.to_markdown())
        seconds = round(time.perf_counter() - begin, 1)
        write_json(options.output / "run.json", {"arguments": list(argv), "seconds": seconds})
    if found.failed:
        raise ThresholdMissedError(f"{found.failed} of {len(found.rows)} published figures are not reproduced.")
    return 0
