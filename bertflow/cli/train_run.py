"""What ``train.py`` does: text -> embeddings -> a flow -> a run folder.

    encode once, then fit        or, where the recipe leaves the encoder's dropout on, encode again in every step

However the training ends, by itself, by Ctrl-C or by divergence, the best state so far is written as a calibrator.
"""

from collections.abc import Sequence
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.flow import FlowCalibrator
from bertflow.cli.notes import notes_on_stderr
from bertflow.cli.train_inputs import Inputs
from bertflow.cli.train_options import TrainOptions, parse_options
from bertflow.errors import BertflowError, UsageError
from bertflow.runs.folder import RunFolder, default_path
from bertflow.runs.resume import Resumption, find_resumption, require_same_inputs
from bertflow.training.checkpoints import DivergenceError, prune_requeue_checkpoints
from bertflow.training.fit import FlowFit, recipe_callbacks
from bertflow.training.trainer import METRICS, build_trainer, keep_metrics

PRINT = "--print_config"


def train(argv: Sequence[str]) -> int:
    """Train as the command line says; returns the exit code."""
    options = parse_options([argument for argument in argv if argument != PRINT])
    if PRINT in argv:
        print(options.config, end="")
        return 0
    with notes_on_stderr(speaks=getattr(rank_zero_only, "rank", 0) == 0):
        return _train(options)


def _train(options: TrainOptions) -> int:
    given = Path(options.output) if options.output else None
    found = find_resumption(options.resume, given, options.values)
    folder = RunFolder(given or found.run or default_path(options.recipe.preset))
    # What Lightning refuses, it should refuse before anything is encoded; it also knows how many we are.
    launch = build_trainer(options.trainer, folder.path, {})
    _require_common_ground(options, launch.world_size)
    if found.done:
        _say(f"The run in {folder.path} is done: there is nothing to resume. For another one, choose another --output.")
        return 0
    if launch.is_global_zero and not (found.run and found.run.resolve() == folder.path.resolve()):
        folder.require_empty(options.config)
    pl.seed_everything(options.seed, verbose=False)
    inputs = Inputs.read(options)
    if found.run:
        require_same_inputs(found.run, inputs.facts())
    _say(f"encoder   {inputs.arguments['model']}, {inputs.encoder.describe()['pooling']}, width {inputs.encoder.dim}")
    _say(f"text      {len(inputs.sentences):,} sentences")
    fit = FlowFit(inputs.embed(), options.recipe, options.seed, inputs.sentences, inputs.encoder)
    trainer = build_trainer(
        options.trainer, folder.path, fit.trainer_options(), recipe_callbacks(fit.recipe), found.steps
    )
    resume = str(found.checkpoint) if found.checkpoint else None
    if not trainer.is_global_zero:
        fit.run(trainer, resume)
        return 0
    _begin(folder, options, inputs, found, trainer.world_size)
    calibrated = fit_into(folder, fit, trainer, inputs, resume)
    if calibrated is None:
        return 1
    if options.report:
        _write_report(folder, fit, inputs, calibrated)
    _say(f"\nnext: python evaluate.py {folder.path} --compare raw,center,whitening --tasks sts7 --data_dir DIR")
    return 0


def _begin(folder: RunFolder, options: TrainOptions, inputs: Inputs, found: Resumption, ranks: int) -> None:
    """Write all that is known before the training, and keep what was logged by the steps that are not done again."""
    facts = {**inputs.facts(), "options": options.values, "seed": options.seed, "world_size": ranks}
    folder.begin(options.config, facts, found.steps if found.run else None)
    keep_metrics((found.run or folder.path) / METRICS, folder.path, found.steps)
    if found.run:
        _say(f"resumed   {found.checkpoint or 'before its first checkpoint'}, after {found.steps:,} steps")
    if options.save_encoder:
        folder.save_encoder(inputs.encoder)


def _require_common_ground(options: TrainOptions, ranks: int) -> None:
    """Several ranks write one folder and read one store.

    Raises:
        UsageError: If there are several, and they would each have their own.
    """
    folders = {"--output": options.output, "--data.store": options.data.store}
    missing = [name for name, given in folders.items() if not given]
    if ranks > 1 and missing:
        raise UsageError(
            f"{ranks} processes train together and need the same folders, but {' and '.join(missing)} "
            f"{'was' if len(missing) == 1 else 'were'} not given. Give a folder that all of them can see."
        )


def fit_into(
    folder: RunFolder, fit: FlowFit, trainer: pl.Trainer, inputs: Inputs, resume: str | None = None
) -> CalibratedEncoder | None:
    """Train, and write the run folder however it ends; returns what came out, or None if it was interrupted."""
    status = "failed"
    try:
        fit.run(trainer, resume)
        status = "done"
    except KeyboardInterrupt:
        status = "interrupted"
    except DivergenceError:
        status = "diverged"
        raise
    finally:
        fitted = fit.result()
        calibrator = FlowCalibrator.of(fitted, fit.recipe, fit.moments, inputs.provenance())
        calibrated = CalibratedEncoder(inputs.encoder, calibrator)
        folder.finish(status, fitted, calibrated)
        _say(f"\n{fitted.record.summary()}")
        _say(f"run       {folder.path}")
    if status == "interrupted":
        _say("interrupted: the calibrator is the best state so far; --resume auto goes on from the last checkpoint")
        return None
    prune_requeue_checkpoints(folder.path / "checkpoints", keep=0)
    return calibrated


def _write_report(folder: RunFolder, fit: FlowFit, inputs: Inputs, calibrated: CalibratedEncoder) -> None:
    """The geometry before and after, in pictures; a run whose text is too short for them is whole all the same."""
    from bertflow.geometry.inspecting import write_run_report

    try:
        path = write_run_report(folder.path, calibrated, fit.x, inputs.sentences, inputs.arguments)
        _say(f"report    {path}")
    except BertflowError as error:
        _say(f"note: there is no report in pictures. {error}")


@rank_zero_only
def _say(line: str) -> None:
    print(line, flush=True)
