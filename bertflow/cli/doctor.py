"""``bertflow doctor``: why do a server's embeddings differ from yours? The work is in ``doctor_run``."""

import argparse
from collections.abc import Sequence

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
Compare what a server, or a folder on this machine, answers to 32 golden sentences with what it should, and name what is
wrong: calibrator left out, another pooling, half precision, unit length, another longest sentence, prompt left out.
Exit code 0 when it is right, 4 when it differs."""
EXAMPLES = """\
examples:
  bertflow doctor --golden exported --url http://localhost:8080
  bertflow doctor --golden golden.json --url https://embeddings.example.com/v1 --model_name mine --normalized
  bertflow doctor --golden exported --model exported"""


def main(argv: Sequence[str]) -> int:
    """Compare and say what was found; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli.doctor_run import run_doctor  # heavy: `--help` does without

    return run_doctor(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow doctor",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--golden", required=True, metavar="FOLDER|FILE", help="an exported folder, or its golden.json")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="of a server with an OpenAI-compatible /v1/embeddings")
    where.add_argument("--model", metavar="FOLDER", help="an exported or saved folder, to be run here")
    add("--model_name", default="bertflow", help="what the server calls the model (default: bertflow)")
    add("--key", metavar="VARIABLE", help="environment variable that holds the server's key")
    add("--normalized", action="store_true", help="vectors of unit length are what is wanted")
    add("--batch", type=int, default=8, help="sentences in a request (default: 8)")
    return parser
