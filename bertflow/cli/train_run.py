"""What ``train.py`` does: text -> embeddings -> a flow -> a run folder.

    encode once, then fit        or, where the recipe leaves the encoder's dropout on, encode again in every step

However the training ends, by itself, by Ctrl-C or by divergence, the best state so far is written as a calibrator.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.flow import FlowCalibrator
from bertflow.cli.run_folder import RunFolder, default_path
from bertflow.cli.train_inputs import Inputs
from bertflow.cli.train_options import TrainOptions, parse_options
from bertflow.cli.train_trainer import build_trainer
from bertflow.training.fit import FlowFit
from bertflow.training.keeping import DivergenceError
from bertflow.training.quiet import quiet
from bertflow.training.start import moments_of_rows

PRINT = "--print_config"


def train(argv: Sequence[str]) -> int:
    """Train as the command line says; returns the exit code."""
    options = parse_options([argument for argument in argv if argument != PRINT])
    if PRINT in argv:
        print(options.config, end="")
        return 0
    with _notes_on_stderr():
        return _train(options)


def _train(options: TrainOptions) -> int:
    folder = RunFolder(Path(options.output) if options.output else default_path(options.recipe.preset))
    build_trainer(options.trainer, folder.path, {})  # what it refuses, it should refuse before anything is encoded
    pl.seed_everything(options.seed, verbose=False)
    inputs = Inputs.read(options)
    _say(f"encoder   {inputs.arguments['model']}, {inputs.encoder.describe()['pooling']}, width {inputs.encoder.dim}")
    _say(f"text      {len(inputs.sentences):,} sentences")
    fit = FlowFit(inputs.embed(), options.recipe, options.seed, inputs.sentences, inputs.encoder)
    trainer = build_trainer(options.trainer, folder.path, fit.trainer_options(), fit.callbacks())
    if not trainer.is_global_zero:
        fit.run(trainer)
        return 0
    # While the folder is still empty, or the logger warns that it might not be.
    _ = [getattr(logger, "experiment", None) for logger in trainer.loggers]
    folder.begin(options.config, inputs.facts() | {"seed": options.seed, "world_size": trainer.world_size})
    if options.save_encoder:
        folder.save_encoder(inputs.encoder)
    return fit_into(folder, fit, trainer, inputs)


def fit_into(folder: RunFolder, fit: FlowFit, trainer: pl.Trainer, inputs: Inputs) -> int:
    """Train, and write the run folder however it ends; returns the exit code."""
    status = "failed"
    try:
        with quiet():
            fit.run(trainer)
        status = "done"
    except KeyboardInterrupt:
        status = "interrupted"
    except DivergenceError:
        status = "diverged"
        raise
    finally:
        fitted = fit.result()
        moments = moments_of_rows(fit.x, np.arange(len(fit.x)))
        calibrator = FlowCalibrator.of(fitted, fit.recipe, moments, inputs.provenance())
        folder.finish(status, fitted, CalibratedEncoder(inputs.encoder, calibrator))
        _say(f"\n{fitted.record.summary()}")
        _say(f"run       {folder.path}")
    if status == "interrupted":
        _say("interrupted: the calibrator is the best state so far")
        return 1
    _say(f"\nnext: python evaluate.py {folder.path} --compare raw,center,whitening --tasks sts7 --data_dir DIR")
    return 0


@contextmanager
def _notes_on_stderr() -> Iterator[None]:
    """Show what the package decides for its user."""
    logger, handler = logging.getLogger("bertflow"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("note: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@rank_zero_only
def _say(line: str) -> None:
    print(line, flush=True)
