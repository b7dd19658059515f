"""``bertflow score``: cosines that people can use, and text in or out of domain. The work is in ``score_run``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
Score pairs of sentences: the cosine, its percentile among random pairs of your text, the probability of a match where
labels were given, and yes or no at a false-match rate you choose. FOLDER is what `bertflow fix` wrote, a calibrated
encoder or any encoder; one that has no scores.json yet needs --fit_on TEXT. With --domain: how ordinary each sentence
of a text is, and whether the whole text has drifted."""
EXAMPLES = """\
examples:
  bertflow score fixed/encoder pairs.tsv --output scored.tsv --false_match_rate 0.01
  bertflow score intfloat/e5-base pairs.csv --fit_on text.txt --labels labels.tsv --save scored-e5
  bertflow score fixed/encoder --domain this_week.txt"""


def main(argv: Sequence[str]) -> int:
    """Score and print; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli.score_run import score  # heavy: `--help` does without

    return score(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow score",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="an encoder with its scores; or any encoder, with --fit_on")
    add("pairs", nargs="?", metavar="PAIRS", help="tsv, csv, jsonl or parquet with two columns of text")
    add("--columns", metavar="A,B", help="the two columns of PAIRS (numbers from 1 where it has no header)")
    add("--output", type=Path, metavar="FILE", help="write the result there: .tsv, .csv or .jsonl")
    add("--false_match_rate", type=float, default=0.001, metavar="X", help="share of random pairs that may pass as "
        "matches (default: 0.001)")  # fmt: skip
    add("--domain", metavar="TEXT", help="how ordinary each sentence of TEXT is, and has the whole drifted")
    add("--fit_on", metavar="TEXT", help="fit the scores to this text, which no calibrator was fitted on")
    add("--labels", metavar="FILE", help="with --fit_on: a table a, b, label (0 or 1) to learn probabilities from")
    add("--method", default="auto", help="of the probabilities: isotonic, logistic or auto (default: auto)")
    add("--density", help="with --fit_on and --domain: gaussian or flow (default: gaussian)")
    add("--save", type=Path, metavar="DIR", help="with --fit_on: write the encoder with its scores there")
    add("--max_sentences", type=int, default=5000, help="of --fit_on, a random sample (default: 5000)")
    add("--pooling", help="of an encoder as it comes (default: its own, else mean)")
    add("--max_length", type=int, help="of an encoder as it comes, in tokens (default: 128)")
    add("--prompt", help="of an encoder as it comes: put in front of every sentence")
    add("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    add("--seed", type=int, default=0, help="of the sample and the random pairs (default: 0)")
    return parser
