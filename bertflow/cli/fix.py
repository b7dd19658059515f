"""``bertflow fix``: all my cosines are 0.9, what can I do? A verdict, and an encoder."""

from bertflow.api.advising import fix
from bertflow.cli.command import Command

main = Command(
    "fix",
    fix,
    positionals=("encoder", "text"),
    metavars={"encoder": "MODEL"},
    preset=lambda _: {"output": "fixed"},
    named={"open_report": "open"},
    skips=True,
    examples="""\
  bertflow fix bert-base-uncased my_text.txt --output fixed
  bertflow fix intfloat/e5-base my_text.txt --prompt "query: " --labels judged.tsv
  bertflow fix --vectors embeddings.npy
  bertflow fix --vectors embeddings.npy my_text.txt --labels judged.tsv""",
).main
