"""The lines of tables 2 and 3 of Li et al. 2020 (arXiv:2011.05864): what each of them is, and how one is made.

A line of the paper is an encoder, a pooling, and the text that a flow was fitted on:

    avg             the mean of the last layer
    last2avg        what the released code calls that: the mean of block 1 and the last
    flow (NLI)      fitted on NLI text, 0.15 of a pass at a learning rate of 2e-5 (preset paper-tf-nli)
    flow (target)   a flow a task, fitted on all of its sentences, no labels: train, dev and test of STS-B and SICK; the
                    test pairs of STS12-16, which the released code reads three times in a pass (preset paper-tf)

Table 3 is the same on encoders that were fine-tuned on NLI labels. The encoder stays in the loop, with its dropout on,
as released. A flow is made with several seeds, and each of them is a folder, which holds its runs and, task by task,
how similar it finds the pairs. From these the tables are made, so a line needs no other one, and no encoder later.
A line that was stopped is made again; its trainings go on.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertflow import SentenceEncoder, evaluate_sts, load, train
from bertflow.data.fitting_text import TextOptions
from bertflow.data.sts_tasks import SUITES
from bertflow.errors import UsageError
from bertflow.opening import load_transformer
from bertflow.records import read_record, write_record

PAPER_TASKS = SUITES["sts7"]
MAX_LENGTH = 64
"""Tokens of a sentence."""
TARGETS: Mapping[str, tuple[str, int]] = {
    **{task: (task, 3) for task in ("sts12", "sts13", "sts14", "sts15", "sts16")},
    "stsb": ("stsb-train,stsb-dev,stsb", 1),
    "sickr": ("sickr-all", 1),
}
"""The text of each task's own flow, and how often a pass reads it."""
SIZES: Mapping[tuple[int, int], str] = {(12, 768): "base", (24, 1024): "large"}
"""Blocks and width -> the BERT whose figures were published."""


KINDS = (
    ("avg", "mean", " avg", "-NLI", ""),
    ("last2avg", "first-last-avg", " last2avg (in fact first-last)", "-NLI-last2avg", ""),
    ("flow (NLI)", "first-last-avg", "-flow (NLI)", "-NLI-flow (NLI)", "nli"),
    ("flow (target)", "first-last-avg", "-flow (target)", "-NLI-flow (target)", "target"),
)
"""Kinds of lines: title, pooling, ends of the published name in tables 2 and 3, text of the flow if there is one."""


@dataclass(frozen=True)
class PaperLine:
    """A line of the tables; of a flow, with one seed.

    Attributes:
        number: Number for ``--line``, from 1.
        table: 2 or 3.
        model: The encoder.
        published: The published line beside it.
        title: What follows the name of the encoder.
        pooling: A spelling.
        flow: The text of its flow, nli or target; empty without one.
        seed: Random seed of the flow; None without one.
    """

    number: int
    table: int
    model: str
    published: str
    title: str
    pooling: str
    flow: str
    seed: int | None

    @property
    def name(self) -> str:
        """What tables call it, with all its seeds."""
        return f"{Path(self.model).name} {self.title}"

    @property
    def system(self) -> str:
        """What it is called with its seed."""
        return self.name if self.seed is None else f"{self.name}, seed {self.seed}"


def paper_lines(models: Sequence[str], nli_models: Sequence[str], seeds: int, with_nli: bool) -> tuple[PaperLine, ...]:
    """All lines, numbered: those of table 2, then those of table 3.

    Args:
        models: Encoders as pretrained.
        nli_models: Encoders that were fine-tuned on NLI labels.
        seeds: Number of seeds of each flow.
        with_nli: Whether there is NLI text.

    Raises:
        UsageError: If two encoders have one name, or one is not a transformer.
    """
    names = [Path(model).name for model in (*models, *nli_models)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"Two encoders are called {twice!r}. Rename one of their folders, or leave one out.")
    found: list[PaperLine] = []
    for table, model in [*((2, model) for model in models), *((3, model) for model in nli_models)]:
        size = SIZES.get(shape_of(model), "base")
        for title, pooling, *ends, flow in KINDS:
            for seed in range(seeds) if flow else (None,):
                if with_nli or flow != "nli":
                    published = f"BERT-{size}{ends[table - 2]}"
                    found.append(PaperLine(len(found) + 1, table, model, published, title, pooling, flow, seed))
    return tuple(found)


