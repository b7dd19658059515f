"""``bertflow finetune``: fine-tune an encoder on pairs; the result is a run folder with a model folder in it."""

from bertflow.api.training import finetune
from bertflow.cli.command import Command

command = Command(
    "finetune",
    finetune,
    named={"pairs": "data", "recipe": "finetune", "seed": "seed_everything"},
    positionals=("data.pairs",),
    metavars={"data.pairs": "FILE"},
    aliases={"finetune.objective": ["--objective"]},
    trainer=True,
    skips=True,
    examples="""\
  bertflow finetune --config configs/nli-siamese.yaml --encoder.model bert-base-uncased --data.pairs [FILE,...]
  bertflow finetune --config configs/paper-nli.yaml --encoder.model bert-base-uncased --data.pairs [FILE,...]
  bertflow finetune --finetune.objective in-batch-negatives --data.pairs answers.tsv --output runs/tuned
  bertflow finetune --config configs/simcse.yaml --encoder.model bert-base-uncased text.txt""",
)
main = command.main
