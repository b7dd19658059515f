"""``bertflow compare``: what two encoders find for the same queries, side by side."""

from bertflow.api.advising import compare
from bertflow.cli.command import Command

main = Command(
    "compare",
    compare,
    positionals=("first", "second", "text"),
    metavars={"first": "A", "second": "B", "queries": "FILE"},
    saves="Write comparison.json, comparison.md and run.json there.",
    skips=True,
    json=True,
    examples="""\
  bertflow compare bert-base-uncased fixed/encoder --queries queries.txt products.csv
  bertflow compare fixed/encoder other/encoder --queries log.csv products.csv --columns description""",
).main
