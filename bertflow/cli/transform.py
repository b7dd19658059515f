"""``bertflow transform``: calibrated rows of a store, or of plain vectors. The work is in ``transform_run``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser, add_rows

DESCRIPTION = """\
Calibrate embeddings that are there already: a store that `bertflow embed` made, or plain vectors (.npy, or a column of
.parquet, whose other columns are kept). Rows stay in their order; those of a store are its distinct sentences. Run the
same command again after an interruption, of any kind: it goes on where it was. A calibrator of another encoder or
pooling than the store's is refused."""
EXAMPLES = """\
examples:
  bertflow transform --calibrator calibrators/mine --store stores/mine --output stores/calibrated
  bertflow transform --calibrator calibrators/index --vectors index.parquet --output calibrated.parquet
  bertflow transform --calibrator runs/mine/calibrator --vectors x.npy --output z.npy"""


def main(argv: Sequence[str]) -> int:
    """Calibrate; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli.transform_run import transform  # heavy: `--help` does without

    return transform(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow transform",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add_rows(parser)
    add("--calibrator", type=Path, required=True, metavar="FOLDER", help="what fit, train or save() wrote")
    add("--output", type=Path, required=True, metavar="OUT", help=".npy, .parquet, or for a store a folder: a store")
    add("--bare", action="store_true", help="take a store's rows as bare vectors: do not compare encoder and pooling")
    return parser
