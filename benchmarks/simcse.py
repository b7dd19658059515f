"""The strongest label-free peer beside calibration: unsupervised SimCSE, and calibrators on top of it. A rehearsal.

    python benchmarks/simcse.py --data_dir DATA --work FOLDER

The published recipe takes a million sentences and a GPU (configs/simcse.yaml). Here two small encoders take some dozens
of its steps, on a sample of the mixture of text that the calibrators are fitted on, which holds no scored sentence: a
plain BERT of 4 blocks (``encoders/mlm-4x256``, here MLM4), and the first three blocks of the built-in MiniLM. Pooling,
head, learning rate and epochs were chosen on ``tuning`` (EXPLORED.md), where ``sts7`` and the docstring pairs, of which
neither side was trained on, choose nothing.

A stage that was trained is not trained again. Writes simcse.json beside this file.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from material import folders, mixture
from nli import between, figures, opened, write_start
from study import Case, Row, Study, table, with_interval

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.pairs import pairs_of_sentences
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.evaluating import evaluate_retrieval, evaluate_sts
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.fitting import fit_siamese

CONFIG = Path(__file__).parents[1] / "configs" / "simcse.yaml"
PUBLISHED = FinetuneRecipe(**yaml.safe_load(CONFIG.read_text("utf-8"))["finetune"])
CHOSEN: Mapping[str, Any] = {"head": False, "learning_rate": 3e-4, "epochs": 1.0}
"""What differs from the published recipe, besides mean pooling."""
SEEDS: Mapping[str, int] = {"MiniLM": 1, "MLM4": 3}
FORMS = ("raw", "whitening", "flow")
SYSTEMS = [f"{rung} {form}" for rung in ("start", "contrastive") for form in FORMS]
COMPARED = [(f"contrastive {form}", f"start {form}") for form in FORMS] + [
    ("start flow", "start whitening"),
    ("contrastive raw", "start whitening"),
    ("contrastive raw", "start flow"),
    *((f"contrastive {form}", "contrastive raw") for form in FORMS[1:]),
]


def trained(options: Namespace, start: Path, text: list[str], seed: int) -> Path:
    """The encoder after the contrast, unless it is there."""
    folder: Path = options.work / f"{start.name}-{seed}"
    if not folder.exists():
        encoder = TransformerEncoder(start, "mean", max_length=PUBLISHED.max_length, device="cpu")
        pairs = pairs_of_sentences(text).sample(options.sentences, 0)
        trainer = {"accelerator": "cpu", "precision": options.precision}
        fit_siamese(encoder, pairs, PUBLISHED, seed, trainer, **CHOSEN).save(folder)
    return folder


def measured(options: Namespace, start: Path, text: list[str], seed: int) -> dict[str, Any]:
    """One encoder with one seed: raw, whitened and with a flow, before and after the contrast."""
    systems: dict[str, SentenceEncoder] = {}
    for rung, folder in {"start": start, "contrastive": trained(options, start, text, seed)}.items():
        systems[f"{rung} raw"] = encoder = opened(folder)
        for form, calibrator in {"whitening": Whitening(), "flow": FlowCalibrator(random_state=seed)}.items():
            systems[f"{rung} {form}"] = CalibratedEncoder(encoder, calibrator.fit_sentences(encoder, text))
    found: dict[str, Any] = {}
    for task in ("tuning", "sts7"):
        report = evaluate_sts(systems, task, options.data_dir / "sts", resamples=options.resamples)
        found[task] = figures(report, task)
        found[f"differences on {task}"] = {f"{a} - {b}": between(report, task, a, b) for a, b in COMPARED}
    _, pairs = docstring_corpus(options.docstring_pairs, 12_000)
    report = evaluate_retrieval(systems, pairs, resamples=0)
    hits = (row for row in report.rows if row.metric.endswith("hit@1"))
    return found | {"hit@1": {row.system: round(100 * row.value, 2) for row in hits}}


def page(rows: Sequence[Row]) -> str:
    """Means over seeds, with their range where there are several; and differences on the test sets, seed by seed."""
    text, tasks = "", ("tuning", "sts7", "hit@1")
    seeds = {start: [row for row in rows if row["start"] == start] for start in SEEDS}

    def shown(start: str, task: str, system: str) -> str:
        values = [row[task][system] for row in seeds[start]]
        spread = f" ({min(values):.2f} to {max(values):.2f})" if len(set(values)) > 1 else ""
        return f"{np.mean(values):.2f}{spread}"

    for start in seeds:
        lines = [(system, *(shown(start, task, system) for task in tasks)) for system in SYSTEMS]
        text += table((start, *tasks[:2], "hit@1, docstrings"), lines)
    names = [f"{row['start']}, seed {row['seed']}" for row in rows]
    for task in tasks[1:2]:
        gaps = [row[f"differences on {task}"] for row in rows]
        lines = [(pair, *(with_interval(*gap[pair], 2) for gap in gaps)) for pair in gaps[0]]
        text += table((f"on {task}", *names), lines)
    return text


def cases(options: Namespace) -> Iterator[Case]:
    """Each encoder with each seed."""
    options.work.mkdir(parents=True, exist_ok=True)
    text = mixture(options.data_dir, options.mixture)
    starts = {"MiniLM": write_start(options.work / "minilm"), "MLM4": Path(folders(options.data_dir)["mlm4"])}
    for start, seeds in SEEDS.items():
        for seed in range(min(seeds, options.seeds)):
            yield {"start": start, "seed": seed}, partial(measured, options, starts[start], text, seed)


STUDY = Study(
    __file__,
    __doc__,
    cases,
    page,
    arguments={
        "work": (Path("runs/simcse"), "where trained encoders are kept"),
        "precision": ("bf16-mixed", "of the fine-tuning; the released code has fp16"),
        "mixture": (1_500, "sentences of each of four kinds of text"),
        "sentences": (4_180, "of these, a sample for the contrast"),
        "seeds": (3, "at most this many"),
        "docstring_pairs": (500, "pairs for hit@1"),
        "resamples": (1_000, "of the bootstrap"),
    },
)
if __name__ == "__main__":
    STUDY.main()
