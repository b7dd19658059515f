"""``bertflow serve``: answer requests for embeddings over HTTP.."""

import argparse
from collections.abc import Sequence

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
Answer requests for embeddings over HTTP, in the form of OpenAI's /v1/embeddings. Requests that wait are embedded
together. MODEL is an encoder (hub id or folder), a folder that CalibratedEncoder.save wrote, or a run of train.py.
There is no password: let others in through a proxy that has one."""
EXAMPLES = """\
examples:
  bertflow serve runs/mine
  bertflow serve runs/mine --name my-encoder --port 9000 --normalize
  curl localhost:8000/v1/embeddings -d '{"input": ["A dog sings.", "A cat sleeps."]}'"""


def main(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.serve.serving import serve_encoder  # heavy: `--help` does without

    serve_encoder(**vars(options))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow serve",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="what to serve")
    add("--name", help="what requests call it (default: the folder's name)")
    add("--host", default="127.0.0.1", help="127.0.0.1, 0.0.0.0 (all of IPv4) or :: (default: 127.0.0.1)")
    add("--port", type=int, default=8000, help="from 1024 to 65535 (default: 8000)")
    add("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    add("--normalize", action="store_true", help="scale embeddings to length one (default: as the encoder makes them)")
    add("--truncate", action="store_true", help="cut texts that are too long (default: refuse them)")
    add("--max_texts", type=int, default=256, help="texts in a request (default: 256)")
    add("--max_body", type=int, default=2**20, metavar="BYTES", help="size of a request (default: 1048576)")
    add("--batch", type=int, default=32, help="requests that are embedded together (default: 32)")
    add("--waiting", type=int, default=256, help="requests that may wait; more are sent away (default: 256)")
    add("--timeout", type=float, default=60, metavar="SECONDS", help="how long a request may wait (default: 60)")
    return parser
