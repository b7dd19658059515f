"""What a training begins with, and the record of its run: options, text, pairs and encoder in, ``run.json`` out."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from bertflow.data.corpus import load_sentences
from bertflow.data.pairs import (
    NLI_CLASSES,
    Pairs,
    load_pairs,
    load_related,
    pairs_of_sentences,
    unique_sentences,
)
from bertflow.data.sts import StsSource, load_graded
from bertflow.encoder.abstract import check_sentences
from bertflow.errors import DataError, UsageError, require_between
from bertflow.places import require_files
from bertflow.records import read_record
from bertflow.registry import several
from bertflow.results import AbstractResult
from bertflow.text_keys import hash_texts
from bertflow.training.recipe import DEFAULT, Recipe, preset_for, resolve

RUN = "run.json"
"""File that is written first when a run begins: a folder that has it can be continued."""


@dataclass(frozen=True)
class PairOptions:
    """The pairs to learn from."""

    pairs: list[str] | str | None = None
    """File or [FILE,FILE] of pairs, which are tables. By objective: classification takes premise, hypothesis,
    label, or SNLI and MNLI as they are distributed; regression sentence1, sentence2, score; in-batch-negatives
    question, answer, or text, paraphrase, or anchor, positive, negative, or two columns without a header; simcse takes
    text: one sentence per line, a table, or hub:owner/name."""
    columns: list[str] | None = None
    """Columns of a table that hold text, for simcse; by default found by their names."""
    tasks: str | None = None
    """STS tasks for regression, instead or as well, such as stsb-train."""
    data_dir: str | None = None
    """Folder of the STS tasks."""
    classes: list[str] | None = None
    """Names of the classes; by default contradiction, entailment, neutral."""
    only: str | None = None
    """Class whose pairs belong together, such as entailment; for in-batch-negatives from labeled pairs."""
    top_score: float = 5.0
    """The highest score in the files."""
    leave_out: str | None = None
    """STS tasks, as sts7,tuning: pairs that hold one of their sentences are dropped."""
    max_pairs: int | None = None
    """Number of pairs in a random sample; by default all are used."""


class RunRecord(TypedDict):
    """What ``run.json`` cannot be continued without."""

    options: dict[str, Any]
    status: str
    describe: dict[str, Any]
    text: NotRequired[dict[str, Any]]
    fit: NotRequired[dict[str, Any]]


def read_run(folder: Path) -> RunRecord:
    """What ``run.json`` says.

    Raises:
        DataError: If it is missing or damaged.
    """
    return read_record(folder / RUN, RunRecord, "training run", "Choose another folder for a new run.")


def asked_recipe(flow: Recipe | str | Mapping[str, Any] | None, purpose: str | None) -> Recipe:
    """The recipe that a training is asked for, by its arguments.

    Raises:
        UnknownNameError: If there is no such preset, field or purpose.
        UsageError: If a value is out of range, or preset and purpose contradict each other.
    """
    if isinstance(flow, Recipe):
        preset_for(flow.preset, purpose)
        return flow
    changes = dict(flow) if isinstance(flow, Mapping) else {"preset": flow or DEFAULT}
    return resolve(preset_for(changes.pop("preset", DEFAULT), purpose), changes)


@dataclass(frozen=True, repr=False)
class Run(AbstractResult):
    """The result of a training: a run folder.

    Attributes:
        folder: The folder.
        status: "done" or "interrupted".
        note: What there is to say instead of the results, where nothing was done.
    """

    folder: Path
    status: str
    note: str = ""

    @property
    def facts(self) -> RunRecord:
        """What ``run.json`` says."""
        return read_run(self.folder)

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return int(self.status == "interrupted")

    def as_dict(self) -> dict[str, Any]:
        """Folder, status and figures of the training."""
        return {"folder": str(self.folder), "status": self.status, "fit": self.facts.get("fit")}

    def parts(self) -> Iterator[str]:
        """What there is to say instead of the results, or the results."""
        yield from [self.note] if self.note else self.results()

    @abstractmethod
    def results(self) -> Iterator[str]:
        """How the training went, and where the results are."""

    def headline(self) -> str:
        """Status and folder."""
        return f"{self.status}, {self.folder}"


def read_pairs(
    options: PairOptions | Pairs | Sequence[str], objective: str, wanted: str, seed: int
) -> tuple[Pairs, int]:
    """The pairs that the objective needs, and how many were left out because a sentence of theirs will be scored.

    Args:
        options: Where they come from; pairs, or sentences, are taken as they are.
        objective: Its name.
        wanted: What the pairs must carry for it: classes, scores or none; text, for sentences.
        seed: Random seed for a sample.

    Raises:
        UsageError: If no pairs are named, or options do not fit the objective.
        DataError: If a file cannot be read, or nothing is left.
    """
    if isinstance(options, Pairs):
        return options, 0
    if not isinstance(options, PairOptions):
        if wanted != "text":
            raise UsageError(f"The objective {objective} learns from pairs, but sentences were given. Give pairs.")
        check_sentences(options)
        return pairs_of_sentences(options), 0
    if not options.pairs and not (options.tasks and wanted == "scores"):
        raise UsageError(
            f"The objective {objective} needs {'text' if wanted == 'text' else 'pairs'}. Give a file with --data.pairs"
            f"{' or STS tasks with --data.tasks' if wanted == 'scores' else ''}."
        )
    uses = {"tasks": ("scores",), "classes": ("classes", "none"), "only": ("none",), "columns": ("text",)}
    for name, targets in uses.items():
        if getattr(options, name) and wanted not in targets:
            raise UsageError(f"The option data.{name} means nothing to {objective}. Leave it out.")
    require_between(1, max_pairs=options.max_pairs, top_score=options.top_score)
    files = several(options.pairs)
    require_files(*files)
    for tasks in filter(None, (options.tasks, options.leave_out)):
        StsSource(tasks, options.data_dir)
    if wanted == "scores":
        pairs = load_graded(files, options.tasks or (), options.data_dir, options.top_score)
    elif wanted == "text":
        source = ", ".join(Path(file).name for file in files)
        pairs = pairs_of_sentences(load_sentences(files, options.columns), source)
    elif wanted == "none" and options.only is None:
        pairs = load_related(files)
    else:
        pairs = load_pairs(files, "classes", classes=options.classes or NLI_CLASSES)
        pairs = pairs if options.only is None else pairs.of_class(options.only)
    before = len(pairs)
    if options.leave_out:
        pairs = pairs.without_text(hash_texts(unique_sentences(StsSource(options.leave_out, options.data_dir))))
        if not len(pairs):
            raise DataError(f"Every pair holds a sentence of {options.leave_out}. Give other pairs.")
    return pairs.sample(options.max_pairs, seed), before - len(pairs)
