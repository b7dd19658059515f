"""Why the paper's NLI stage lowers the scores of a small encoder, and what raises them: one change at a time.

    python benchmarks/nli_ablation.py --data_dir DATA --work FOLDER

A plain BERT of 4 blocks (``encoders/mlm-4x256``), or three blocks of the embedded MiniLM, mean pooling, is fine-tuned
on SNLI dev and test, less the pairs that hold a sentence of any scored task. ``STAGES`` are the changes to the paper's
stage; they are scored on ``tuning``, by which the default was chosen. The frozen ones are then scored once on sts7.
Beside Spearman x 100 stands what a stage does:

    right       share of the held-out pairs (2 %) that come out right: 1 of 3 classes, or 1 of 64 hypotheses
    head        norm of the head's weights at the end; it begins at 0.84 (MiniLM: 1.03)
    spread      number of directions over which the variance of the tuning sentences is spread (participation ratio)
    auc         how well the cosine tells entailment from contradiction, on 4,000 of the pairs, most of them trained on

A stage that was trained is not trained again. Writes nli_ablation.json and nli_ablation.md beside this file, and
the latter into the head of nli.md.
"""

import argparse
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from nli import Remembering, between, figures, write_start
from sklearn.metrics import roc_auc_score
from torch.optim.lr_scheduler import LambdaLR

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.calibrators import Whitening
from bertflow.data.pairs import Pairs, load_pairs, unique_sentences
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.evaluating import evaluate_sts
from bertflow.files import write_json, write_text
from bertflow.finetuning.fitting import fit_siamese
from bertflow.finetuning.siamese import Siamese
from bertflow.moments import Moments
from bertflow.text_keys import hash_texts
from bertflow.training.rows import participation_ratio

HERE = Path(__file__).parent
logger = logging.getLogger("nli")


@dataclass(frozen=True)
class Stage:
    """A fine-tuning, by what differs from the paper's."""

    objective: str = "classification"
    learning_rate: float = 2e-5
    head: float = 1.0
    """Learning rate of the head, as a multiple of the encoder's."""
    precision: str = "32-true"
    epochs: float = 1.0
    warmup: float = 0.1
    batch_size: int = 16
    pairs: int | None = None
    """Pairs to train on, a sample; all by default."""
    start: str = "start"
    """Row of ``STARTS``."""


STARTS = ("start", "MiniLM")
"""The plain BERT, and the first three blocks of the embedded MiniLM, 384 wide."""
STAGES: Mapping[str, Stage] = {
    "paper-nli": Stage(),
    "head x 100": Stage(head=100.0),
    "head x 1000": Stage(head=1000.0),
    "rate x 5, head x 20": Stage(learning_rate=1e-4, head=20.0),
    "2 epochs": Stage(epochs=2.0),
    "no warm-up": Stage(warmup=0.0),
    "batch 64": Stage(batch_size=64),
    "a quarter of the pairs": Stage(pairs=4742),
    "half of the pairs": Stage(pairs=9484),
    "MiniLM, paper-nli": Stage(start="MiniLM"),
    "MiniLM, head x 100": Stage(head=100.0, start="MiniLM"),
    "nli-siamese": Stage("in-batch-negatives", 5e-5),
    "nli-siamese, rate x 6": Stage("in-batch-negatives", 3e-4, precision="bf16-mixed"),
    "nli-siamese, 2 epochs": Stage("in-batch-negatives", 5e-5, epochs=2.0),
    "nli-siamese, half of the pairs": Stage("in-batch-negatives", 5e-5, pairs=9484),
    "MiniLM, nli-siamese": Stage("in-batch-negatives", 5e-5, start="MiniLM"),
}
FROZEN = ("paper-nli", "nli-siamese")
"""What is scored on sts7: the two files of options."""
COLUMNS = ("steps", "held_out_right", "head", "raw", "whitening", "spread", "auc")


