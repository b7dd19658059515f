"""What labels buy before a calibrator, and a calibrator after labels: the table of docs/finetune.md.

    python benchmarks/nli.py --data_dir DATA --work FOLDER

The start is the first three blocks of the built-in MiniLM as a BERT of its own. It is fine-tuned by the command that
users have: on NLI pairs as the paper does (all there are, and those of SNLI alone), and by in-batch negatives on the
pairs that are entailed. Pairs that hold a sentence of any scored task are left out by key. Then:

    tuning   everything that is chosen is chosen here: which closed form stands beside the flow
    sts7     reported once, with paired bootstrap intervals

inductive: fitted on a mixture of text that holds no scored sentence; transductive: on the scored sentences without
their scores. A stage that was trained is not trained again. Writes nli.json beside this file.
"""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from material import mixture
from sklearn.base import clone
from study import Case, Row, Study, table, with_interval

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.closed_forms import AllButTheTop, Center, Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.data.pairs import unique_sentences
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.folders import RECORD_FILE
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.evaluating import evaluate_sts
from bertflow.evaluation.report import Report
from bertflow.evaluation.systems import SharedPass

BLOCKS = 3
CLOSED_FORMS: Mapping[str, AbstractCalibrator] = {
    "center": Center(),
    "abtt(3)": AllButTheTop(3),
    "whitening": Whitening(),
    **{f"whitening({k})": Whitening(k) for k in (256, 128, 64)},
}
CONTRAST = ("--data.only=entailment", "--finetune.objective=in-batch-negatives", "--finetune.learning_rate=5e-5")
STAGES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "start": ((), ()),
    "all": (("cad", "conjnli", "snli"), ()),
    "snli": (("snli",), ()),
    "entailed": (("cad", "snli"), CONTRAST),
}
"""By name: whose pairs, and what is not as in the paper. Entailed pairs are not those of ConjNLI: a sentence with a
conjunct left out is not a paraphrase."""
TASKS: Mapping[str, Sequence[str]] = {"tuning": ("tuning",), "sts7": SUITES["sts7"]}


def write_start(folder: Path) -> Path:
    """The first blocks of the built-in encoder as a plain model folder."""
    if not folder.exists():
        TransformerEncoder(embedded_encoder(), f"mean({BLOCKS})", max_length=128).save(folder)
        (folder / RECORD_FILE).unlink()  # a BERT of three blocks, which need not say that it had six
    return folder


def finetuned(options: Namespace, stage: str) -> Path:
    """The model of a stage, trained by the command unless that was done."""
    start, run = write_start(options.work / "start"), options.work / stage
    sources, given = STAGES[stage]
    if not sources:
        return start
    files = [str(file) for source in sources for file in sorted((options.data_dir / "nli").glob(f"{source}_*.tsv.gz"))]
    command = [sys.executable, "-m", "bertflow", "finetune", f"--output={run}", "--resume=auto"]
    command += [f"--config={Path(__file__).parents[1] / 'configs' / 'paper-nli.yaml'}", f"--encoder.model={start}"]
    command += [f"--data.pairs=[{','.join(files)}]", "--data.leave_out=sts7,tuning", *given]
    command += [f"--data.data_dir={options.data_dir / 'sts'}", f"--data.max_pairs={options.nli_pairs}"]
    command += ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    if not (run / "encoder").is_dir():
        subprocess.run(command, check=True)
    return run / "encoder"


@cache
def opened(folder: Path, pooling: str = "mean") -> SentenceEncoder:
    """A model as it is scored, which encodes each sentence once."""
    return SharedPass(TransformerEncoder(folder, pooling, max_length=128, device="cpu")).pooled(pooling)


def fitted(encoder: SentenceEncoder, text: list[str], flow: bool) -> dict[str, SentenceEncoder]:
    """The encoder as it comes, and by every calibrator fitted on ``text``."""
    calibrators = {**CLOSED_FORMS, **({"flow": FlowCalibrator()} if flow else {})}
    by = {name: clone(one).fit_sentences(encoder, text) for name, one in calibrators.items()}
    return {"raw": encoder, **{name: CalibratedEncoder(encoder, one) for name, one in by.items()}}


