"""What ``bertflow finetune`` does: pairs -> an encoder in training -> a run folder with a model folder in it.

    config.yaml  run.json  metrics.csv  checkpoints/  encoder/

``encoder/`` is written when the training is done, and only then: half of an epoch is no result, but a checkpoint to
go on from.
"""

from collections.abc import Sequence
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only

from bertflow.cli.finetune_inputs import encoder_arguments, read_pairs
from bertflow.cli.finetune_options import FinetuneOptions, parse_options
from bertflow.cli.notes import notes_on_stderr
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.finetuning.fit import SiameseFit, recipe_callbacks, trainer_options
from bertflow.runs.folder import RunFolder, default_path
from bertflow.runs.resume import find_resumption
from bertflow.training.checkpoints import DivergenceError
from bertflow.training.trainer import METRICS, build_trainer, keep_metrics

PRINT = "--print_config"


def run(argv: Sequence[str]) -> int:
    """Fine-tune as the command line says; returns the exit code."""
    options = parse_options([argument for argument in argv if argument != PRINT])
    if PRINT in argv:
        print(options.config, end="")
        return 0
    with notes_on_stderr():
        return _finetune(options)


def _finetune(options: FinetuneOptions) -> int:
    given = Path(options.output) if options.output else None
    found = find_resumption(options.resume, given, options.values)
    path = given or found.run or default_path(options.recipe.objective)
    launch = build_trainer(options.trainer, path, {})  # what it refuses, it should refuse before anything is read
    if launch.world_size > 1 and options.output is None:
        raise UsageError(f"{launch.world_size} processes train together and need the same folder. Give --output DIR.")
    folder = RunFolder(path)
    if found.done:
        _say(f"The run in {path} is done: there is nothing to resume. For another one, choose another --output.")
        return 0
    if path != found.run and launch.is_global_zero:
        folder.require_empty(options.config)
    pairs, left_out = read_pairs(options.data, options.recipe, options.seed)
    arguments = encoder_arguments(options)
    encoder = TransformerEncoder(**arguments)
    fit = SiameseFit(encoder, pairs, options.recipe, options.seed)
    asked = trainer_options(options.recipe, len(pairs))
    callbacks = recipe_callbacks(options.recipe, path / "checkpoints")
    trainer = build_trainer(options.trainer, path, asked, callbacks, found.steps)
    if trainer.is_global_zero:
        _say(f"encoder   {arguments['model']}, {encoder.describe()['pooling']}, width {encoder.dim}")
        _say(f"pairs     {len(fit.data.units):,} to train on, {len(fit.data.held_out):,} held out")
        facts = {
            "encoder": arguments,
            "describe": encoder.describe(),
            "pairs": {"sources": list(pairs.tasks), "n": len(pairs), "no_label": pairs.dropped, "left_out": left_out},
            "options": options.values,
            "seed": options.seed,
            "world_size": trainer.world_size,
        }
        folder.begin(options.config, facts, found.steps if found.run else None)
        keep_metrics((found.run or path) / METRICS, path, found.steps)
        if found.run:
            _say(f"resumed   {found.checkpoint or 'before its first checkpoint'}, after {found.steps:,} steps")
    return _fit_into(folder, fit, trainer, found.checkpoint)


def _fit_into(folder: RunFolder, fit: SiameseFit, trainer: pl.Trainer, resume: Path | None) -> int:
    """Train, and write the run folder however it ends; returns the exit code."""
    status = "failed"
    try:
        fit.run(trainer, resume)
        if trainer.is_global_zero:
            fit.save(folder.path / "encoder")
        status = "done"
    except KeyboardInterrupt:
        status = "interrupted"
    except DivergenceError:
        status = "diverged"
        raise
    finally:
        if trainer.is_global_zero:
            folder.end(status, fit=fit.record())
    if status == "interrupted":
        _say(
            f"interrupted after {fit.steps:,} steps; the same command with --resume auto --output {folder.path} goes on"
        )
        return 1
    judged = ", ".join(f"{name.removeprefix('held_out_')} {value:.3f}" for name, value in fit.held_out.items())
    _say(f"\n{fit.steps:,} steps in {fit.seconds:.0f} s{f'; held out: {judged}' if judged else ''}")
    _say(f"encoder   {folder.path / 'encoder'}")
    _say(f"\nnext: python train.py --encoder.model {folder.path / 'encoder'} --data.sentences FILE")
    return 0


@rank_zero_only
def _say(line: str) -> None:
    print(line, flush=True)
