"""``bertflow demo``: calibrate the embedded encoder on the embedded text, and show what changes."""

from bertflow.api.looking import demo
from bertflow.cli.command import Command

main = Command("demo", demo, named={"open_report": "open"}).main
