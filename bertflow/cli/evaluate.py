"""``evaluate.py`` and ``bertflow evaluate``: what can be asked for. The work is in ``bertflow.cli.scoring``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
Score systems on STS tasks, and on retrieval and binary tasks if asked for. A MODEL is an encoder (hub id or folder), a
folder that CalibratedEncoder.save wrote, the folder of a train.py run, or a file of word vectors (.vec, .txt, .gz).
Tables are x 100."""
EXAMPLES = """\
examples:
  python evaluate.py bert-base-uncased --pooling first-last-avg --tasks sts7 --data_dir data/sts
  python evaluate.py runs/mine --compare raw,center,whitening --tasks stsb,sickr --data_dir data/sts --output scores
  python evaluate.py bert-base-uncased --compare "sif,sif+whitening(64),abtt(7)" --fit_on text.txt
  python evaluate.py bert-base-uncased glove.6B.300d.txt --compare static --ceiling --lexical --data_dir data/sts"""


def main(argv: Sequence[str]) -> int:
    """Score and print; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli.scoring import score  # heavy: `--help` does without

    return score(options, argv)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow evaluate",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="what to score; several are compared")
    add(
        "--pooling",
        help="of an encoder as it comes: a row, or written out as 'mean(1,2)' (default: its own, else mean)",
    )
    add("--max_length", type=int, help="of an encoder as it comes, in tokens (default: 128)")
    add("--dtype", help="of an encoder as it comes: float32, float16 or bfloat16 (default: float32)")
    add("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    add(
        "--tasks",
        help="tasks, suites and tables of your own, with commas (default: sts7; none with --retrieval, --binary)",
    )
    add("--data_dir", default="hub", help="folder of the STS data (default: the hub, at pinned revisions)")
    add("--retrieval", metavar="FILE", help="a table of queries and their texts, to be ranked as well")
    add("--binary", metavar="FILE", help="a table of pairs labelled 0 or 1, scored by ROC AUC as well")
    add("--similarity", default="cosine", help="cosine, dot, euclidean or manhattan (default: cosine)")
    add("--aggregation", default="all", help="of the printed table: all, mean or wmean (default: all)")
    add(
        "--compare",
        default="",
        metavar="LIST",
        help="baselines: raw,center,standardize,abtt(7),whitening(64),sif,static,...",
    )
    add("--fit_on", metavar="FILE|eval", help="fit the baselines on this text; eval: on the scored sentences")
    add("--ceiling", action="store_true", help="what labels (tuning) make of each encoder, and the share of that gap")
    add(
        "--lexical",
        nargs="?",
        const="stsb-dev",
        metavar="TASK",
        help="do similarities follow edit distance? (default: stsb-dev, as in the paper)",
    )
    add("--resamples", type=int, default=1000, help="bootstrap resamples for the intervals, 0 for none (default: 1000)")
    add("--seed", type=int, default=0, help="of the resamples (default: 0)")
    add("--force", action="store_true", help="score, and mark, a system that was trained on the scored labels")
    add("--fail_below", default="", metavar="TASK=X", help="exit code 4 if a MODEL scores less, as stsb=70,sts7=65")
    add(
        "--published",
        nargs="?",
        const="",
        metavar="PART",
        help="published figures beside ours: all, or what holds PART",
    )
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="write results.json, .md, predictions.csv, mteb files, run.json there",
    )
    return parser
