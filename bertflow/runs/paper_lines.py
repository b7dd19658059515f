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
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.data.fitting_text import TextOptions
from bertflow.data.sts_tasks import SUITES
from bertflow.errors import UsageError
from bertflow.opening import load, require_transformer
from bertflow.records import read_record, write_record
from bertflow.runs import ModelOptions
from bertflow.runs.training import train
from bertflow.training.recipe import PAPER_TF

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder

PAPER_TASKS = SUITES["sts7"]
TARGETS: Mapping[str, tuple[str, int]] = {
    **{task: (task, 3) for task in ("sts12", "sts13", "sts14", "sts15", "sts16")},
    "stsb": ("stsb-train,stsb-dev,stsb", 1),
    "sickr": ("sickr-all", 1),
}
"""The text of each task's own flow, and how often a pass reads it."""
SIZES: Mapping[tuple[int, int], str] = {(12, 768): "base", (24, 1024): "large"}
"""Blocks and width -> the BERT whose figures were published."""


@dataclass(frozen=True)
class LineKind:
    """A kind of line.

    Attributes:
        title: What follows the name of the encoder.
        pooling: A spelling.
        table2: The end of its name in table 2.
        table3: The end of its name in table 3.
        flow: The text of its flow, nli or target; empty without one.
    """

    title: str
    pooling: str
    table2: str
    table3: str
    flow: str = ""


RAW_LINES = (
    LineKind("avg", "mean", " avg", "-NLI"),
    LineKind("last2avg", "first-last-avg", " last2avg (in fact first-last)", "-NLI-last2avg"),
)
FLOW_LINES = (
    LineKind("flow (NLI)", "first-last-avg", "-flow (NLI)", "-NLI-flow (NLI)", "nli"),
    LineKind("flow (target)", "first-last-avg", "-flow (target)", "-NLI-flow (target)", "target"),
)


@dataclass(frozen=True)
class PaperLine:
    """A line of the tables; of a flow, with one seed.

    Attributes:
        number: From 1, as ``--line`` takes it.
        table: 2 or 3.
        model: The encoder.
        size: base or large: the BERT whose figures stand beside it.
        kind: A row of ``RAW_LINES`` or ``FLOW_LINES``.
        seed: Of the flow; None without one.
    """

    number: int
    table: int
    model: str
    size: str
    kind: LineKind
    seed: int | None = None

    @property
    def name(self) -> str:
        """What tables call it, with all its seeds."""
        return f"{Path(self.model).name} {self.kind.title}"

    @property
    def system(self) -> str:
        """What it is called with its seed."""
        return self.name if self.seed is None else f"{self.name}, seed {self.seed}"

    @property
    def published(self) -> str:
        """The name of the published line."""
        return f"BERT-{self.size}{self.kind.table2 if self.table == 2 else self.kind.table3}"


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
    for table, given in ((2, models), (3, nli_models)):
        for model in given:
            size = SIZES.get(shape_of(model), "base")
            for kind in (*RAW_LINES, *(kind for kind in FLOW_LINES if with_nli or kind.flow != "nli")):
                for seed in range(seeds) if kind.flow else (None,):
                    found.append(PaperLine(len(found) + 1, table, model, size, kind, seed))
    return tuple(found)


def shape_of(model: str) -> tuple[int, int]:
    """Blocks and width of a transformer."""
    folder = require_transformer(model)
    return folder.blocks, int(folder.config.hidden_size)


@dataclass(frozen=True)
class LineScores:
    """What a line has found so far.

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
class PaperJob:
    """How all lines are made.

    Attributes:
        output: Holds a folder for each line.
        data_dir: The STS data.
        tasks: What is scored.
        nli: Files of NLI text.
        max_sentences: Size of the sample that each flow is fitted on; None for all.
        device: cpu, cuda, ...
        progress: Whether to show a progress bar.
        say: Takes a line about what is done now.
    """

    output: Path
    data_dir: str
    tasks: tuple[str, ...]
    nli: tuple[str, ...]
    max_sentences: int | None
    device: str
    progress: bool | None
    say: Callable[[str], None]

    def folder(self, line: PaperLine) -> Path:
        """Where a line with its seed is kept."""
        return self.output / "lines" / re.sub(r"[^\w.-]+", "-", line.system).strip("-")

    def found(self, line: PaperLine) -> LineScores:
        """What there is of a line.

        Raises:
            UsageError: If it was made with other options.
            DataError: If its record is damaged.
        """
        flow = {"max_sentences": self.max_sentences, "seed": line.seed} if line.kind.flow else {}
        text = {"nli": list(self.nli)} if line.kind.flow == "nli" else {}
        options = {"model": line.model, "pooling": line.kind.pooling, "flow": line.kind.flow, **flow, **text}
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
        """Make what is missing of a line; what is done is kept whenever this is stopped.

        Raises:
            KeyboardInterrupt: If a training was stopped; it goes on from there the next time.
            DataError: For text or embeddings that cannot be used.
        """
        from bertflow.evaluation.evaluating import evaluate_sts

        scores, tasks = self.found(line), self.missing(line)
        for some in [[task] for task in tasks] if line.kind.flow == "target" else [tasks] if tasks else []:
            system = self._system(line, some[0])
            report = evaluate_sts({line.system: system}, some, self.data_dir, resamples=0, progress=self.progress)
            scores = replace(
                scores,
                encoder=system.describe(),
                pairs=scores.pairs | {task.pairs.task: task.pairs.digest() for task in report.tasks},
                similarities=scores.similarities
                | {task.pairs.task: task.similarities[0].tolist() for task in report.tasks},
            )
            write_record(self.folder(line) / "scores.json", asdict(scores))

    def _system(self, line: PaperLine, task: str) -> "SentenceEncoder":
        """The encoder of a line, with its flow, whose run is continued, or begun where there is none."""
        how = {"pooling": line.kind.pooling, "max_length": PAPER_TF.max_length, "device": self.device, "prompt": ""}
        if line.seed is None:
            return load(line.model, **how)  # type: ignore[arg-type]  # all of them are LoadOptions
        text, flow, name = self._fit(line, task)
        trainer = {"accelerator": "cpu"} if self.device == "cpu" else None
        run = train(
            ModelOptions(line.model, **how),  # type: ignore[arg-type]
            text,
            flow,
            trainer,
            self.folder(line) / name,
            resume="auto",
            seed=line.seed,
            save_encoder=False,
            report=False,
        )
        if run is None:
            raise UsageError("A line of the tables is made by one process. Start several lines at once instead.")
        if run.status == "interrupted":
            raise KeyboardInterrupt
        return run.encoder

    def _fit(self, line: PaperLine, task: str) -> tuple[TextOptions, Mapping[str, Any], str]:
        """The text of a flow, its recipe, and the name of its run."""
        if line.kind.flow == "nli":
            return TextOptions([*self.nli], max_sentences=self.max_sentences), {"preset": "paper-tf-nli"}, "flow"
        tasks, copies = TARGETS[task]
        text = TextOptions(tasks=tasks, data_dir=self.data_dir, max_sentences=self.max_sentences)
        return text, {"preset": "paper-tf", "epochs": copies}, f"flow-{task}"


def by_name(lines: Sequence[PaperLine]) -> Iterator[tuple[PaperLine, ...]]:
    """The lines of each name: all seeds of a flow together."""
    for name in dict.fromkeys(line.name for line in lines):
        yield tuple(line for line in lines if line.name == name)
