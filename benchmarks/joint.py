"""What a joint objective is worth: labels and likelihood at once, against one after the other, on MLM4.

    python benchmarks/joint.py --data_dir DATA --work FOLDER

The start is the small plain BERT (``encoders/mlm-4x256``) with the pooling of the released code, its first and last
block. It learns from labels: a sample of SNLI dev and test by classification, as in the paper's NLI stage; or the
scores of STS-B train by regression, with the released defaults. Once without a flow, and once for each row of
``JOINT`` (after NLI for two of them); always by the command that users have. Pairs that hold a sentence of what is
scored are left out by key, so everything is inductive. Flows and whitening are fitted on the text of the same pairs.
Scored on

    tuning              where choices would be made; nothing is chosen here
    sts7                after NLI, once
    STS-B test, SICK    after STS-B train, once: it holds labels of STS12-16

A run that is interrupted goes on where it stopped. Writes joint.json and joint.md beside this file.
"""

import argparse
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nli import between, figures, finetuned
from sklearn.base import clone

import bertflow
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.calibrators import FlowCalibrator, Whitening
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.evaluating import evaluate_sts
from bertflow.evaluation.report import Report
from bertflow.files import write_json, write_text
from bertflow.finetuning.joint import JOINT
from bertflow.runs import PairOptions, read_pairs

HERE = Path(__file__).parent
POOLING, MAX_LENGTH = "first-last-avg", 64
CALIBRATORS: Mapping[str, AbstractCalibrator] = {
    "whitening": Whitening(),
    "paper-tf": FlowCalibrator("paper-tf"),
    "default flow": FlowCalibrator(),
}
"""What comes second, where labels come first."""


@dataclass(frozen=True)
class Labels:
    """What is learned from, how, and what may be scored afterwards."""

    objective: str
    wanted: str
    recipe: Mapping[str, Any]
    scored: Sequence[str]
    rows: Sequence[str] = tuple(JOINT)
    """Of ``JOINT``."""


LABELS: Mapping[str, Labels] = {
    "stsb": Labels("regression", "scores", {"learning_rate": 5e-5, "batch_size": 32}, ("stsb", "sickr")),
    "nli": Labels("classification", "classes", {"learning_rate": 2e-5, "batch_size": 16}, ("sts7",), ("apart", "sum")),
}
"""Released: the flags' defaults for STS-B but for their three epochs, scripts/train_siamese.sh and README for NLI."""


def pair_options(options: argparse.Namespace, name: str) -> PairOptions:
    """The pairs of one kind of labels."""
    sts, left_out = str(options.data_dir / "sts"), f"tuning,{','.join(LABELS[name].scored)}"
    if name == "stsb":
        return PairOptions(tasks="stsb-train", data_dir=sts, leave_out=left_out)
    files = [str(options.data_dir / "nli" / f"snli_{split}.tsv.gz") for split in ("dev", "test")]
    return PairOptions(pairs=files, data_dir=sts, leave_out=left_out, max_pairs=options.nli_pairs)


def trained(options: argparse.Namespace, start: Path, name: str, joint: str | None) -> Path:
    """The run folder of one kind of labels, alone or with a flow beside them."""
    labels, data = LABELS[name], vars(pair_options(options, name))
    given = {f"finetune.{key}": value for key, value in labels.recipe.items()}
    given |= {f"data.{key}": value for key, value in data.items() if value is not None}
    given |= {"finetune.objective": labels.objective, "finetune.epochs": options.epochs, "finetune.held_out": 0.0}
    given |= {"encoder.pooling": POOLING, "seed_everything": options.seed}
    given |= {"finetune.joint": joint} if joint else {}
    run: Path = options.work / f"{name}-{joint or 'alone'}-{options.seed}"
    finetuned(run, start, [f"--{key}={value}" for key, value in given.items()])
    return run


def systems_of(options: argparse.Namespace, start: Path, name: str) -> dict[str, SentenceEncoder]:
    """Everything that is scored for one kind of labels."""
    pairs, _ = read_pairs(pair_options(options, name), LABELS[name].objective, LABELS[name].wanted, options.seed)
    text = pairs.sentences
    untouched = TransformerEncoder(start, POOLING, max_length=MAX_LENGTH, device="cpu")
    alone = bertflow.load(trained(options, start, name, None) / "encoder")
    systems: dict[str, SentenceEncoder] = {}
    for stage, encoder in {"start": untouched, "labels first": alone}.items():
        systems[stage] = encoder
        for kind, calibrator in CALIBRATORS.items():
            systems[f"{stage}, {kind}"] = CalibratedEncoder.fit(encoder, clone(calibrator), text)
    for row in LABELS[name].rows:
        run = trained(options, start, name, row)
        both = bertflow.load(run)
        systems[f"joint {row}"], systems[f"joint {row}, without its flow"] = both, both.raw
        systems[f"joint {row}, whitening instead"] = CalibratedEncoder.fit(both.raw, Whitening(), text)
    return systems


