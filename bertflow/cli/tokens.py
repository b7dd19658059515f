"""``bertflow tokens``: how text becomes tokens, and what their input embeddings are made of. ``tokens_show`` prints."""

import argparse
from collections.abc import Sequence

from bertflow.cli.arguments import Parser
from bertflow.errors import UsageError

DESCRIPTION = """\
How a model cuts text: pieces, ids, segments, positions, attention mask, the shape of the hidden states; and the input
embedding of each piece, taken apart into word + position + segment. Pieces that stand in two texts are compared."""
EXAMPLES = """\
examples:
  bertflow tokens "I found a rock." "I only listen to rock."
  bertflow tokens --pair "I found a rock." "I only listen to rock."
  bertflow tokens --vocabulary --model bert-base-uncased"""


def main(argv: Sequence[str]) -> int:
    """Show and return the exit code."""
    options = _parser().parse_args(argv)
    given = [bool(options.texts), bool(options.pair), options.vocabulary]
    if sum(given) != 1:
        what = "none of them" if not any(given) else "several"
        raise UsageError(f"One of texts, --pair A B and --vocabulary is wanted, got {what}. Try --help for examples.")
    if options.vocabulary and options.segment is not None:
        raise UsageError("--segment is for texts, which --vocabulary does without. Leave one out.")
    from bertflow.cli.tokens_show import run_tokens  # heavy: `--help` does without

    return run_tokens(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow tokens",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="one or several texts; the first is compared with the others")
    add("--pair", nargs=2, metavar=("A", "B"), help="two texts as one input, as for next-sentence prediction")
    add("--vocabulary", action="store_true", help="what is in the vocabulary")
    add("--segment", type=int, metavar="N", help="segment of every token (default: the model's own way)")
    add("--model", metavar="M", help="hub id or folder (default: the embedded MiniLM)")
    add("--revision", metavar="R", help="branch, tag or commit on the hub")
    add("--json", action="store_true", help="print JSON instead of tables")
    return parser
