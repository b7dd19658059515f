"""``bertflow inspect``: what can be asked for. The work is in ``bertflow.cli.inspect_run``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
One report on the geometry of an encoder, before and after calibration: report.html (one file, no network, no script)
and its JSON twin. MODEL is an encoder (hub id or folder), a folder that CalibratedEncoder.save wrote, the folder of a
train.py run, or a file of word vectors. Pictures need matplotlib: pip install 'bertflow[plots]'."""
EXAMPLES = """\
examples:
  bertflow inspect
  bertflow inspect bert-base-uncased --pooling first-last-avg
  bertflow inspect runs/mine --pairs stsb-dev --data_dir data/sts
  bertflow inspect my_encoder --text mine.txt --pairs none --compare "raw,abtt(7),whitening" --frequencies words.txt"""


def main(argv: Sequence[str]) -> int:
    """Inspect, print, write; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli.inspect_run import run_inspect  # heavy: `--help` does without

    return run_inspect(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow inspect",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="what to look at (default: inner layers of the embedded encoder)")
    add("--compare", metavar="LIST", help="systems beside it (default: raw,whitening; raw for what is calibrated)")
    add("--text", metavar="FILE", help="sentences to look at, and others to fit on (default: docstrings)")
    add("--sentences", type=int, default=2000, help="how many to look at, at most half (default: 2000)")
    add(
        "--pairs",
        metavar="TASK|FILE",
        help="an STS task, a table of scored pairs or of queries and texts, or none (default: docstrings)",
    )
    add("--data_dir", default="hub", help="folder of the STS data (default: the hub, at pinned revisions)")
    add("--frequencies", metavar="FILE", help="lines of a word and its count (default: counted from the text)")
    add("--pooling", help="of an encoder as it comes: a row, or written out as 'mean(1,2)'")
    add("--max_length", type=int, help="of an encoder as it comes, in tokens (default: 128)")
    add("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    add("--seed", type=int, default=0, help="of the sample (default: 0)")
    add("--output", type=Path, metavar="DIR", help="folder to write to (default: report, or RUN/report)")
    return parser
