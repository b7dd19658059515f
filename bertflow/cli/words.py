"""``bertflow words``: static against contextual vectors of words. ``words_show`` prints, ``words_write`` draws."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser
from bertflow.errors import UsageError

DESCRIPTION = """\
How alike are words: by their static vectors (the embedding matrix), and in their contexts, layer by layer? Cosine and
Euclidean distance, and whether offsets such as king - man and queen - woman agree, as vectors and in length."""
EXAMPLES = """\
examples:
  bertflow words --study king-queen --output words
  bertflow words bank#1 bank#2 --in "The bank by the river is no bank for money."
  bertflow words king queen --in "The king met the queen." --in "The king likes the band Queen." --pooling "mean(1,2)"

Studies that are shipped: king-queen, bank (three banks in one sentence), bank-separate (in three). A FILE is JSON:
  {"mentions": [{"context": "court", "word": "king", "sentence": "..."}, ...]   also label, occurrence, segment
   "pairs": [["king", "queen"]],                     followed from layer to layer (default: all)
   "closer": [["king", "queen", "apple"]],           is king nearer to queen than to apple?
   "offsets": [["king", "man", "queen", "woman"]]}   is king - man the same as queen - woman?"""


def main(argv: Sequence[str]) -> int:
    """Compare and print; returns the exit code."""
    options = _parser().parse_args(argv)
    _check(options)
    from bertflow.cli.words_show import run_words  # heavy: `--help` does without

    return run_words(options)


def _check(options: argparse.Namespace) -> None:
    by_hand = bool(options.words or options.sentences)
    if by_hand == bool(options.study):
        got = "both" if by_hand else "neither"
        raise UsageError(f"Words with --in SENTENCE, or --study, are wanted; got {got}. Try --help for examples.")
    if by_hand and not (options.words and options.sentences):
        missing = "the words to look for" if not options.words else "a sentence (--in)"
        raise UsageError(f"Words and sentences belong together, but {missing} is missing. Try --help for examples.")
    if options.format and not options.output:
        raise UsageError("--format is of the pictures, which need --output DIR. Give both or neither.")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow words",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="WORD", help="whole words; bank#2 is the second of a sentence")
    add("--in", action="append", dest="sentences", metavar="SENTENCE", help="a context; may be given several times")
    add("--study", metavar="S", help="king-queen, bank, bank-separate, or a FILE")
    add("--pooling", action="append", metavar="ROW", help="as mean(3) or mean(1,2), of the pieces of a word; may be "
        "given several times (default: every layer)")  # fmt: skip
    add("--segment", type=int, metavar="N", help="segment of every token (default: 0)")
    add("--model", metavar="M", help="hub id or folder (default: the embedded MiniLM)")
    add("--revision", metavar="R", help="branch, tag or commit on the hub")
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--output", type=Path, metavar="DIR", help="write words.json and heatmaps there")
    add("--format", choices=("png", "svg"), help="of the pictures (default: png)")
    return parser