def shape_of(model: str) -> tuple[int, int]:
    """Blocks and width of a transformer."""
    folder = load_transformer(model, device="cpu").spec.folder
    return folder.blocks, int(folder.config.hidden_size)


@dataclass(frozen=True)
class LineScores:
    """What a line has found.

    Attributes:
        options: How it was made.
        encoder: The system's ``describe()``.
        pairs: Task -> the fingerprint of its pairs.
        similarities: Task -> the cosine of each pair.
    """

    options: dict[str, Any]
    encoder: dict[str, Any] = field(default_factory=dict)
    pairs: dict[str, str] = field(default_factory=dict)
    similarities: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class LineMaker:
    """How all lines are made.

    Attributes:
        output: Holds a folder for each line.
        data_dir: The STS data.
        tasks: What is scored.
        nli: Files of NLI text.
        max_sentences: Size of the sample that each flow is fitted on; None for all.
        device: cpu, cuda, ...
        progress: Whether to show a progress bar.
    """

    output: Path
    data_dir: str
    tasks: tuple[str, ...]
    nli: tuple[str, ...]
    max_sentences: int | None
    device: str
    progress: bool | None

    def folder(self, line: PaperLine) -> Path:
        """Where a line with its seed is kept."""
        return self.output / "lines" / re.sub(r"[^\w.-]+", "-", line.system).strip("-")

    def found(self, line: PaperLine) -> LineScores:
        """What there is of a line.

        Raises:
            UsageError: If it was made with other options.
            DataError: If its record is damaged.
        """
        flow = {"max_sentences": self.max_sentences, "seed": line.seed} if line.flow else {}
        text = {"nli": list(self.nli)} if line.flow == "nli" else {}
        options = {"model": line.model, "pooling": line.pooling, "flow": line.flow, **flow, **text}
        path = self.folder(line) / "scores.json"
        if not path.is_file():
            return LineScores(options)
        do = "Delete it: the line is then scored again."
        scores = read_record(path, LineScores, "record of a line of the tables", do)
        for name in options:
            if scores.options.get(name) != options[name]:
                raise UsageError(
                    f"{path.parent} was made with {name}={scores.options.get(name)}, but now it is {options[name]}. "
                    "Give the same options, or choose another --output."
                )
        return scores

    def missing(self, line: PaperLine) -> list[str]:
        """The tasks that a line has not scored yet."""
        known = self.found(line).similarities
        return [task for task in self.tasks if task not in known]

    def make(self, line: PaperLine) -> None:
        """Make what is missing of a line, and write it; trainings go on where they were stopped.

        Raises:
            KeyboardInterrupt: If a training was stopped.
            DataError: For text or embeddings that cannot be used.
        """
        scores, tasks = self.found(line), self.missing(line)
        for some in [[task] for task in tasks] if line.flow == "target" else [tasks]:
            system = self._system(line, some[0])
            report = evaluate_sts({line.system: system}, some, self.data_dir, resamples=0, progress=self.progress)
            scores.encoder.update(system.describe())
            for task in report.tasks:
                scores.pairs[task.pairs.task] = task.pairs.digest()
                scores.similarities[task.pairs.task] = task.similarities[0].tolist()
        write_record(self.folder(line) / "scores.json", asdict(scores))

    def _system(self, line: PaperLine, task: str) -> SentenceEncoder:
        """The encoder of a line, with its flow, whose run is continued, or begun where there is none."""
        encoder = load(line.model, pooling=line.pooling, max_length=MAX_LENGTH, device=self.device, prompt="")
        if line.seed is None:
            return encoder
        flow: Mapping[str, Any] = {"preset": "paper-tf-nli"}
        text, name = TextOptions([*self.nli], max_sentences=self.max_sentences), "flow"
        if line.flow == "target":
            tasks, copies = TARGETS[task]
            text = TextOptions(tasks=tasks, data_dir=self.data_dir, max_sentences=self.max_sentences)
            flow, name = {"preset": "paper-tf", "epochs": copies}, f"flow-{task}"
        how = {"resume": "auto", "seed": line.seed, "save_encoder": False, "report": False}
        trainer = {"accelerator": "cpu"} if self.device == "cpu" else None
        run = train(encoder, text, flow, trainer, self.folder(line) / name, **how)  # type: ignore[arg-type]
        if run is None:
            raise UsageError("A line of the tables is made by one process. Start several lines at once instead.")
        if run.status == "interrupted":
            raise KeyboardInterrupt
        return run.encoder
