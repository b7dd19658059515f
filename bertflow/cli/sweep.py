"""``bertflow sweep``: which layer, which pooling, for your encoder and your data."""

from bertflow.api.measuring import sweep
from bertflow.cli.command import Command

main = Command(
    "sweep",
    sweep,
    positionals=("model",),
    python_only=("pooling",),
    saves="Write sweep.json, .md, .csv, .png and run.json there.",
    skips=True,
    examples="""\
  bertflow sweep bert-base-uncased --data_dir data/sts --output sweeps/bert
  bertflow sweep bert-base-uncased --layers 0,6,12 --tokens mean,cls --labels topics.tsv
  bertflow sweep bert-base-cased --labels eng.testa --compare raw,sn,whitening""",
).main
