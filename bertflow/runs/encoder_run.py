"""``bertflow.finetune``: pairs -> an encoder in training -> a run folder with a model folder in it.

    config.yaml  run.json  metrics.csv  checkpoints/  encoder/

``encoder/`` is written when the training is done, and only then: half of an epoch is not a result, but a checkpoint to
go on from.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.errors import DataError, UsageError
from bertflow.finetuning import FinetuneRecipe
from bertflow.registry import lookup
from bertflow.runs.folder import ModelOptions, Run, RunFolder, options_tree
from bertflow.runs.resume import read_run

if TYPE_CHECKING:
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.encoder.transformer import TransformerEncoder


@dataclass(frozen=True)
class PairOptions:
    """The pairs to learn from."""

    pairs: list[str] | str | None = None
    """File or [FILE,FILE] of pairs: tsv, csv, jsonl, parquet. By objective: classification takes premise, hypothesis,
    label, or SNLI and MNLI as they are distributed; regression sentence1, sentence2, score; in-batch-negatives
    question, answer, or text, paraphrase, or two columns without a header."""
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


def finetune(
    encoder: "ModelOptions | TransformerEncoder | str | Path | None" = None,
    pairs: "PairOptions | Pairs | str | Path | None" = None,
    recipe: FinetuneRecipe | Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    say: Callable[[str], None] | None = None,
) -> "EncoderRun | None":
    """Fine-tune an encoder on pairs of sentences, as SBERT does.

    The encoder reads both sides, and learns to tell classes apart (SNLI, MNLI), to predict scores (STS), or to find the
    answer to a question. The result, RUN/encoder, is a model folder: python train.py --encoder.model RUN/encoder fits a
    flow to it. Options come from --config, a file that may hold any of them, and from the command line, which comes
    last.

    Args:
        encoder: What is trained: an encoder, or the name of one; the embedded one by default. An encoder that is given
            is trained in place.
        pairs: Pairs, or a file of them.
        recipe: How it is trained, or fields that differ from the default as ``{"objective": "regression"}``.
        trainer: Options of Lightning's Trainer, as ``{"precision": "bf16-mixed"}``; they override the recipe's.
        output: The run folder; must be new or empty (default: runs/<objective>-<time>).
        resume: auto: go on with the run in the output folder where it stopped, or begin it where there is none. Or a
            checkpoint of a run, to go on from in its own folder or in a new output folder.
        seed: Random seed of the order of the pairs, dropout and the held-out pairs.
        options: All options as a tree, for config.yaml; made from the arguments by default.
        say: Called with each line that is worth reading before the training is done.

    Returns:
        The run: ``.encoder`` is the fine-tuned encoder. None in all processes but the first, where there are several.

    Raises:
        UsageError: For options that cannot be used.
        DataError: For pairs that cannot be used.
        DivergenceError: If the loss or a weight is no longer finite.
    """
    from bertflow.data.pairs import Pairs
    from bertflow.finetuning.fitting import SiameseFit, siamese_options
    from bertflow.finetuning.siamese import require_float32_weights

    recipe = replace(FinetuneRecipe(), **recipe) if isinstance(recipe, Mapping) else recipe or FinetuneRecipe()
    path = str(pairs) if isinstance(pairs, str | Path) else None
    data = pairs if isinstance(pairs, PairOptions) else PairOptions(path)
    named = ModelOptions.of(encoder)
    if named.dtype not in (None, "float32"):
        raise UsageError(
            f"Weights are trained in float32, but encoder.dtype is {named.dtype}. Leave it out; "
            "--trainer.precision bf16-mixed computes in half precision."
        )
    if trainer and "precision" in trainer:
        require_float32_weights(trainer["precision"])
    options = options or options_tree(
        seed_everything=seed, data=data, encoder=named, finetune=recipe, trainer=trainer or {}
    )
    run = RunFolder(output, resume, recipe.objective, options, say)
    if run.found.done:
        return EncoderRun(run.path, "done", run.nothing_to_do)
    given, left_out = (pairs, 0) if isinstance(pairs, Pairs) else read_pairs(data, recipe, seed)
    engine = run.trainer(trainer, siamese_options(recipe, len(given), run.path / "checkpoints"), {})
    opened = run.open_encoder(encoder, max_length=recipe.max_length, dtype="float32")
    fit = SiameseFit(opened, given, recipe, seed)
    run.say(f"pairs     {fit.n_train:,} to train on, {fit.n_held_out:,} held out")
    if not engine.is_global_zero:
        fit.run(engine, run.found.checkpoint)
        return None
    facts = {"sources": list(given.tasks), "n": len(given), "no_label": given.dropped, "left_out": left_out}
    run.begin(opened, {"pairs": facts}, seed, engine.world_size)

    def training() -> None:
        fit.run(engine, run.found.checkpoint)
        fit.save(run.path / "encoder")

    return EncoderRun(run.path, run.train(training, fit.record))


@dataclass(frozen=True, repr=False)
class EncoderRun(Run):
    """A run folder with a fine-tuned encoder."""

    @cached_property
    def encoder(self) -> "SentenceEncoder":
        """The fine-tuned encoder."""
        from bertflow.opening import load

        return load(self.folder / "encoder")

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """Figures of the training: steps, seconds, memory, loss of the held-out pairs."""
        return read_run(self.folder).get("fit", {})

    def parts(self) -> Iterator[str]:
        """How the training went, where the encoder is, and what to do next."""
        if self.note:
            yield self.note
            return
        steps = self.record["steps"]
        if self.status == "interrupted":
            again = f"the same command with --resume auto --output {self.folder} goes on"
            yield f"interrupted after {steps:,} steps; {again}"
            return
        judged = [f"{name[9:]} {value:.3f}" for name, value in self.record.items() if name.startswith("held_out_")]
        held_out = f"; held out: {', '.join(judged)}" if judged else ""
        yield f"\n{steps:,} steps in {self.record['seconds']:.0f} s{held_out}"
        yield f"encoder   {self.folder / 'encoder'}"
        yield f"\nnext: python train.py --encoder.model {self.folder / 'encoder'} --data.sentences FILE"


def read_pairs(options: PairOptions, recipe: FinetuneRecipe, seed: int = 0) -> "tuple[Pairs, int]":
    """The pairs that the objective needs, and how many were left out because a sentence of theirs will be scored.

    Raises:
        UsageError: If no pairs are named, or options do not fit the objective.
        DataError: If a file cannot be read, or nothing is left.
    """
    from bertflow.data.pairs import unique_sentences
    from bertflow.data.sts import expand_tasks, load_sts
    from bertflow.finetuning.siamese import OBJECTIVES
    from bertflow.text_keys import hash_texts

    wanted = lookup("objective", OBJECTIVES, recipe.objective).targets
    if not options.pairs and not (options.tasks and wanted == "scores"):
        raise UsageError(
            f"The objective {recipe.objective} needs pairs. Give a file with --data.pairs"
            f"{' or STS tasks with --data.tasks' if wanted == 'scores' else ''}."
        )
    uses = {"tasks": ("scores",), "classes": ("classes", "none"), "only": ("none",)}
    for name, targets in uses.items():
        if getattr(options, name) and wanted not in targets:
            raise UsageError(f"The option data.{name} means nothing to {recipe.objective}. Leave it out.")
    pairs = _load(options, wanted)
    before = len(pairs)
    if options.leave_out:
        tasks = expand_tasks(options.leave_out, options.data_dir)
        scored = unique_sentences(load_sts(task, _data_dir(options)) for task in tasks)
        pairs = pairs.without_text(hash_texts(scored))
        if not len(pairs):
            raise DataError(f"All {before} pairs hold a sentence of {options.leave_out}. Give other pairs.")
    return pairs.sample(options.max_pairs, seed), before - len(pairs)


def _load(options: PairOptions, wanted: str) -> "Pairs":
    from bertflow.data.pairs import NLI_CLASSES, load_pairs, load_related
    from bertflow.data.sts import load_graded

    if wanted == "scores":
        data_dir = _data_dir(options) if options.tasks else None
        return load_graded(options.pairs or (), options.tasks or (), data_dir, options.top_score)
    assert options.pairs is not None
    if wanted == "none" and options.only is None:
        return load_related(options.pairs)
    pairs = load_pairs(options.pairs, "classes", classes=options.classes or NLI_CLASSES)
    return pairs if options.only is None else pairs.of_class(options.only)


def _data_dir(options: PairOptions) -> str:
    if options.data_dir is None:
        raise UsageError("STS tasks need the folder they lie in. Give data.data_dir.")
    return options.data_dir
