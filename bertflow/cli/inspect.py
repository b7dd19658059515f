"""``bertflow inspect``: a report on the geometry of an encoder."""

from pathlib import Path

from bertflow.api.looking import inspect_geometry
from bertflow.cli.command import Command
from bertflow.geometry import run_folder

main = Command(
    "inspect",
    inspect_geometry,
    positionals=("model",),
    metavars={"text": "FILE", "pairs": "TASK|FILE"},
    preset=lambda parsed: {"output": str((run_folder(parsed.model) or Path()) / "report")},
    named={"open_report": "open"},
    skips=True,
    examples="""\
  bertflow inspect
  bertflow inspect bert-base-uncased --pooling first-last-avg
  bertflow inspect runs/mine --pairs stsb-dev --data_dir data/sts
  bertflow inspect my_encoder --text mine.txt --pairs none --compare "raw,abtt(7),whitening" --frequencies words.txt""",
).main
