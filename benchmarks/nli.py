"""What labels buy before a calibrator, and a calibrator after labels: the table of docs/finetune.md.

    python benchmarks/nli.py --data_dir DATA --work FOLDER

The start is the first three blocks of the embedded MiniLM as a BERT of its own. It is fine-tuned by the command that
users have: on NLI pairs as the paper does (all there are, and those of SNLI alone), by in-batch negatives on the pairs
that are entailed, and on docstrings, whose summary line must find the paragraph that follows it. Pairs that hold a
sentence of any scored task are left out by key, and counted. Then:

    tuning   everything that is chosen is chosen here: which closed form stands beside the flow
    sts7     reported once, with paired bootstrap intervals
    docstrings   hit@1 on pairs of which neither side was trained on

A run that is interrupted goes on where it stopped. Writes nli.json and nli.md beside this file.
"""

import argparse
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from material import mixture
from sklearn.base import clone

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.calibrators import AllButTheTop, Center, FlowCalibrator, Whitening
from bertflow.data.docstrings import docstring_corpus, docstring_pairs
from bertflow.data.pairs import Pairs, load_pairs, unique_sentences
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.abstract import AbstractEncoder, Float32, SentenceEncoder
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.folders import RECORD_FILE
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.evaluating import evaluate_retrieval, evaluate_sts
from bertflow.evaluation.report import Report
from bertflow.files import to_json, write_json, write_text
from bertflow.text_keys import digest, hash_texts, seen_share, text_key

HERE = Path(__file__).parent
logger = logging.getLogger("nli")
BLOCKS = 3
CLOSED_FORMS: Mapping[str, AbstractCalibrator] = {
    "center": Center(),
    "abtt(3)": AllButTheTop(3),
    "whitening": Whitening(),
    "whitening(256)": Whitening(256),
    "whitening(128)": Whitening(128),
    "whitening(64)": Whitening(64),
}
CONTRAST = ("--finetune.objective=in-batch-negatives", "--finetune.learning_rate=5e-5")
NLI_RUNS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "all": (("cad", "conjnli", "snli"), ()),
    "snli": (("snli",), ()),
    "entailed": (("cad", "snli"), ("--data.only=entailment", *CONTRAST)),
}
"""Stages of supervision by name: whose pairs, and what is not as in the paper. Entailed pairs are not those of ConjNLI:
a sentence with a conjunct left out is not a paraphrase."""
SETTINGS = ("inductive", "transductive")
"""Fitted on a mixture of text that holds no scored sentence; on the scored sentences without their scores."""


def write_start(folder: Path) -> Path:
    """The first blocks of the embedded encoder as a plain model folder."""
    if not folder.exists():
        TransformerEncoder(embedded_encoder(), f"mean({BLOCKS})", max_length=128).save(folder)
        (folder / RECORD_FILE).unlink()  # a BERT of three blocks, which need not say that it had six
    return folder


def finetuned(run: Path, start: Path, options: Sequence[str]) -> dict[str, Any]:
    """Fine-tune by the command, unless that was done; what ``run.json`` says."""
    command = [sys.executable, "-m", "bertflow", "finetune", f"--output={run}", "--resume=auto"]
    given = [f"--encoder.model={start}", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", *options]
    if not (run / "encoder").is_dir():
        subprocess.run([*command, *given], check=True)
    facts: dict[str, Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))
    return {name: facts[name] for name in ("fit", "pairs", "resumed")}


def tune_on_nli(options: argparse.Namespace, start: Path, name: str) -> dict[str, Any]:
    """A row of ``NLI_RUNS``, on a sample of its pairs."""
    sources, given = NLI_RUNS[name]
    files = [file for source in sources for file in sorted((options.data_dir / "nli").glob(f"{source}_*.tsv.gz"))]
    pairs = load_pairs(files, "classes")
    scored = unique_sentences(load_sts(task, options.data_dir / "sts") for task in SUITES["sts7"])
    facts = finetuned(
        options.work / name,
        start,
        [
            f"--config={HERE.parent / 'configs' / 'paper-nli.yaml'}",
            f"--data.pairs=[{','.join(map(str, files))}]",
            "--data.leave_out=sts7,tuning",
            f"--data.data_dir={options.data_dir / 'sts'}",
            f"--data.max_pairs={options.nli_pairs}",
            f"--trainer.precision={options.precision}",
            *given,
        ],
    )
    would_be_seen = seen_share(scored, hash_texts((*pairs.first, *pairs.second)))
    return facts | {"all pairs": len(pairs), "sts7 sentences in all pairs": round(would_be_seen, 4)}