def spreads(systems: Mapping[str, SentenceEncoder]) -> dict[str, float]:
    """Root of the total variance of each raw encoder's embeddings, as a share of the start's: 0 is collapse."""
    moments = {
        name.split(",")[0]: system.calibrator.moments_
        for name, system in systems.items()
        if isinstance(system, CalibratedEncoder) and name.split(", ")[-1] in ("whitening", "whitening instead")
    }
    roots = {name: math.sqrt(one.covariance.trace()) for name, one in moments.items()}
    return {name: round(root / roots["start"], 4) for name, root in roots.items()}


def measured(options: argparse.Namespace, start: Path, name: str) -> dict[str, Any]:
    """All systems on ``tuning`` and on the test sets."""
    systems, tasks = systems_of(options, start, name), LABELS[name].scored
    sts, resamples = options.data_dir / "sts", options.resamples
    tuning = evaluate_sts(systems, "tuning", sts, resamples=resamples)
    test = evaluate_sts(systems, list(tasks), sts, resamples=resamples)
    rivals = [one for one in systems if one.startswith("labels first")]
    ours = [f"joint {row}" for row in LABELS[name].rows]
    return {
        "tuning": figures(tuning, "tuning"),
        **{task: figures(test, task) for task in tasks},
        "differences": [
            between(report, task, one, other)
            for one in ours
            for other in (*rivals, f"{one}, without its flow")
            for report, task in _places(tuning, test, tasks)
        ],
        "spread": spreads(systems),
        "seconds": {run.name: _seconds(run) for run in sorted(options.work.glob(f"{name}-*-{options.seed}"))},
    }


def _places(tuning: Report, test: Report, tasks: Sequence[str]) -> list[tuple[Report, str]]:
    return [(tuning, "tuning"), *((test, task) for task in tasks)]


def _seconds(run: Path) -> dict[str, Any]:
    fit = bertflow.runs.read_run(run)["fit"]
    return {key: fit[key] for key in ("pairs", "steps", "seconds", "peak_memory_mb")}


def to_markdown(results: Mapping[str, Any]) -> str:
    """The tables."""
    lines = []
    for name, found in results["labels"].items():
        tasks = ["tuning", *LABELS[name].scored]
        lines += [f"## Labels: {name}", "", f"| system | {' | '.join(tasks)} | spread |"]
        lines += [f"|---|{'---:|' * (len(tasks) + 1)}"]
        for system in found["tuning"]:
            cells = [f"{found[task][system]['value']:.2f}" for task in tasks]
            spread = found["spread"].get(system.split(",")[0])
            lines.append(f"| {system} | {' | '.join(cells)} | {'' if spread is None else f'{spread:.2f}'} |")
        lines += ["", "| difference | on | | 95 % |", "|---|---|---:|---|"]
        for row in found["differences"]:
            low, high = row["ci"]
            lines.append(
                f"| {row['first']} - {row['second']} | {row['task']} | {row['difference']:+.2f} "
                f"| {low:+.2f} to {high:+.2f} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Train, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, nli and encoders")
    parser.add_argument("--work", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--labels", nargs="*", choices=list(LABELS), default=list(LABELS))
    parser.add_argument("--nli_pairs", type=int, default=2_500, help="a random sample of at most so many")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resamples", type=int, default=1_000)
    parser.add_argument("--only_train", action="store_true", help="stop before anything is scored")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    options.work.mkdir(parents=True, exist_ok=True)
    start = options.data_dir / "encoders" / "mlm-4x256"
    if options.only_train:
        for name in options.labels:
            for joint in (None, *LABELS[name].rows):
                trained(options, start, name, joint)
        return
    conditions = {name: getattr(options, name) for name in ("nli_pairs", "epochs", "seed", "resamples")}
    results: dict[str, Any] = {"conditions": conditions, "labels": {}}
    for name in options.labels:
        results["labels"][name] = measured(options, start, name)
        write_json(HERE / "joint.json", results)
        write_text(HERE / "joint.md", to_markdown(results))


if __name__ == "__main__":
    main()
