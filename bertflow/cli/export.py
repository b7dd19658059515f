"""``bertflow export``: write an encoder for other tools. The work is in ``export_run``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bertflow.cli.arguments import Parser

DESCRIPTION = """\
Write an encoder, calibrated or as it comes, for other tools: a sentence-transformers folder, one ONNX graph, or plain
safetensors; with a model card, and golden vectors that `bertflow doctor` compares a server with. MODEL is the folder of
a train.py run, one that CalibratedEncoder.save wrote, or an encoder (hub id or folder)."""
EXAMPLES = """\
examples:
  bertflow export runs/mine --target sentence-transformers --output exported
  bertflow export runs/mine --target sentence-transformers --linearize --data_dir data/sts --tasks tuning --output dense
  bertflow export runs/mine --target onnx --int8 --output onnx
  bertflow export runs/mine --target sentence-transformers --results scores/results.json --output mine --push me/mine"""


def main(argv: Sequence[str]) -> int:
    """Export and say what was written; returns the exit code."""
    options = _parser().parse_args(argv)
    from bertflow.cli.export_run import run_export  # heavy: `--help` does without

    return run_export(options)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="bertflow export",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="what to export")
    add("--target", required=True, help="sentence-transformers, onnx or safetensors")
    add("--output", type=Path, required=True, metavar="DIR", help="new, empty, or an earlier export to replace")
    add("--layout", default="legacy", help="class paths of a sentence-transformers folder: legacy, which servers know, "
        "or modern (default: legacy)")  # fmt: skip
    add("--linearize", action="store_true", help="put the best affine stand-in in the place of a flow")
    add("--text", metavar="FILE", help="text to fit the stand-in on (default: docstrings of what is installed)")
    add("--int8", action="store_true", help="with --target onnx: an approximate int8 graph beside it, with its loss")
    add("--tasks", help="STS tasks on which --linearize and --int8 are scored (default with --data_dir: tuning)")
    add("--data_dir", metavar="DIR", help="folder of the STS data (default: none; hub: at pinned revisions)")
    add("--results", type=Path, metavar="FILE", help="results.json of `bertflow evaluate`, for the model card")
    add("--name", help="what the model card calls it (default: the folder's name)")
    add("--license", help="for the model card, as the hub spells it; the encoder's own decides")
    add("--push", metavar="OWNER/NAME", help="upload to the hub afterwards")
    add("--private", action="store_true", help="with --push: a repository that is made is private")
    add("--pooling", help="of an encoder as it comes (default: its own, else mean)")
    add("--max_length", type=int, help="of an encoder as it comes, in tokens (default: 128)")
    add("--dtype", help="float32, float16 or bfloat16 (default: the encoder's own)")
    return parser
