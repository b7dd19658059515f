"""The strongest label-free peer beside calibration: unsupervised SimCSE, and calibrators on top of it. A rehearsal.

    python benchmarks/simcse.py --data_dir DATA --work FOLDER

The published recipe takes a million sentences and a GPU (configs/simcse.yaml). Here two small encoders take some dozens
of its steps, on a sample of the mixture of text that the calibrators are fitted on, which holds no scored sentence: a
plain BERT of 4 blocks (``encoders/mlm-4x256``, here MLM4), and the first three blocks of the embedded MiniLM.

    tuning       pooling, head, learning rate and epochs are chosen here, by the raw cosine
    sts7         reported once, with paired bootstrap intervals
    docstrings   hit@1 of the same systems on pairs of which neither side was trained on; nothing is chosen

A stage that was trained is not trained again. The rows "labels" are those of nli_ablation.json (MLM4) and nli.json
(MiniLM), of entailment pairs, with the calibrators that were measured there.
Writes simcse.json and simcse.md beside this file.
"""

import argparse
import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from material import mixture
from nli import Remembering, between, figures, percent, write_start

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.calibrators import FlowCalibrator, Whitening
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.pairs import pairs_of_sentences
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.evaluating import evaluate_retrieval, evaluate_sts
from bertflow.files import write_json, write_text
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.fitting import fit_siamese

HERE = Path(__file__).parent
logger = logging.getLogger("simcse")
PUBLISHED = FinetuneRecipe(**yaml.safe_load((HERE.parent / "configs" / "simcse.yaml").read_text("utf-8"))["finetune"])


@dataclass(frozen=True)
class Stage:
    """A contrastive fine-tuning, by what may differ from the published recipe."""

    start: str
    pooling: str = "cls"
    head: bool = True
    learning_rate: float = 3e-5
    epochs: float = 1.0
    seed: int = 0


CANDIDATES: Mapping[str, Stage] = {
    "MLM4, mean, no head, rate x 10": Stage("MLM4", "mean", False, 3e-4),
    "MLM4, rate x 10": Stage("MLM4", learning_rate=3e-4),
    "MLM4, as released": Stage("MLM4"),
    "MLM4, mean, no head, rate x 10, half an epoch": Stage("MLM4", "mean", False, 3e-4, 0.5),
    "MLM4, mean, no head": Stage("MLM4", "mean", False),
    "MLM4, mean, rate x 10": Stage("MLM4", "mean", True, 3e-4),
    "MiniLM, mean, no head, rate x 10": Stage("MiniLM", "mean", False, 3e-4),
    "MiniLM, mean, no head": Stage("MiniLM", "mean", False),
}
"""One of each start is chosen on ``tuning``."""
SEEDS: Mapping[str, int] = {"MLM4": 3, "MiniLM": 1}
"""Most seeds of the chosen one."""
FORMS = ("raw", "whitening", "flow")
LABELS = {"MLM4": ("nli_ablation.json", "nli-siamese"), "MiniLM": ("nli.json", "entailed")}
"""Where the rows of labels are."""


def text_of(options: argparse.Namespace) -> Path:
    """The mixture as a file."""
    path: Path = options.work / "mixture.txt"
    if not path.exists():
        write_text(path, "\n".join(mixture(options.data_dir, options.mixture)) + "\n")
    return path


def starts(options: argparse.Namespace) -> dict[str, Path]:
    """The encoders as they come."""
    plain = options.data_dir / "encoders" / "mlm-4x256"
    return {"MLM4": plain, "MiniLM": write_start(options.work / "minilm")}


def place(options: argparse.Namespace, stage: Stage) -> tuple[Path, Path]:
    """Where the encoder of a stage is kept, and the facts about it, which are written last."""
    folder: Path = options.work / "-".join(str(value) for value in vars(stage).values())
    return folder, folder.with_name(f"{folder.name}.json")


def trained(options: argparse.Namespace, stage: Stage) -> tuple[dict[str, Any], Remembering]:
    """Fine-tune, unless that was done; facts about it, and the encoder."""
    folder, kept = place(options, stage)
    if not kept.exists():
        logger.info("training %s", folder.name)
        encoder = TransformerEncoder(
            starts(options)[stage.start], stage.pooling, max_length=PUBLISHED.max_length, device="cpu"
        )
        pairs = pairs_of_sentences(text_of(options).read_text("utf-8").splitlines()).sample(options.sentences, 0)
        changes = {name: getattr(stage, name) for name in ("head", "learning_rate", "epochs")}
        trainer = {"accelerator": "cpu", "precision": options.precision}
        fit = fit_siamese(encoder, pairs, PUBLISHED, stage.seed, trainer, **changes)
        fit.save(folder)
        write_json(kept, fit.record())
    facts: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    logger.info("%s: %s", folder.name, facts)
    return facts, Remembering(folder, options.work, stage.pooling)