def write_docstrings(folder: Path, n_sentences: int, n_scored: int = 2_500) -> tuple[Path, list[str], Pairs]:
    """Pairs to train on as a file, sentences to fit on, and pairs to score, of which nothing stands in the others."""
    sentences, scored = docstring_corpus(n_scored, n_sentences)
    shown = {text_key(text) for text in (*scored.first, *scored.second)}
    every = docstring_pairs()
    kept = [
        pair
        for pair in zip(every.first, every.second, strict=True)
        if not any(text_key(text) in shown for text in pair)
    ]
    # Labels are known by the name of their file, and the scored pairs, which are others, are called "docstrings".
    path = folder / "docstring_training_pairs.tsv"
    path.write_text("query\ttext\n" + "".join("\t".join(pair) + "\n" for pair in kept), encoding="utf-8")
    return path, sentences, scored


def tune_on_docstrings(options: argparse.Namespace, start: Path, pairs: Path) -> dict[str, Any]:
    """In-batch negatives."""
    return finetuned(
        options.work / "docstrings",
        start,
        [
            *CONTRAST,
            "--finetune.two_sided=true",
            "--finetune.held_out=0",
            f"--data.pairs={pairs}",
            f"--data.max_pairs={options.docstring_pairs}",
            f"--trainer.precision={options.precision}",
        ],
    )


class Remembering(AbstractEncoder):
    """An encoder as it is scored (128 tokens, on the CPU) that encodes each sentence once, also across runs.

    Args:
        folder: The model.
        cache: Where embeddings are kept; named for what decides them.
        pooling: How its tokens are pooled.
    """

    def __init__(self, folder: Path, cache: Path, pooling: str = "mean") -> None:
        self.encoder = TransformerEncoder(folder, pooling, max_length=128, device="cpu")
        self.dim = self.encoder.dim
        self._path = cache / f"{digest(hash_texts([to_json(self.describe())]))[:16]}.npz"
        self._rows: dict[str, int] = {}
        self._x = np.empty((0, self.dim), np.float32)
        if self._path.exists():
            with np.load(self._path) as kept:
                texts = kept["text"].tobytes().decode().split("\0")
                self._x, self._rows = kept["x"], {text: row for row, text in enumerate(texts)}

    def _encode(self, sentences: list[str], *_: Any) -> Float32:
        if new := [text for text in dict.fromkeys(sentences) if text not in self._rows]:
            logger.info("encoding %d sentences", len(new))
            self._x = np.concatenate([self._x, self.encoder.encode(new)])
            self._rows |= {text: row for row, text in enumerate(new, start=len(self._rows))}
            np.savez(self._path, x=self._x, text=np.frombuffer("\0".join(self._rows).encode(), np.uint8))
        return self._x[[self._rows[text] for text in sentences]]

    def describe(self) -> dict[str, Any]:
        """The encoder's."""
        return self.encoder.describe()

    def fitted_hashes(self) -> Any:
        """The encoder's."""
        return self.encoder.fitted_hashes()


def fitted(encoder: Remembering, text: list[str], flow: bool) -> dict[str, SentenceEncoder]:
    """The encoder as it comes, and by every calibrator fitted on ``text``."""
    systems: dict[str, SentenceEncoder] = {"raw": encoder}
    calibrators = {**CLOSED_FORMS, **({"flow": FlowCalibrator()} if flow else {})}
    for name, calibrator in calibrators.items():
        logger.info("fitting %s", name)
        systems[name] = CalibratedEncoder(encoder, clone(calibrator).fit_sentences(encoder, text))
    return systems


