"""The command line: ``bertflow COMMAND ...``. A command is a row of ``COMMANDS``."""

from bertflow.cli.program import main as main
