"""``bertflow inspect``: a report on the geometry of an encoder."""

from functools import wraps
from pathlib import Path
from typing import Any

from bertflow.cli.command import Command
from bertflow.geometry.report import GeometryReport, inspect_geometry, run_folder


@wraps(inspect_geometry)
def inspect_and_write(model: str | None = None, output: str | None = None, **options: Any) -> GeometryReport:
    """The same; by default the report is written to the folder of the run, or to ``report``."""
    return inspect_geometry(model, output=output or (run_folder(model) or Path()) / "report", **options)


main = Command(
    "inspect",
    inspect_and_write,
    positionals=("model",),
    metavars={
        "compare": "LIST",
        "text": "FILE",
        "pairs": "TASK|FILE",
        "data_dir": "DIR",
        "frequencies": "FILE",
        "output": "DIR",
    },
    examples="""\
  bertflow inspect
  bertflow inspect bert-base-uncased --pooling first-last-avg
  bertflow inspect runs/mine --pairs stsb-dev --data_dir data/sts
  bertflow inspect my_encoder --text mine.txt --pairs none --compare "raw,abtt(7),whitening" --frequencies words.txt""",
).main
