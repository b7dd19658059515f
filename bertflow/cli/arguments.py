"""Arguments whose errors are one line: what was wanted, what was got."""

import argparse
from pathlib import Path
from typing import NoReturn

from bertflow.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        """Refuse in one line.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{message[:1].upper()}{message[1:]}. `{self.prog} --help` lists the options.")


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Where embeddings are read from: a store, or plain vectors."""
    rows = parser.add_mutually_exclusive_group(required=True)
    rows.add_argument("--store", type=Path, metavar="DIR", help="a finished store")
    rows.add_argument("--vectors", type=Path, metavar="FILE", help=".npy or .parquet")
    parser.add_argument(
        "--column", help="of a parquet file: where the vectors stand (default: the only column of lists)"
    )