def figures(report: Report, task: str) -> dict[str, float]:
    """Each system's main figure on a task or suite, x 100."""
    at = (task, "mean" if task == "tuning" else "all", report.metric, "")
    rows = [row for row in report.rows if (row.task, row.aggregation, row.metric, row.subset) == at]
    return {row.system: round(100 * row.value, 2) for row in rows}


def between(report: Report, task: str, first: str, second: str) -> list[float]:
    """The difference of two systems on a task or suite, x 100, with its paired interval."""
    at = (task, "mean" if task == "tuning" else "all", report.metric)
    rows = (row for row in report.compared(first, second) if (row.task, row.aggregation, row.metric) == at)
    row = next(rows)
    return [round(100 * (end or 0.0), 2) for end in (row.difference, row.ci_low, row.ci_high)]


def measured(options: Namespace, setting: str, stage: str) -> dict[str, Any]:
    """Choose a closed form on ``tuning``, and report it on ``sts7`` beside raw, whitening and the flow."""
    sts, inductive = options.data_dir / "sts", setting == "inductive"
    encoder, start = opened(finetuned(options, stage)), opened(write_start(options.work / "start"))
    mixed = mixture(options.data_dir, options.mixture) if inductive else []
    texts = {task: mixed or unique_sentences(load_sts(name, sts) for name in names) for task, names in TASKS.items()}

    def scored(systems: Mapping[str, SentenceEncoder], task: str) -> Report:
        return evaluate_sts({"start raw": start, **systems}, task, sts, resamples=options.resamples)

    # One fit serves both where neither saw the scored text; else the flow is fitted where it is reported.
    on_tuning = fitted(encoder, texts["tuning"], inductive)
    tuning = scored(on_tuning, "tuning")
    values = figures(tuning, "tuning")
    chosen = max(("raw", *CLOSED_FORMS), key=lambda form: values[form])
    every = on_tuning if inductive else fitted(encoder, texts["sts7"], True)
    report = scored({name: every[name] for name in ("raw", "whitening", chosen, "flow")}, "sts7")
    pairs = [("raw", "start raw"), *(("flow", form) for form in dict.fromkeys(("whitening", chosen, "raw")))]
    gaps = {f"{one} - {other}": between(report, "sts7", one, other) for one, other in pairs}
    gap = between(tuning, "tuning", "raw", "start raw")
    found = {"chosen": chosen, "tuning": values, "sts7": figures(report, "sts7")}
    return found | {"differences on tuning": {"raw - start raw": gap}, "differences on sts7": gaps}


def page(rows: Sequence[Row]) -> str:
    """A table a setting."""
    text = "The closed form beside the flow was chosen on `tuning`. Intervals are 95 %, paired.\n\n"
    pairs = ("raw - start raw", "flow - whitening", "flow - closed form")
    for setting in dict.fromkeys(row["setting"] for row in rows):
        lines = []
        for row in (row for row in rows if row["setting"] == setting):
            sts7, chosen = row["sts7"], row["chosen"]
            shown = (row["tuning"]["raw"], sts7["raw"], sts7["whitening"], sts7[chosen], sts7["flow"])
            cells = [f"{value:.2f}" for value in shown]
            cells[3] += f" ({chosen})"
            gaps = (row["differences on sts7"].get(pair.replace("closed form", chosen)) for pair in pairs)
            lines.append((row["stage"], *cells, *(with_interval(*gap, 2) if gap else "-" for gap in gaps)))
        text += table((setting, "tuning, raw", "sts7, raw", "whitening", "closed form", "flow", *pairs), lines)
    return text


def cases(options: Namespace) -> Iterator[Case]:
    """Each stage in both settings."""
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    for setting in options.settings:
        for stage in STAGES:
            yield {"setting": setting, "stage": stage}, partial(measured, options, setting, stage)


STUDY = Study(
    __file__,
    __doc__,
    cases,
    page,
    "sts, text and nli",
    {
        "work": (Path("runs/nli"), "where runs are kept"),
        "nli_pairs": (20_000, "a random sample of at most this many"),
        "settings": (["inductive", "transductive"], "of the STS tasks"),
        "mixture": (6_000, "sentences of each of four kinds of text to fit on"),
        "resamples": (1_000, "of the bootstrap"),
    },
)
if __name__ == "__main__":
    STUDY.main()
