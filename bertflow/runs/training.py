"""A training that writes a run folder, and what it gives back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from numpy.typing import NDArray

from bertflow.breadth import narrowness
from bertflow.calibrated import RECORD, CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.saving import Provenance
from bertflow.calibration.spelling import load_calibrator
from bertflow.data.fitting_text import TextOptions, training_text
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.options import EncoderRecipe
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import BertflowError, UsageError, how_many, logger, require_between
from bertflow.files import write_json, write_text
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.fitting import SiameseFit, siamese_options
from bertflow.finetuning.joint import JOINT, Joint, finished_flow
from bertflow.finetuning.objectives import OBJECTIVES
from bertflow.finetuning.siamese import FLOAT32_WEIGHTS
from bertflow.geometry import REPORT, inspecting
from bertflow.opening import load, load_transformer
from bertflow.records import read_record, write_record
from bertflow.registry import lookup
from bertflow.runs import PairOptions, Run, read_pairs
from bertflow.runs.folder import RunFolder, require_same_inputs
from bertflow.store.embeddings import embedded, rows_at
from bertflow.store.text import exact_hashes, text_digest
from bertflow.tables import Strong
from bertflow.text_keys import digest, hash_texts
from bertflow.training.batches import shared_units
from bertflow.training.flow_fit import FlowFit, trainer_options
from bertflow.training.module import require_precision
from bertflow.training.recipe import Recipe
from bertflow.training.record import ENOUGH_TEXT, FitRecord

FEW = 100
"""Fewest held-out pairs that show something: a share of 100 is known to within 10 points."""


@dataclass(frozen=True, repr=False)
class FlowRun(Run):
    """A run folder with a calibrator.

    Attributes:
        raw: The encoder that was calibrated, if it is open; else the run folder opens it.
        narrow: Warning that the text is narrow; empty if it is not.
    """

    raw: TransformerEncoder | None = None
    narrow: str = ""

    @cached_property
    def calibrator(self) -> AbstractCalibrator:
        """The fitted flow."""
        return load_calibrator(self.folder / "calibrator")

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The calibrated encoder."""
        return CalibratedEncoder(self.raw, self.calibrator) if self.raw else load(self.folder)

    @cached_property
    def record(self) -> FitRecord:
        """How the flow was fitted, and how well."""
        return read_record(self.folder / "report" / "fit.json", FitRecord, "report on a fit")

    def warnings(self) -> Iterator[str]:
        """What to know first: a command prints it, and from Python it is logged."""
        yield from filter(None, (self.narrow, self.record.untrained))
        if not self.record.untrained and self.record.n_train < ENOUGH_TEXT:
            yield f"{how_many(self.record.n_train, 'sentences')} are few for a flow. Give {ENOUGH_TEXT:,} or more."

    def results(self) -> Iterator[str]:
        """How well the flow fits, and where the results are."""
        yield from (Strong(f"WARNING: {one}") for one in self.warnings())
        if not self.record.untrained:
            yield Strong(self.record.summary())
        steps = how_many(self.record.steps, "steps")
        yield f"took      {steps} in {self.record.seconds:.0f} s, kept: {self.record.kept}"
        yield f"run       {self.folder}"
        if self.status == "interrupted":
            yield "interrupted: the calibrator is the best state so far; --resume auto goes on from the last checkpoint"
            return
        if (report := self.folder / "report" / REPORT).exists():
            yield f"report    {report}"

    def to_markdown(self) -> str:
        """The report on the fit."""
        return self.record.to_markdown()