def chosen_on_tuning(options: argparse.Namespace) -> dict[str, Any]:
    """Figures of every candidate on ``tuning``, and the best of each start."""
    facts, systems = {}, dict[str, SentenceEncoder]()
    for name, stage in CANDIDATES.items():
        if not options.only_trained or place(options, stage)[1].exists():
            facts[name], systems[name] = trained(options, stage)
    for start, folder in starts(options).items():
        for pooling in ("mean", "cls"):
            systems[f"{start}, {pooling}"] = Remembering(folder, options.work, pooling)
    report = evaluate_sts(systems, "tuning", options.data_dir / "sts", resamples=options.resamples)
    values = figures(report, "tuning")
    best = {
        start: max((name for name in facts if CANDIDATES[name].start == start), key=lambda n: values[n]["value"])
        for start in SEEDS
    }
    return {"candidates": {name: facts.get(name, {}) | values[name] for name in systems}, "chosen": best}


def ladder(options: argparse.Namespace, start: str, stage: Stage) -> dict[str, Any]:
    """Every rung of one encoder with one seed: raw, whitened and with a flow, before and after the contrast."""
    text = text_of(options).read_text(encoding="utf-8").splitlines()
    facts, contrastive = trained(options, stage)
    systems: dict[str, SentenceEncoder] = {}
    for rung, encoder in {
        "start": Remembering(starts(options)[start], options.work), "contrastive": contrastive
    }.items():  # fmt: skip
        logger.info("fitting %s %s, seed %d", start, rung, stage.seed)
        calibrators = {"whitening": Whitening(), "flow": FlowCalibrator(random_state=stage.seed)}
        systems[f"{rung} raw"] = encoder
        for form, calibrator in calibrators.items():
            systems[f"{rung} {form}"] = CalibratedEncoder(encoder, calibrator.fit_sentences(encoder, text))
    against = [(f"contrastive {form}", f"start {form}") for form in FORMS]
    against += [("start flow", "start whitening"), ("contrastive raw", "start whitening")]
    against += [("contrastive raw", "start flow"), ("contrastive whitening", "contrastive raw")]
    against += [("contrastive flow", "contrastive raw"), ("contrastive flow", "contrastive whitening")]
    found: dict[str, Any] = {"seed": stage.seed, "training": facts, "differences": []}
    for task in ("tuning",) if options.only_tuning else ("tuning", "sts7"):
        report = evaluate_sts(systems, task, options.data_dir / "sts", resamples=options.resamples)
        found[task] = figures(report, task)
        found["differences"] += [between(report, task, *pair) for pair in against]
    if options.docstring_pairs:
        _, pairs = docstring_corpus(options.docstring_pairs, options.docstring_text)
        report = evaluate_retrieval(systems, pairs, resamples=options.resamples)
        hits = (row for row in report.rows if row.metric.endswith("hit@1"))
        found["hit@1"] = {row.system: {"value": percent(row.value), "seen": row.seen} for row in hits}
    return found


def labels_of(start: str) -> dict[str, Any]:
    """Figures of the encoder after labels, by form, from the benchmark that has them."""
    file, stage = LABELS[start]
    found = json.loads((HERE / file).read_text(encoding="utf-8"))
    source = found if "sts7" in found else next(one for one in found["sts"] if one["setting"] == "inductive")
    sts7 = {form: source["sts7"].get(f"{stage} {form}", {}).get("value") for form in FORMS}
    rows = source["tuning"]
    tuning = {form: rows.get(stage, {}).get(form) or rows.get(f"{stage} {form}", {}).get("value") for form in FORMS}
    fitted = "the scored sentences" if source is found else "the mixture"
    return {form: {"tuning": tuning[form], "sts7": sts7[form], "fitted on": fitted} for form in FORMS if sts7[form]}


