"""``bertflow verify-paper``: are the published figures reproduced?"""

from bertflow.cli.command import Command
from bertflow.evaluation.verification import verify_paper

main = Command(
    "verify-paper",
    verify_paper,
    positionals=("model",),
    metavars={"model": "FOLDER"},
    saves="Write verification.json, .md and run.json there.",
).main
