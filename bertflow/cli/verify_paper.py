"""``bertflow verify-paper``: are the published figures reproduced?"""

from bertflow.api.reproducing import verify_paper
from bertflow.cli.command import Command

main = Command(
    "verify-paper",
    verify_paper,
    positionals=("model",),
    metavars={"model": "FOLDER"},
    saves="Write verification.json, .md and run.json there.",
).main
