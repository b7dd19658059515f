"""``bertflow score``: cosines that people can use, and text in or out of domain."""

from bertflow.api.advising import score
from bertflow.cli.command import Command

EXAMPLES = """\
  bertflow score fixed/encoder pairs.tsv --output scored.tsv --false_match_rate 0.01
  bertflow score intfloat/e5-base pairs.csv --fit_on text.txt --labels labels.tsv --save scored-e5
  bertflow score scored-e5 pairs.csv --precision 0.9
  bertflow score fixed/encoder --domain this_week.txt --fail_on_drift"""

main = Command(
    "score",
    score,
    positionals=["encoder", "pairs"],
    metavars={
        **{"encoder": "FOLDER", "columns": "A,B", "output": "FILE", "fit_on": "TEXT", "queries": "FILE"},
        **{"false_match_rate": "X", "precision": "P", "recall": "R"},
    },
    skips=True,
    examples=EXAMPLES,
).main
