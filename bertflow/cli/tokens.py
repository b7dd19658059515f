"""``bertflow tokens``: how text becomes tokens."""

from bertflow.api.looking import inspect_tokens
from bertflow.cli.command import Command

main = Command(
    "tokens",
    inspect_tokens,
    positionals=("texts",),
    metavars={"texts": "TEXT", "pair": "A B"},
    json=True,
    examples="""\
  bertflow tokens "I found a rock." "I only listen to rock."
  bertflow tokens --pair "I found a rock." "I only listen to rock."
  bertflow tokens --vocabulary --model bert-base-uncased""",
).main
