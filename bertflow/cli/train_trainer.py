"""Lightning's Trainer for ``train.py``: the user's options come first, then the recipe's, then ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger

from bertflow.errors import UsageError
from bertflow.training.quiet import quiet

LIMITS = ("max_epochs", "max_steps", "max_time")
"""Options that end a training: one of them replaces all that the recipe says about its end."""


def build_trainer(
    given: Mapping[str, Any], output: Path, recipe: Mapping[str, Any], callbacks: Sequence[pl.Callback] = ()
) -> pl.Trainer:
    """A Trainer with every option that was given.

    Args:
        given: The user's options.
        output: The run folder, for metrics and checkpoints.
        recipe: The recipe's options, for what the user left open.
        callbacks: The recipe's callbacks.

    Raises:
        UsageError: If Lightning refuses the options.
    """
    if any(name in given for name in LIMITS):
        recipe = {name: value for name, value in recipe.items() if name not in LIMITS}
    callbacks = [*callbacks, *_listed(given.get("callbacks"))]
    if given.get("barebones"):  # refuses all that takes time
        ours = {name: value for name, value in recipe.items() if name in LIMITS}
        return _trainer({**ours, **given, "callbacks": callbacks})
    if given.get("enable_checkpointing") is not False and not given.get("fast_dev_run"):
        folder = output / "checkpoints"
        callbacks.append(ModelCheckpoint(folder, filename="last", save_top_k=1, enable_version_counter=False))
    ours = {"enable_model_summary": False, "default_root_dir": output, **recipe}
    logger = _loggers(given.get("logger"), output)
    return _trainer({**ours, **given, "callbacks": callbacks, "logger": logger})


def _trainer(arguments: Mapping[str, Any]) -> pl.Trainer:
    try:
        with quiet():
            return pl.Trainer(**arguments)
    except (MisconfigurationException, ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"Lightning's Trainer refuses its options: {error}") from None


def _loggers(given: Any, output: Path) -> list[Logger]:
    """metrics.csv always, unless logging is off; TensorBoard for true; whatever else was asked for beside it."""
    if given is False:
        return []
    if given is True:
        given = TensorBoardLogger(output, name="", version="tensorboard", default_hp_metric=False)
    return [CSVLogger(output, name="", version=""), *_listed(given)]


def _listed(given: Any) -> list[Any]:
    return [] if given is None else given if isinstance(given, list) else [given]
