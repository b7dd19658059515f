"""``bertflow embed``: embed a corpus once, into a store."""

from bertflow.api.vectors import embed
from bertflow.cli.command import Command

main = Command(
    "embed",
    embed,
    positionals=("text",),
    skips=True,
    examples="""\
  bertflow embed text.txt --store stores/mine --model bert-base-uncased --pooling first-last-avg
  bertflow embed a.jsonl hub:owner/name --store stores/mine --storage float16
  torchrun --nproc-per-node 2 -m bertflow embed text.txt --store stores/mine
  bertflow embed --store stores/mine --verify""",
).main