class FasterHead(pl.Callback):
    """Gives the head a learning rate of its own before the first step.

    Args:
        factor: Times that of the encoder.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the head to a group of its own, with the same course of the learning rate."""
        assert isinstance(pl_module, Siamese)
        recipe, head = pl_module.recipe, list(pl_module.objective.parameters())
        if self.factor == 1:
            return
        optimizer, moved = trainer.optimizers[0], {id(weight) for weight in head}
        for group in optimizer.param_groups:
            group["params"] = [weight for weight in group["params"] if id(weight) not in moved]
        course, rate = trainer.lr_scheduler_configs[0].scheduler, recipe.learning_rate * self.factor
        assert isinstance(course, LambdaLR)
        share = course.lr_lambdas[0]
        own = {"params": head, "weight_decay": recipe.weight_decay, "lr": rate * share(0), "initial_lr": rate}
        optimizer.add_param_group(own)
        course.base_lrs.append(rate)
        course.lr_lambdas.append(share)


def snli(data: Path) -> Pairs:
    """Labelled pairs of SNLI dev and test that hold no scored sentence."""
    texts = unique_sentences(load_sts(task, data / "sts") for task in (*SUITES["sts7"], "tuning"))
    pairs = load_pairs(sorted((data / "nli").glob("snli_*.tsv.gz")), "classes")
    return pairs.without_text(hash_texts(texts))


def trained(stage: Stage, start: Path, pairs: Pairs, folder: Path) -> dict[str, Any]:
    """Fine-tune, unless that was done; facts about the training."""
    kept = folder.with_suffix(".json")
    if not kept.exists():
        logger.info("training %s", folder.name)
        encoder = TransformerEncoder(start, "mean", max_length=64, device="cpu")
        chosen = pairs if stage.pairs is None else pairs.sample(stage.pairs, 5)
        given = chosen if stage.objective == "classification" else chosen.of_class("entailment")
        options = {"accelerator": "cpu", "precision": stage.precision, "callbacks": [FasterHead(stage.head)]}
        same = ("objective", "learning_rate", "epochs", "warmup", "batch_size")
        changes: dict[str, Any] = {name: getattr(stage, name) for name in same}
        fit = fit_siamese(encoder, given, trainer=options, **changes)
        fit.save(folder)
        head = [round(float(weight.detach().norm()), 2) for weight in fit.module.objective.parameters()]
        write_json(kept, fit.record() | ({"head": head[0]} if head else {}))
    facts: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return facts


def whitened(encoder: Remembering, text: list[str]) -> SentenceEncoder:
    """The encoder with a whitening that was fitted on ``text``."""
    return CalibratedEncoder(encoder, Whitening().fit_sentences(encoder, text))


def on_tuning(encoders: Mapping[str, Remembering], pairs: Pairs, sts: Path) -> dict[str, Any]:
    """Figures on ``tuning`` (whitening fitted on its sentences), differences from the start, and facts, by stage."""
    text = unique_sentences([load_sts("tuning", sts)])
    systems: dict[str, SentenceEncoder] = {}
    for name, encoder in encoders.items():
        systems |= {f"{name} raw": encoder, f"{name} whitening": whitened(encoder, text)}
    report = evaluate_sts(systems, "tuning", sts)
    values = figures(report, "tuning")
    forms = ("raw", "whitening")
    rows = {name: {form: values[f"{name} {form}"]["value"] for form in forms} for name in encoders}
    against = [(f"{name} {form}", f"{STAGES[name].start} {form}") for name in STAGES for form in forms]
    return {
        "tuning": {name: {**row, **facts(encoders[name], pairs, text)} for name, row in rows.items()},
        "differences": [between(report, "tuning", *pair) for pair in against],
    }


