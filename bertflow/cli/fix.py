"""``bertflow fix``: all my cosines are 0.9, what do I do? A verdict, and an encoder. The work is in ``fix_run``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
Measure the geometry of your encoder on your text, try what could help, and say in plain words: leave it, rescale the
scores, whiten, use the flow, or you need labels. A change is advised only if it is better than the raw encoder on
held-out pairs by more than chance. Pairs are those of --labels, else they are mined from the text's own structure:
paragraphs and documents (blank lines between them), or columns such as question and answer."""
EXAMPLES = """\
examples:
  bertflow fix bert-base-uncased my_text.txt --output fixed
  bertflow fix intfloat/e5-base my_text.txt --prompt "query: " --labels judged.tsv
  bertflow fix --vectors embeddings.npy
  bertflow fix --vectors embeddings.npy my_text.txt --labels judged.tsv"""


def main(argv: Sequence[str]) -> int:
    """Measure, decide, write; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli.fix_run import fix  # heavy: `--help` does without

    return fix(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow fix",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("inputs", nargs="*", metavar="MODEL TEXT", help="an encoder (hub id, folder, sentence-transformers folder) and "
        "your text (txt, tsv, csv, jsonl, parquet); with --vectors: nothing, or the text of the vectors")  # fmt: skip
    add("--vectors", type=Path, metavar="FILE", help="embeddings (n, dim) as .npy, in the place of an encoder")
    add("--labels", metavar="FILE", help="pairs you judged: sentence1, sentence2, score; or a, b, label (0 or 1); or "
        "query, text")  # fmt: skip
    add("--output", type=Path, default=Path("fixed"), metavar="DIR", help="folder to write (default: fixed)")
    add("--candidates", metavar="LIST", help="what to try, as whitening,sif+whitening(128),flow (default: all)")
    add("--pooling", help="a row, or written out as 'mean(1,2)' (default: the encoder's own, else mean)")
    add("--max_length", type=int, help="in tokens (default: 128)")
    add("--prompt", help="put in front of every sentence: a name in the folder's prompts, or the text itself (default: "
        "the folder's default prompt)")  # fmt: skip
    add("--revision", help="of a hub id: branch, tag or commit")
    add("--dtype", help="float32, float16 or bfloat16 (default: float32)")
    add("--device", default="auto", help="cpu, cuda, ... (default: auto)")
    add("--max_sentences", type=int, default=8000, help="to fit on, a random sample (default: 8000)")
    add("--max_pairs", type=int, default=1000, help="to judge by, and as many to choose by (default: 1000)")
    add("--resamples", type=int, default=1000, help="of the paired bootstrap (default: 1000)")
    add("--seed", type=int, default=0, help="of all samples and of the flow (default: 0)")
    return parser
