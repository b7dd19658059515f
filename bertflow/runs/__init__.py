"""What a training begins with, and the record of its run: options, text, pairs and encoder in, ``run.json`` out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

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
from bertflow.data.sts import load_graded, load_tasks, require_folder, require_tasks
from bertflow.encoder.abstract import check_sentences
from bertflow.errors import DataError, UsageError, require_between
from bertflow.files import require_files
from bertflow.opening import load, require_openable
from bertflow.records import read_record
from bertflow.results import AbstractResult
from bertflow.text_keys import hash_texts
from bertflow.training.recipe import DEFAULT, Recipe, preset_for, resolve

if TYPE_CHECKING:
    from bertflow.encoder.transformer import TransformerEncoder

RUN = "run.json"
"""Written last when a run begins: a folder that has it can be continued."""


@dataclass(frozen=True)
class ModelOptions:
    """The encoder; the embedded one where no model is named."""

    model: str | None = None
    """Hub id or folder."""
    pooling: str | None = None
    """A name, or a row written out: mean, cls, first-last-avg, mean(1,2), sif(3), ...; by default the recipe's, else
    the folder's."""
    max_length: int | None = None
    """Tokens a sentence; the recipe's by default."""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    dtype: str | None = None
    """Precision of the encoder: float32, float16, bfloat16, tf32 (GPU). What is trained is float32 in any case."""
    revision: str | None = None
    """Branch, tag or commit, for a hub id."""
    prompt: str | None = None
    """Text in front of every sentence."""
    template: str | None = None
    """For the poolings mask and denoised-mask: the text around every sentence, with {} and [MASK]."""

    @classmethod
    def of(cls, given: "ModelOptions | TransformerEncoder | str | Path | None") -> "ModelOptions":
        """The options that open what was given.

        Raises:
            UsageError: For an encoder that is not a transformer.
        """
        if given is None or isinstance(given, str | Path):
            return cls(None if given is None else str(given))
        return given if isinstance(given, ModelOptions) else cls(**trainable_encoder(given).recipe)


@dataclass(frozen=True)
class PairOptions:
    """The pairs to learn from."""

    pairs: list[str] | str | None = None
    """File or [FILE,FILE] of pairs: tsv, csv, jsonl, parquet. By objective: classification takes premise, hypothesis,
    label, or SNLI and MNLI as they are distributed; regression sentence1, sentence2, score; in-batch-negatives
    question, answer, or text, paraphrase, or two columns without a header; simcse takes sentences, one a line, in
    columns, or hub:owner/name."""
    columns: list[str] | None = None
    """For simcse: columns of a table that hold text; by default found by their names."""
    tasks: str | None = None
    """For regression, instead or as well: STS tasks, as stsb-train."""
    data_dir: str | None = None
    """Folder of the STS tasks."""
    classes: list[str] | None = None
    """Names of the classes; by default contradiction, entailment, neutral."""
    only: str | None = None
    """For in-batch-negatives from labelled pairs: the class whose pairs belong together, as entailment."""
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

    def headline(self) -> str:
        """Status and folder."""
        return f"{self.status}, {self.folder}"


def trainable_encoder(
    given: "ModelOptions | TransformerEncoder | str | Path | None",
    say: Callable[[str], Any] = lambda line: None,
    **recipe: Any,
) -> "TransformerEncoder":
    """The encoder to train, or to calibrate.

    Args:
        given: Its name with options, or the encoder itself.
        say: Called with a line about it.
        **recipe: Options of the recipe, for those that are not given.

    Raises:
        UsageError: If it is not a transformer without a calibrator: that can neither be trained nor be written into a
            run folder; or if it has chunks.
    """
    from bertflow.encoder.transformer import TransformerEncoder

    named = _load_options(given, recipe)
    encoder: Any = given if named is None else load(**named)
    if not isinstance(encoder, TransformerEncoder):
        raise UsageError(
            f"A raw transformer is needed, got a {type(encoder).__name__}. Give the encoder before the calibrator, "
            "or the name of one."
        )
    if "chunks" in encoder.recipe:
        raise UsageError(
            "Training takes sentences whole, but this encoder has chunks. Give one that was saved without, or "
            "calibrate long texts by `bertflow embed --chunks` and `bertflow fit`."
        )
    say(f"encoder   {encoder.recipe['model']}, {encoder.describe()['pooling']}, width {encoder.dim}")
    return encoder


def require_trainable(given: "ModelOptions | TransformerEncoder | str | Path | None", **recipe: Any) -> None:
    """Refuse an encoder that cannot be opened, before text is read and weights are loaded."""
    if (named := _load_options(given, recipe)) is not None:
        require_openable(**named)


def _load_options(given: Any, recipe: Mapping[str, Any]) -> dict[str, Any] | None:
    """How an encoder is opened, by what was given, else by the recipe; None for one that is open."""
    if not (given is None or isinstance(given, ModelOptions | str | Path)):
        return None
    options = asdict(ModelOptions.of(given))
    return {name: recipe.get(name) if one is None else one for name, one in options.items()}


def read_pairs(
    options: PairOptions | Pairs | Sequence[str], objective: str, wanted: str, seed: int = 0
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
    files = [options.pairs] if isinstance(options.pairs, str) else options.pairs or []
    require_files(*files)
    for tasks in filter(None, (options.tasks, options.leave_out)):
        require_tasks(tasks, require_folder(options.data_dir))
    if wanted == "scores":
        data_dir = require_folder(options.data_dir) if options.tasks else None
        pairs = load_graded(files, options.tasks or (), data_dir, options.top_score)
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
        pairs = pairs.without_text(hash_texts(unique_sentences(load_tasks(options.leave_out, options.data_dir))))
        if not len(pairs):
            raise DataError(f"All {before} pairs hold a sentence of {options.leave_out}. Give other pairs.")
    return pairs.sample(options.max_pairs, seed), before - len(pairs)
