"""``bertflow demo``: calibrate the embedded encoder on the embedded text, and show what changes."""

from bertflow.cli.command import Command
from bertflow.runs.demonstration import demo

main = Command("demo", demo, named={"open_report": "open"}).main
