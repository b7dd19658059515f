"""``bertflow search``: rank known answers for a question. The work is in ``searching`` and ``search_scores``."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
Keep answers, with the questions they answered before, in one file; rank them for a new question. Raw embeddings are
kept beside the calibrated ones, so that another calibrator needs no second pass of the encoder."""
EXAMPLES = """\
examples:
  bertflow search example faq
  bertflow search build faq.index --answers faq/answers.jsonl --model runs/mine
  bertflow search ask faq.index "How do I stop it?" -k 5
  bertflow search evaluate faq.index --labels faq/labels.jsonl
  bertflow search recalibrate faq.index --model runs/better"""


def main(argv: Sequence[str]) -> int:
    """Build, change or ask an index; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli import searching  # heavy: `--help` does without

    action: Callable[[argparse.Namespace], int] = getattr(searching, options.action)
    return action(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow search",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, what: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=what, description=f"{what[:1].upper()}{what[1:]}.", allow_abbrev=False)

    build = action("build", "embed answers into a new index")
    build.add_argument("index", type=Path, metavar="INDEX", help="the file to write")
    _answers(build)
    build.add_argument("--model", required=True, help="an encoder (hub id or folder), or a calibrated one (folder)")
    build.add_argument("--pooling", help="of an encoder as it comes: a row, or written out as 'mean(1,2)'")
    build.add_argument("--max_length", type=int, help="of an encoder as it comes, in tokens (default: 128)")
    build.add_argument("--dtype", help="of an encoder as it comes: float32, float16 or bfloat16")
    _device(build)

    for name, what in (("add", "add answers under new ids"), ("update", "replace answers by id")):
        _answers(_opening(action(name, what)))
    remove = _opening(action("remove", "remove answers by id"))
    remove.add_argument("ids", nargs="+", metavar="ID")
    recalibrate = _index(action("recalibrate", "send the raw embeddings through another calibrator"))
    recalibrate.add_argument("--model", required=True, help="the same encoder with another calibrator, or none")
    _device(recalibrate)

    ask = _opening(action("ask", "rank the answers for a question"))
    ask.add_argument("question", metavar="QUESTION")
    ask.add_argument("-k", type=int, default=5, help="how many answers (default: 5)")
    ask.add_argument("--engine", default="exact", help="exact, or usearch for very many phrases (default: exact)")
    ask.add_argument("--json", action="store_true", help="print JSON")
    evaluate = _opening(action("evaluate", "hit@k, MRR and MAP on questions whose answers are known"))
    evaluate.add_argument("--labels", required=True, type=Path, metavar="FILE", help="a table with question and id")
    evaluate.add_argument("-k", type=int, default=5, help="of hit@k, beside hit@1 (default: 5)")
    evaluate.add_argument("--resamples", type=int, default=1000, help="of the bootstrap (default: 1000)")
    evaluate.add_argument("--seed", type=int, default=0, help="of the resamples (default: 0)")
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    info = _index(action("info", "say what is in an index"))
    info.add_argument("--json", action="store_true", help="print JSON")

    example = action("example", "write answers, labels and text to try it on, from the docstrings of what is installed")
    example.add_argument("folder", type=Path, metavar="FOLDER", help="where to write them")
    example.add_argument("--answers", type=int, default=1000, metavar="N", help="how many answers (default: 1000)")
    example.add_argument(
        "--sentences", type=int, default=6000, metavar="N", help="how many sentences of other text (default: 6000)"
    )
    example.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    return parser


def _index(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("index", type=Path, metavar="INDEX", help="a file that `search build` wrote")
    return parser


def _opening(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """An action that embeds, and so needs the index' own encoder."""
    _index(parser)
    parser.add_argument("--model", help="where the index' encoder lies now (default: where it lay)")
    _device(parser)
    return parser


def _answers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--answers",
        required=True,
        type=Path,
        metavar="FILE",
        help="a table (tsv, csv, jsonl, parquet) with id, text and, if there are past questions, questions",
    )


def _device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... (default: auto)")
