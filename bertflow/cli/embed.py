"""``bertflow embed``: a corpus becomes a store of embeddings. The work is in ``embed_run``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
Encode every distinct sentence of a corpus once, into a folder. Text is read as a stream, so it may be larger than
memory. Run the same command again after an interruption, of any kind: what is done is kept. Several processes may run
it at the same time, with torchrun, srun or by hand: they share the work."""
EXAMPLES = """\
examples:
  bertflow embed text.txt --store stores/mine --model bert-base-uncased --pooling first-last-avg
  bertflow embed a.jsonl hub:owner/name --store stores/mine --storage float16
  torchrun --nproc-per-node 2 -m bertflow embed text.txt --store stores/mine
  bertflow embed --store stores/mine --verify"""


def main(argv: Sequence[str]) -> int:
    """Embed; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli.embed_run import embed, verify  # heavy: `--help` does without

    return verify(options) if options.verify else embed(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow embed",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("text", nargs="*", metavar="TEXT", help="txt, tsv, csv, jsonl, parquet, hub:owner/name")
    add("--store", type=Path, required=True, metavar="DIR", help="the folder; made, or continued")
    add("--columns", metavar="LIST", help="columns of a table that hold text, as a,b (default: found by their names)")
    add("--model", help="an encoder: hub id or folder (default: the embedded one)")
    add("--pooling", help="a row, or written out as 'mean(1,2)' (default: the encoder's own)")
    add("--max_length", type=int, help="in tokens (default: 128)")
    add("--dtype", help="of the encoder's weights: float32, float16 or bfloat16 (default: float32)")
    add("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    add("--revision", help="branch, tag or commit, for a hub id")
    add("--prompt", help="put in front of every sentence")
    add("--storage", help="of the embeddings: float32, or float16 around a center (default: float32)")
    add("--shards", type=int, help="files to keep them in (default: one for 65,536 rows, 8 at least)")
    add("--verify", action="store_true", help="only compare the store with its checksums")
    return parser
