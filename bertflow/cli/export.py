"""``bertflow export``: write an encoder for other tools."""

from bertflow.api.exporting import export_encoder
from bertflow.cli.command import Command

EXAMPLES = """\
  bertflow export runs/mine --target sentence-transformers --output exported
  bertflow export runs/mine --target sentence-transformers --linearize --data_dir data/sts --tasks tuning --output dense
  bertflow export runs/mine --target onnx --int8 --output onnx
  bertflow export runs/mine --target sentence-transformers --results scores/results.json --output mine --push me/mine"""

main = Command(
    "export",
    export_encoder,
    positionals=["model"],
    metavars={"text": "FILE", "push": "OWNER/NAME"},
    examples=EXAMPLES,
).main
