"""``bertflow paper-tables``: tables 2 and 3 of Li et al. 2020, line by line."""

from bertflow.api.reproducing import paper_tables
from bertflow.cli.command import Command

command = Command(
    "paper-tables",
    paper_tables,
    positionals=("models",),
    named={"show_lines": "list"},
    metavars={"models": "MODEL", "nli": "FILE", "nli_models": "MODEL", "line": "K"},
    examples="""\
  bertflow paper-tables bert-base-uncased --data_dir data/sts --output runs/paper --list
  bertflow paper-tables bert-base-uncased bert-large-uncased --data_dir data/sts --nli snli.jsonl --output runs/paper
  bertflow paper-tables bert-base-uncased --data_dir data/sts --tasks stsb --seeds 2 --max_sentences 500""",
)
main = command.main