def named(systems: Mapping[str, SentenceEncoder], stage: str) -> dict[str, SentenceEncoder]:
    """The same under names that say what the encoder went through."""
    return {f"{stage} {name}": system for name, system in systems.items()}


def scored_on_sts(options: argparse.Namespace, stages: Mapping[str, Remembering], setting: str) -> dict[str, Any]:
    """Choose a closed form on ``tuning``, and report it on ``sts7`` beside raw, whitening and the flow."""
    sts = options.data_dir / "sts"
    inductive = setting == "inductive"
    mixed = mixture(options.data_dir, options.mixture) if inductive else []
    texts = {
        task: mixed or unique_sentences(load_sts(name, sts) for name in names)
        for task, names in {"tuning": ("tuning",), "sts7": SUITES["sts7"]}.items()
    }
    # One fit serves both where neither saw the scored text; else the flow is fitted where it is reported.
    on_tuning = {stage: fitted(encoder, texts["tuning"], inductive) for stage, encoder in stages.items()}
    tuning = scored(on_tuning, "tuning", options)
    values = figures(tuning, "tuning")
    forms = ("raw", *CLOSED_FORMS)
    chosen = {stage: max(forms, key=lambda form: values[f"{stage} {form}"]["value"]) for stage in stages}
    every = on_tuning if inductive else {stage: fitted(one, texts["sts7"], True) for stage, one in stages.items()}
    kept = {
        stage: {name: systems[name] for name in dict.fromkeys(("raw", "whitening", chosen[stage], "flow"))}
        for stage, systems in every.items()
    }
    report = scored(kept, "sts7", options)
    gains = [(f"{stage} raw", "start raw") for stage in NLI_RUNS]
    wanted = list(gains)
    for stage in stages:
        wanted += [(f"{stage} flow", f"{stage} {form}") for form in dict.fromkeys(("whitening", chosen[stage], "raw"))]
    return {
        "setting": setting,
        "chosen on tuning": chosen,
        "tuning": values,
        "sts7": figures(report, "sts7"),
        "differences": [
            *(between(tuning, "tuning", *pair) for pair in gains),
            *(between(report, "sts7", *pair) for pair in wanted),
        ],
    }


def scored(stages: Mapping[str, Mapping[str, SentenceEncoder]], tasks: str, options: argparse.Namespace) -> Report:
    """A report on all systems of all stages."""
    systems = {name: one for stage, each in stages.items() for name, one in named(each, stage).items()}
    report = evaluate_sts(systems, tasks, options.data_dir / "sts", resamples=options.resamples)
    logger.info("%s", report.to_markdown())
    return report


def figures(report: Report, task: str) -> dict[str, Any]:
    """Each system's main figure on a task or suite, x 100, with what it saw."""
    aggregation = "mean" if task == "tuning" else "all"
    return {
        row.system: {
            "value": percent(row.value),
            "ci": [percent(row.ci_low), percent(row.ci_high)],
            "seen": None if row.seen is None else round(row.seen, 4),
        }
        for row in report.rows
        if (row.task, row.aggregation, row.metric, row.subset) == (task, aggregation, report.metric, "")
    }


def between(report: Report, task: str, first: str, second: str) -> dict[str, Any]:
    """The difference of two systems on a task or suite, x 100, with its paired interval."""
    aggregation = "mean" if task == "tuning" else "all"
    row = next(
        row.seen_from(first)
        for row in report.differences
        if (row.task, row.aggregation, row.metric) == (task, aggregation, report.metric)
        and {row.first, row.second} == {first, second}
    )
    ends = [percent(row.ci_low), percent(row.ci_high)]
    return {"task": task, "first": first, "second": second, "difference": percent(row.difference), "ci": ends}


