"""Tables 2 and 3 of Li et al. 2020 (arXiv:2011.05864), line by line, on weights of your own.

    python benchmarks/paper_tables.py --data_dir DATA/sts --output tables --base bert-base-uncased \
        --large bert-large-uncased --nli SNLI.jsonl MNLI.jsonl --base_nli FOLDER --large_nli FOLDER

A line of the paper is an encoder, a pooling, and the text that a flow was fitted on:

    avg           the mean of the last layer
    last2avg      what the released code calls that: the mean of block 1 and the last
    flow (NLI)    fitted on NLI text, 0.15 of a pass at a learning rate of 2e-5 (preset paper-tf-nli)
    flow (target) a flow a task, fitted on all of its sentences, no labels: train, dev and test of STS-B and SICK;
                  the test pairs of STS12-16, which the released code reads three times in a pass (preset paper-tf)

Table 3 is the same on encoders fine-tuned on NLI labels (``bertflow finetune --config configs/paper-nli.yaml``).
Lines whose encoder or text is not given are left out. The encoder stays in the loop, with its dropout on, as released,
so a BERT-base on a CPU takes a day: a run that is done is not made again, so the script can be stopped and repeated.
Spearman x 100, weighted mean over the sub-sets of STS12-16, max length 64. Writes paper_tables.{json,md} into --output.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.calibrated import CalibratedEncoder
from bertflow.data.fitting_text import TextOptions
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.evaluating import evaluate_sts
from bertflow.evaluation.literature import published
from bertflow.runs.training import train
from bertflow.training.recipe import PAPER_TF

COLUMNS = SUITES["sts7"]
AGGREGATION = "wmean"
TARGETS: Mapping[str, tuple[str, int]] = {
    **{task: (task, 3) for task in ("sts12", "sts13", "sts14", "sts15", "sts16")},
    "stsb": ("stsb-train,stsb-dev,stsb", 1),
    "sickr": ("sickr-all", 1),
}
"""The text of each task's own flow, and how often a pass reads it."""


@dataclass(frozen=True)
class Kind:
    """A kind of line: the end of its name in tables 2 and 3, the pooling, and the text of its flow."""

    table2: str
    table3: str
    pooling: str
    flow: str | None = None


KINDS = (
    Kind(" avg", "-NLI", "mean"),
    Kind(" last2avg (in fact first-last)", "-NLI-last2avg", "first-last-avg"),
    Kind("-flow (NLI)", "-NLI-flow (NLI)", "first-last-avg", "nli"),
    Kind("-flow (target)", "-NLI-flow (target)", "first-last-avg", "target"),
)


@dataclass(frozen=True)
class Line:
    """One line: what the paper calls it, its scores here and there; Spearman x 100, by task."""

    name: str
    encoder: str
    ours: dict[str, float]
    theirs: dict[str, float]


def lines(options: argparse.Namespace) -> Iterable[Line]:
    """All lines that can be made of what is given."""
    figures = {line.model: line.scores for line in published() if line.aggregation == AGGREGATION}
    for size in ("base", "large"):
        for table, folder in ((2, getattr(options, size)), (3, getattr(options, f"{size}_nli"))):
            for kind in KINDS if folder else ():
                if kind.flow == "nli" and not options.nli:
                    continue
                name = f"BERT-{size}{kind.table2 if table == 2 else kind.table3}"
                yield Line(name, folder, scores(name, folder, kind, options), dict(figures[name]))


def scores(name: str, folder: str, kind: Kind, options: argparse.Namespace) -> dict[str, float]:
    """A line's score on each task."""
    if kind.flow is None:
        raw = TransformerEncoder(folder, pooling=kind.pooling, max_length=PAPER_TF.max_length)
        return scored(raw, options.tasks, options)
    where = options.output / "runs" / name.replace(" ", "-")
    if kind.flow == "nli":
        text = TextOptions(list(options.nli), max_sentences=options.max_sentences)
        return scored(fitted(where, folder, text, {"preset": "paper-tf-nli"}, options), options.tasks, options)
    found = {}
    for task in options.tasks:
        tasks, copies = TARGETS[task]
        text = TextOptions(tasks=tasks, data_dir=str(options.data_dir), max_sentences=options.max_sentences)
        system = fitted(where / task, folder, text, {"preset": "paper-tf", "epochs": copies}, options)
        found |= scored(system, [task], options)
    return found


def fitted(
    where: Path, folder: str, text: TextOptions, flow: Mapping[str, Any], options: argparse.Namespace
) -> SentenceEncoder:
    """The encoder with its own flow, from a run that is made where it is not done yet."""
    train(folder, text, flow, output=where, resume="auto", seed=options.seed, report=False)
    return CalibratedEncoder.load(where)


def scored(system: SentenceEncoder, tasks: Sequence[str], options: argparse.Namespace) -> dict[str, float]:
    """Spearman x 100 of each task."""
    report = evaluate_sts({"line": system}, list(tasks), options.data_dir, resamples=0)
    has = {row.task: row.aggregation for row in report.rows if row.aggregation == "all"}
    has |= {row.task: AGGREGATION for row in report.rows if row.aggregation == AGGREGATION}
    return {task: 100 * report.value("line", task, has[task]) for task in tasks}


def to_markdown(found: Sequence[Line], max_sentences: int | None) -> str:
    """Ours and theirs, one under the other."""
    head = f"| line | encoder | {' | '.join(COLUMNS)} | Avg |"
    body = []
    for line in found:
        for whose, values in ((Path(line.encoder).name, line.ours), ("the paper", line.theirs)):
            cells = [f"{values[task]:.2f}" if task in values else "-" for task in COLUMNS]
            average = f"{np.mean([*values.values()]):.2f}" if len(values) == len(COLUMNS) else "-"
            body.append(f"| {line.name} | {whose} | {' | '.join(cells)} | {average} |")
    note = f"\nRehearsal: every flow was fitted on {max_sentences} sentences.\n" if max_sentences else ""
    return "\n".join([head, "|---|---|" + "---:|" * (len(COLUMNS) + 1), *body]) + f"\n{note}"


def main() -> None:
    """Make the lines, and write the tables after each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, help="holds STS12 ... STS16, STSB, SICK; or hub")
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs and the tables")
    for size in ("base", "large"):
        parser.add_argument(f"--{size}", help=f"BERT-{size}: hub id or folder (table 2)")
        parser.add_argument(f"--{size}_nli", help="the same, fine-tuned on NLI (table 3)")
    parser.add_argument("--nli", nargs="*", help="files of NLI sentences, for the lines flow (NLI)")
    parser.add_argument("--tasks", nargs="*", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--max_sentences", type=int, help="fit every flow on a random sample, for a rehearsal")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found: list[Line] = []
    options.output.mkdir(parents=True, exist_ok=True)
    for line in lines(options):
        found.append(line)
        facts = {"aggregation": AGGREGATION, "seed": options.seed, "max_sentences": options.max_sentences}
        (options.output / "paper_tables.json").write_text(
            json.dumps({**facts, "lines": [asdict(one) for one in found]}, indent=1) + "\n"
        )
        (options.output / "paper_tables.md").write_text(to_markdown(found, options.max_sentences))
        print(to_markdown([line], options.max_sentences), flush=True)


if __name__ == "__main__":
    main()
