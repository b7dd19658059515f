"""``bertflow sweep``: which layer, which pooling, for your encoder and your data. The work is in ``sweeping``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
Score every layer and pooling of an encoder on STS tasks, raw and whitened, from one pass over the text. With --labels
a cross-validated linear probe on your own labels instead. Choose on tuning, report on the test sets."""
EXAMPLES = """\
examples:
  bertflow sweep bert-base-uncased --data_dir data/sts --output sweeps/bert
  bertflow sweep bert-base-uncased --layers 0,6,12 --tokens mean,cls --labels topics.tsv"""


def main(argv: Sequence[str]) -> int:
    """Sweep and print; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli.sweeping import run_sweep  # heavy: `--help` does without

    return run_sweep(options, argv)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow sweep",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="an encoder: hub id or folder")
    add("--layers", metavar="LIST", help="layers to try alone, as 0,3,6 (default: all)")
    add("--tokens", metavar="LIST", help="token reductions to try, as mean,cls (default: all)")
    add("--tasks", help="STS tasks (default: tuning)")
    add("--data_dir", help="folder of the STS data (default: the hub, at pinned revisions)")
    add("--fit_on", metavar="FILE", help="text to fit whitening and token counts on (default: the scored sentences)")
    add("--labels", metavar="FILE", help="probe instead: lines sentence<TAB>label, or a table with text and label")
    add("--folds", type=int, help="of the probe (default: 5)")
    add("--seed", type=int, help="of the probe's folds (default: 0)")
    add("--max_length", type=int, help="in tokens (default: 128)")
    add("--dtype", help="float32, float16 or bfloat16 (default: float32)")
    add("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    add("--output", type=Path, metavar="DIR", help="write sweep.json, .md, .csv, .png and run.json there")
    return parser
