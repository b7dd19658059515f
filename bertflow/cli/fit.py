"""``bertflow fit``: a calibrator for a store, or for plain vectors. The work is in ``fit_run``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser, add_rows

DESCRIPTION = """\
Fit a calibrator to embeddings that are there already: a store that `bertflow embed` made, or plain vectors (.npy, or a
column of .parquet) from an API or out of an index. Closed forms read the rows once, as a stream; under torchrun the
ranks share them. What a calibrator was fitted on is known for a store, unknown for plain vectors."""
EXAMPLES = """\
examples:
  bertflow fit --store stores/mine --calibrator "whitening(128)" --output calibrators/mine
  bertflow fit --vectors index.parquet --column embedding --calibrator "abtt(3)" --output calibrators/index
  bertflow fit --store stores/mine --calibrator flow --output calibrators/flow"""


def main(argv: Sequence[str]) -> int:
    """Fit; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli.fit_run import fit  # heavy: `--help` does without

    return fit(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow fit",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add_rows(parser)
    add("--calibrator", required=True, metavar="C", help="center, standardize, abtt(K), whitening(N), flow or flow(N)")
    add("--output", type=Path, required=True, metavar="FOLDER", help="must not exist or be empty")
    add("--preset", help="of a flow: default, paper-tf, ... (default: default)")
    add("--seed", type=int, help="of a flow (default: 0)")
    return parser