@dataclass(frozen=True, repr=False)
class EncoderRun(Run):
    """A run folder with a fine-tuned encoder."""

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The fine-tuned encoder; followed by its flow, where one was trained beside it."""
        joint = (self.folder / "calibrator").is_dir()  # then the run folder is a calibrated encoder
        return load(self.folder if joint else self.folder / "encoder")

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """Figures of the training: steps, seconds, memory, loss of the held-out pairs."""
        return self.facts.get("fit", {})

    def results(self) -> Iterator[str]:
        """How the training went, and where the encoder is."""
        steps = how_many(self.record["steps"], "steps")
        if self.status == "interrupted":
            again = f"the same command with --resume auto --output {self.folder} goes on"
            yield f"interrupted after {steps}; {again}"
            return
        judged = [f"{name[9:]} {value:.3f}" for name, value in self.record.items() if name.startswith("held_out_")]
        yield f"\n{steps} in {self.record['seconds']:.0f} s"
        if judged:
            few = f" (fewer than {FEW} pairs say little)" if self.record["pairs_held_out"] < FEW else ""
            yield f"held out  {how_many(self.record['pairs_held_out'], 'pairs')}: {', '.join(judged)}{few}"
        yield f"encoder   {self.folder / 'encoder'}"


Trainee = TransformerEncoder | EncoderRecipe | str | Path | None
"""What is trained, or calibrated: an encoder, or what opens it; the built-in one by default."""


def train_flow(
    encoder: Trainee,
    recipe: Recipe,
    data: TextOptions,
    given: Sequence[str] | None,
    trainer: Mapping[str, Any] | None,
    seed: int,
    save_encoder: bool,
    report: bool,
    without_text_hashes: bool,
    **folder: Any,
) -> FlowRun | None:
    """Fit a flow to the embeddings of the sentences that are given, or else of ``data``, in a ``RunFolder``."""
    require_precision((trainer or {}).get("precision", "32-true"))
    run = RunFolder(name=recipe.preset, trainer=trainer, **folder, shared={"data.store": data.store})
    if run.nothing_to_do:
        return FlowRun(run.path, "done", run.nothing_to_do)
    opened = trainable_encoder(encoder, pooling=recipe.pooling, max_length=recipe.max_length)
    with run:
        pl.seed_everything(seed, verbose=False)
        shared_units(recipe.batch_size // recipe.unit, run.trainer.world_size, recipe.unit)
        run.say(_said(opened))
        require_between(1, opened.dim, n_components=recipe.n_components)
        sentences = given or training_text(data, seed)
        source = "sentences" if given else data.tasks or data.sentences or "docstrings of installed packages"
        # A sentence that comes twice would be learned by heart, and could be both trained on and held out.
        sentences = sentences if recipe.unit > 1 else list(dict.fromkeys(sentences))
        run.prepare(trainer_options(recipe, len(sentences)))
        if opened.pooling.counted:
            opened.count_tokens(sentences)
        opened = opened.forget_text() if without_text_hashes else opened
        hashes = hash_texts(sentences)
        content = text_digest([exact_hashes(sentences)])
        facts = {"sentences": len(sentences), "text_keys": digest(hashes), "content": content, "source": source}
        if run.begun:
            require_same_inputs(run.begun, facts, opened)
        run.say(f"text      {how_many(len(sentences), 'sentences')}")
        x = embedded(opened, sentences, data.store, without_text_hashes=without_text_hashes)
        narrow = narrowness(sentences, partial(rows_at, x))
        fit = FlowFit(x, recipe, seed, sentences, opened)
        finish = partial(_write_result, run.path, fit, opened, None if without_text_hashes else hashes)
        result = FlowRun(run.path, "done", raw=opened, narrow=narrow)
        last = partial(_write_report, run, fit, result, sentences) if report else None
        status = run.train(fit.run, opened, {"text": facts, "seed": seed}, finish, save_encoder, last)
    for warning in result.warnings() if status and not folder["say"] else ():
        logger.warning(warning)
    return replace(result, status=status) if status else None


def trainable_encoder(given: Trainee, **recipe: Any) -> TransformerEncoder:
    """The encoder to train, or to calibrate; ``recipe`` holds options for those that are not given.

    Raises:
        UsageError: If it is not a transformer without a calibrator: that can neither be trained nor be written into a
            run folder; or if it has chunks.
    """
    asked = given if isinstance(given, Mapping) else {"model": given}
    chosen = recipe | {name: one for name, one in asked.items() if one is not None}
    encoder = load_transformer(**{"model": None, **chosen})
    if encoder.spec.chunks:
        raise UsageError(
            "Training takes sentences whole, but this encoder has chunks. Switch them off, as --encoder.chunks '', or "
            "calibrate long texts by `bertflow embed --chunks` and `bertflow fit`."
        )
    encoder.longer = "a larger max_length"
    return encoder


def _said(encoder: TransformerEncoder) -> str:
    return f"encoder   {encoder.recipe['model']}, {encoder.spec.pooling}, width {encoder.dim}"


def train_encoder(
    encoder: Trainee,
    source: PairOptions | Pairs | Sequence[str],
    recipe: FinetuneRecipe,
    trainer: Mapping[str, Any] | None,
    seed: int,
    without_text_hashes: bool,
    **folder: Any,
) -> EncoderRun | None:
    """Fine-tune an encoder, and the flow beside it where one is asked for, in a ``RunFolder``."""
    require_precision((trainer or {}).get("precision", "32-true"), *FLOAT32_WEIGHTS)
    run = RunFolder(name=recipe.objective, trainer=trainer, **folder)
    if run.nothing_to_do:
        return EncoderRun(run.path, "done", run.nothing_to_do)
    wanted = lookup("objective", OBJECTIVES, recipe.objective).targets
    if recipe.joint:
        lookup("joint loss", JOINT, recipe.joint)
    opened = trainable_encoder(encoder, max_length=recipe.max_length, dtype="float32")
    with run:
        recipe.require_even(run.trainer.world_size)
        given, left_out = read_pairs(source, recipe.objective, wanted, seed)
        run.prepare(siamese_options(recipe, len(given)), recipe.checkpoint_every)
        run.say(_said(opened))
        fit = SiameseFit(opened, given, recipe, seed)
        what = "sentences" if wanted == "text" else "pairs"
        run.say(f"{what:9} {fit.n_train:,} to train on, {fit.n_held_out:,} held out")
        facts = {"sources": list(given.tasks), "n": len(given), "no_label": given.dropped, "left_out": left_out}

        def training(engine: pl.Trainer, checkpoint: Path | None) -> None:
            fit.run(engine, checkpoint)
            if engine.is_global_zero:
                fit.save(run.path / "encoder", without_text_hashes)
                if isinstance(fit.module, Joint):
                    tuned = load_transformer(run.path / "encoder", device=str(opened.device))
                    keys = None if without_text_hashes else fit.data.text_hashes
                    _write_result(run.path, finished_flow(fit.module, given, tuned), tuned, keys)

        status = run.train(training, opened, {"pairs": facts, "seed": seed}, fit.record)
    return EncoderRun(run.path, status) if status else None


def _write_result(run: Path, fit: FlowFit, raw: TransformerEncoder, keys: NDArray[Any] | None) -> dict[str, Any]:
    """Write the best state so far, with the keys of its text; returns its figures."""
    fitted = fit.result()
    calibrator = FlowCalibrator.of(fitted, fit.recipe, fit.moments, Provenance.of(raw.describe(), keys))
    calibrator.save(run / "calibrator")
    figures = asdict(fitted.record)
    write_text(run / "report" / "fit.md", fitted.record.to_markdown())
    write_json(run / "report" / "fit.json", figures)
    if (run / "encoder").is_dir():  # then the run is a calibrated encoder by itself
        write_record(run / RECORD, {"format": 1, "describe": CalibratedEncoder(raw, calibrator).describe()})
    return figures


def _write_report(run: RunFolder, fit: FlowFit, result: FlowRun, sentences: Sequence[str]) -> None:
    """The geometry before and after, in pictures; a run whose text is too short for them is complete without."""
    try:
        inspecting.write_report(
            run.path / "report",
            f"Geometry report: {run.path.name}",
            {"raw": result.encoder.raw, "flow": result.encoder},
            sentences,
            recipe=run.facts["encoder"],
            run=run.path,
            x=fit.x,
            facts={"text": "a sample of what the flow was fitted on"},
        )
    except BertflowError as error:
        run.say(f"note: the report could not be made. {error}")
