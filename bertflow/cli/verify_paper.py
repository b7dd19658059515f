"""``bertflow verify-paper``: are the published figures reproduced? The work is in ``verifying``."""

from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
Is this pipeline right on your bert-base-uncased? Without training: the published figures of three poolings and of
closed-form whitening, computed again, PASS or FAIL within 0.1. Exit code 4 if one fails."""


def main(argv: Sequence[str]) -> int:
    """Verify and print; returns the exit code."""
    parser = Parser(prog="bertflow verify-paper", description=DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("model", metavar="FOLDER", help="bert-base-uncased: its folder, or its hub id")
    add("--data_dir", required=True, help="folder of the STS data, with the sub-sets of STS12-16")
    add("--max_length", type=int, help="of all figures, in tokens (default: what each source used)")
    add("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    add("--output", type=Path, metavar="DIR", help="write verification.json, .md and run.json there")
    options = parser.parse_args(argv)
    from bertflow.cli.verifying import run_verification  # heavy: `--help` does without

    return run_verification(options, argv)