def scored_on_docstrings(
    options: argparse.Namespace, stages: Mapping[str, Remembering], text: list[str], pairs: Pairs
) -> dict[str, Any]:
    """hit@1 of each encoder, raw and whitened."""
    systems: dict[str, SentenceEncoder] = {}
    for stage, encoder in stages.items():
        whitened = CalibratedEncoder(encoder, Whitening().fit_sentences(encoder, text))
        systems |= named({"raw": encoder, "whitening": whitened}, stage)
    report = evaluate_retrieval(systems, pairs, resamples=options.resamples)
    logger.info("%s", report.to_markdown())
    rows = [row for row in report.rows if row.metric.endswith("hit@1")]
    found = {
        row.system: {
            "value": percent(row.value),
            "ci": [percent(row.ci_low), percent(row.ci_high)],
            "seen": row.seen,
        }
        for row in rows
    }
    gains = [
        {"first": row.first, "second": row.second, "difference": percent(row.difference),
         "ci": [percent(row.ci_low), percent(row.ci_high)]}
        for row in (one.seen_from(one.first) for one in report.differences if one.metric.endswith("hit@1"))
    ]  # fmt: skip
    return {"pairs": len(pairs), "hit@1": found, "differences": gains}


def percent(value: float | None) -> float | None:
    """A figure or an end of its interval, x 100."""
    return None if value is None else round(100 * value, 2)


def to_markdown(results: Mapping[str, Any]) -> str:
    """The tables."""
    lines = ["| fitted | system | tuning | sts7 | 95 % | seen |", "|---|---|---:|---:|---|---:|"]
    for found in results["sts"]:
        for system, row in found["sts7"].items():
            low, high = row["ci"]
            tuning = f"{found['tuning'][system]['value']:.2f}" if system in found["tuning"] else "-"
            lines.append(
                f"| {found['setting']} | {system} | {tuning} | {row['value']:.2f} "
                f"| {low:.2f} to {high:.2f} | {row['seen']:.2f} |"
            )
    lines += ["", "| fitted | difference | on | | 95 % |", "|---|---|---|---:|---|"]
    for found in results["sts"]:
        for row in found["differences"]:
            low, high = row["ci"]
            lines.append(
                f"| {found['setting']} | {row['first']} - {row['second']} | {row['task']} | {row['difference']:+.2f} "
                f"| {low:+.2f} to {high:+.2f} |"
            )
    lines += ["", "| system | hit@1, docstrings |", "|---|---:|"]
    lines += [f"| {system} | {row['value']:.2f} |" for system, row in results["docstrings"]["hit@1"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fine-tune, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text and nli")
    parser.add_argument("--work", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--nli_pairs", type=int, default=20_000, help="a random sample of at most so many")
    parser.add_argument("--docstring_pairs", type=int, default=4_800, help="likewise")
    parser.add_argument("--precision", default="32-true", help="of the fine-tuning")
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=SETTINGS, help="of the STS tasks")
    parser.add_argument("--mixture", type=int, default=6_000, help="sentences of each of four kinds of text to fit on")
    parser.add_argument("--docstring_text", type=int, default=12_000, help="sentences of docstrings to fit on")
    parser.add_argument("--resamples", type=int, default=1_000)
    parser.add_argument("--only_train", action="store_true", help="stop before anything is scored")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    options.work.mkdir(parents=True, exist_ok=True)
    start = write_start(options.work / "start")
    path, text, scored_pairs = write_docstrings(options.work, options.docstring_text)
    runs = {name: tune_on_nli(options, start, name) for name in NLI_RUNS}
    runs["docstrings"] = tune_on_docstrings(options, start, path)
    if options.only_train:
        return
    plain = Remembering(start, options.work)
    stages = {"start": plain}
    stages |= {name: Remembering(options.work / name / "encoder", options.work) for name in NLI_RUNS}
    answers = {"start": plain, "tuned": Remembering(options.work / "docstrings" / "encoder", options.work)}
    conditions = {name: getattr(options, name) for name in ("precision", "mixture", "docstring_text", "resamples")}
    results: dict[str, Any] = {"conditions": conditions, "runs": runs, "sts": []}
    results["docstrings"] = scored_on_docstrings(options, answers, text, scored_pairs)
    for setting in options.settings:
        results["sts"].append(scored_on_sts(options, stages, setting))
        write_json(HERE / "nli.json", results)
    ablation = (HERE / "nli_ablation.md").read_text(encoding="utf-8")
    write_text(HERE / "nli.md", f"{ablation}\n{to_markdown(results)}")


if __name__ == "__main__":
    main()
