"""Lightning's Trainer for ``train.py``: the user's options come first, then the recipe's, then ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ModelCheckpoint, ProgressBar
from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.plugins.io import CheckpointIO

from bertflow.errors import UsageError
from bertflow.training.checkpoints import CHECKPOINT_STEPS, MidEpochCheckpoint, WholeCheckpoints
from bertflow.training.fit import LIMITS, with_limits
from bertflow.training.launch import launched
from bertflow.training.metrics_file import ContinuedCSV
from bertflow.training.progress import WholeRunBar
from bertflow.training.quiet import quiet
from bertflow.training.requeue import RequeueBetweenSteps


def build_trainer(
    given: Mapping[str, Any],
    output: Path,
    recipe: Mapping[str, Any],
    callbacks: Sequence[pl.Callback] = (),
    step: int = 0,
) -> pl.Trainer:
    """A Trainer with every option that was given.

    Args:
        given: The user's options.
        output: The run folder, for metrics and checkpoints.
        recipe: The recipe's options, for what the user left open.
        callbacks: The recipe's callbacks.
        step: Steps that were taken before, for a run that is resumed.

    Raises:
        UsageError: If Lightning refuses the options.
    """
    recipe = with_limits(recipe, given)
    callbacks = [*callbacks, *_listed(given.get("callbacks"))]
    if given.get("barebones"):  # refuses all that takes time
        ours = {name: value for name, value in recipe.items() if name in LIMITS}
        return _trainer({**launched(), **ours, **given, "callbacks": callbacks})
    checkpoints = output / "checkpoints"
    plugins = _listed(given.get("plugins"))
    if given.get("enable_checkpointing") is not False and not given.get("fast_dev_run"):
        # At the end of an epoch, and in the middle of a long one; both write the one file.
        last: dict[str, Any] = {"filename": "last", "save_top_k": 1, "enable_version_counter": False}
        callbacks.append(ModelCheckpoint(checkpoints, **last))
        callbacks.append(MidEpochCheckpoint(checkpoints, every_n_train_steps=CHECKPOINT_STEPS, **last))
        callbacks.append(RequeueBetweenSteps())
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins.append(WholeCheckpoints())
    if given.get("enable_progress_bar") is not False and not any(isinstance(each, ProgressBar) for each in callbacks):
        callbacks.append(WholeRunBar())
    # Lightning's checkpoints for SLURM go to its root.
    ours = {"enable_model_summary": False, "default_root_dir": checkpoints, **launched(), **recipe}
    loggers = _loggers(given.get("logger"), output, step)
    return _trainer({**ours, **given, "callbacks": callbacks, "logger": loggers, "plugins": plugins})


def _trainer(arguments: Mapping[str, Any]) -> pl.Trainer:
    try:
        with quiet():
            return pl.Trainer(**arguments)
    except (MisconfigurationException, ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"Lightning's Trainer refuses its options: {error}") from None


def _loggers(given: Any, output: Path, step: int) -> list[Logger]:
    """metrics.csv always, unless logging is off; TensorBoard by default, or whatever else was asked for beside it."""
    if given is False:
        return []
    if given is None or given is True:
        # What was logged after the checkpoint is logged again.
        purge = step or None
        given = TensorBoardLogger(output, name="", version="tensorboard", default_hp_metric=False, purge_step=purge)
    return [ContinuedCSV(output), *_listed(given)]


def _listed(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, list) else [given]
