"""``evaluate.py`` and ``bertflow evaluate``: score systems."""

from bertflow.api.measuring import evaluate
from bertflow.cli.command import Command

main = Command(
    "evaluate",
    evaluate,
    positionals=("models",),
    metavars={
        **{"models": "MODEL", "fit_on": "FILE|eval", "lexical": "TASK", "fail_below": "TASK=X", "published": "PART"},
        "candidate_lists": "FILE",
    },
    bare={"lexical": "stsb-dev", "published": ""},
    saves="Write results.json, .md, predictions.csv, mteb files and run.json there.",
    skips=True,
    examples="""\
  bertflow evaluate bert-base-uncased --pooling first-last-avg --tasks sts7 --data_dir data/sts
  bertflow evaluate runs/mine --compare raw,center,whitening --tasks stsb,sickr --data_dir data/sts --output scores
  bertflow evaluate runs/mine --seeds 5 --data_dir data/sts --output scores
  bertflow evaluate bert-base-uncased --compare "sif,sif+whitening(64),abtt(7)" --fit_on text.txt
  bertflow evaluate bert-base-uncased glove.6B.300d.txt --compare static --ceiling --lexical --data_dir data/sts""",
).main