def rows_of(start: str, seeds: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The ladder of one encoder: means over its seeds, with their range where there are several."""

    def shown(task: str, system: str) -> str:
        values = [seed[task][system]["value"] for seed in seeds if task in seed]
        if not values:
            return "-"
        spread = f" ({min(values):.2f} to {max(values):.2f})" if len(set(values)) > 1 else ""
        return f"{np.mean(values):.2f}{spread}"

    rows = [
        (start, system, *(shown(task, system) for task in ("tuning", "sts7", "hit@1")))
        for system in (f"{rung} {form}" for rung in ("start", "contrastive") for form in FORMS)
    ]
    for form, row in labels_of(start).items():
        note = "" if form == "raw" else f", fitted on {row['fitted on']}"
        rows.append((start, f"labels {form}{note}", str(row["tuning"]), str(row["sts7"]), "-"))
    return rows


def to_markdown(results: Mapping[str, Any]) -> str:
    """The tables."""
    lines = ["| on tuning | steps | held-out loss | right | Spearman | 95 % |", "|---|---:|---:|---:|---:|---|"]
    for name in sorted(results["candidates"], key=[*CANDIDATES, *results["candidates"]].index):
        row = results["candidates"][name]
        columns = [str(row.get(key, "-")) for key in ("steps", "held_out_loss", "held_out_right")]
        mark = " (chosen)" if name in results["chosen"].values() else ""
        low, high = row["ci"]
        lines.append(f"| {name}{mark} | {' | '.join(columns)} | {row['value']:.2f} | {low:.2f} to {high:.2f} |")
    lines += ["", "| encoder | system | tuning | sts7 | hit@1, docstrings |", "|---|---|---:|---:|---:|"]
    for start, seeds in results["ladders"].items():
        lines += [f"| {' | '.join(row)} |" for row in rows_of(start, seeds)]
    lines += ["", "| encoder, seed | difference | on | | 95 % |", "|---|---|---|---:|---|"]
    for start, seeds in results["ladders"].items():
        for seed in seeds:
            for row in seed["differences"]:
                low, high = row["ci"]
                lines.append(
                    f"| {start}, {seed['seed']} | {row['first']} - {row['second']} | {row['task']} "
                    f"| {row['difference']:+.2f} | {low:+.2f} to {high:+.2f} |"
                )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train, choose, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text, nli and encoders")
    parser.add_argument("--work", type=Path, required=True, help="where runs and embeddings are kept")
    parser.add_argument("--precision", default="bf16-mixed", help="of the fine-tuning; the released code has fp16")
    parser.add_argument("--mixture", type=int, default=1_500, help="sentences of each of four kinds of text")
    parser.add_argument("--sentences", type=int, default=4_180, help="of these, a sample for the contrast")
    parser.add_argument("--seeds", type=int, default=3, help="at most so many")
    parser.add_argument("--only_trained", action="store_true", help="choose among the candidates that are trained")
    parser.add_argument("--frozen", action="store_true", help="train no other candidates: take simcse.json's choice")
    parser.add_argument("--docstring_pairs", type=int, default=500, help="0 to leave them out")
    parser.add_argument("--docstring_text", type=int, default=12_000, help="sentences of docstrings kept apart of them")
    parser.add_argument("--resamples", type=int, default=1_000)
    parser.add_argument("--only_tuning", action="store_true", help="do not look at sts7")
    parser.add_argument("--only_choose", action="store_true", help="stop when the recipes are chosen")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    kept = ("precision", "mixture", "sentences", "seeds", "docstring_pairs", "resamples", "only_tuning")
    conditions = {name: getattr(options, name) for name in kept}
    earlier = json.loads((HERE / "simcse.json").read_text(encoding="utf-8")) if options.frozen else {}
    choice = {name: earlier[name] for name in ("candidates", "chosen")} if earlier else chosen_on_tuning(options)
    results: dict[str, Any] = {"conditions": conditions, **choice, "ladders": {}}
    logger.info("%s", to_markdown(results))
    if options.only_choose:
        return
    for start in sorted(SEEDS, key=SEEDS.__getitem__):
        stage = CANDIDATES[results["chosen"][start]]
        results["ladders"][start] = []
        for seed in range(min(SEEDS[start], options.seeds)):
            results["ladders"][start].append(ladder(options, start, replace(stage, seed=seed)))
            write_json(HERE / "simcse.json", results)
            write_text(HERE / "simcse.md", to_markdown(results))


if __name__ == "__main__":
    main()