def facts(encoder: Remembering, pairs: Pairs, tuning: list[str]) -> dict[str, float]:
    """What a stage did to the space: the spread of the variance, and what the cosine knows of entailment."""
    chosen = pairs.sample(4_000, 5)
    assert chosen.target is not None
    u, v = (encoder.encode(list(side)).astype(np.float64) for side in (chosen.first, chosen.second))
    cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    entailed, contradicted = (chosen.target == chosen.classes.index(name) for name in ("entailment", "contradiction"))
    told = entailed | contradicted
    spread = participation_ratio(Moments.of(encoder.encode(tuning)))
    return {"auc": round(float(roc_auc_score(entailed[told], cosine[told])), 3), "spread": round(spread, 1)}


def on_sts7(encoders: Mapping[str, Remembering], sts: Path) -> dict[str, Any]:
    """The frozen stages and their start, raw and whitened on the scored sentences, with paired intervals."""
    text = unique_sentences(load_sts(task, sts) for task in SUITES["sts7"])
    systems: dict[str, SentenceEncoder] = {}
    for name in ("start", *FROZEN):
        systems |= {f"{name} raw": encoders[name], f"{name} whitening": whitened(encoders[name], text)}
    report = evaluate_sts(systems, "sts7", sts)
    against = [(f"{name} {form}", f"start {form}") for name in FROZEN for form in ("raw", "whitening")]
    return {"sts7": figures(report, "sts7"), "sts7 differences": [between(report, "sts7", *pair) for pair in against]}


def to_markdown(results: Mapping[str, Any]) -> str:
    """The tables: stages and facts on ``tuning``, differences from the start, and the frozen ones on sts7."""
    lines = [f"| tuning | {' | '.join(COLUMNS)} |", "|---|" + "---:|" * len(COLUMNS)]
    for name in (*STARTS, *STAGES):
        shown = {**results["tuning"][name], **results["trained"].get(name, {})}
        lines.append(f"| {name} | {' | '.join(str(shown.get(column, '-')) for column in COLUMNS)} |")
    lines += ["", "| on | difference | | 95 % |", "|---|---|---:|---|"]
    for row in (*results["differences"], *results.get("sts7 differences", ())):
        compared, (low, high) = f"{row['first']} - {row['second']}", row["ci"]
        lines.append(f"| {row['task']} | {compared} | {row['difference']:+.2f} | {low:+.2f} to {high:+.2f} |")
    lines += ["", "| sts7 | | 95 % |", "|---|---:|---|"]
    for name, row in results.get("sts7", {}).items():
        lines.append(f"| {name} | {row['value']:.2f} | {row['ci'][0]:.2f} to {row['ci'][1]:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text, nli and encoders")
    parser.add_argument("--work", type=Path, required=True, help="where encoders and embeddings are kept")
    parser.add_argument("--only_tuning", action="store_true", help="keep the figures of sts7 from the last run")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.work.mkdir(parents=True, exist_ok=True)
    pairs = snli(options.data_dir)
    starts = {"start": options.data_dir / "encoders" / "mlm-4x256", "MiniLM": write_start(options.work / "minilm")}
    folders = {name: options.work / name.replace(", ", "-").replace(" ", "-") for name in STAGES}
    results: dict[str, Any] = {
        "trained": {name: trained(stage, starts[stage.start], pairs, folders[name]) for name, stage in STAGES.items()}
    }
    encoders = {name: Remembering(folder, options.work) for name, folder in {**starts, **folders}.items()}
    results |= on_tuning(encoders, pairs, options.data_dir / "sts")
    logger.info("%s", to_markdown(results))
    if options.only_tuning:
        scored = json.loads((HERE / "nli_ablation.json").read_text(encoding="utf-8"))
        results |= {name: scored[name] for name in ("sts7", "sts7 differences")}
    else:
        results |= on_sts7(encoders, options.data_dir / "sts")
    write_json(HERE / "nli_ablation.json", results)
    write_text(HERE / "nli_ablation.md", to_markdown(results))
    page = (HERE / "nli.md").read_text(encoding="utf-8")
    write_text(HERE / "nli.md", f"{to_markdown(results)}\n{page[page.index('| fitted | system') :]}")


if __name__ == "__main__":
    main()
