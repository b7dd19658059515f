"""Lightning's Trainer: its options, its loggers, its progress bar, and what it says.

The user's options come first, then the recipe's, then ours. ``metrics.csv`` is what a run logged, step by step, as one
file across restarts.
"""

import atexit
import csv
import inspect
import io
import logging
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, ProgressBar
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger
from pytorch_lightning.plugins.io import CheckpointIO
from torch import distributed as dist

from bertflow.errors import DataError, UsageError, logger, reason_of
from bertflow.progress import Advance, at_level, bar, working
from bertflow.registry import several
from bertflow.training.checkpoints import (
    CHECKPOINT_STEPS,
    AfterValidation,
    RequeueBetweenSteps,
    StopAfter,
    WholeCheckpoints,
    between_steps,
)
from bertflow.training.module import planned_steps

METRICS = "metrics.csv"
PEER = re.compile("(?i)by peer|connection closed|broken pipe|time(d )?out|remote process")
"""Words of gloo and NCCL where the process at the other end is gone."""
LIMITS = ("max_epochs", "max_steps")
"""Options of a Trainer that end a training."""
INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs in which a user types: what runs there is one process, as Lightning sees it too."""
PLACE = ("accelerator", "devices", "enable_progress_bar", "logger", "num_nodes", "profiler", "strategy")
"""Options of a Trainer that only say where and how it runs."""
LIGHTNING = ("pytorch_lightning", "lightning_fabric")
"""Loggers of its banners: available devices, why the fit ended, what else could be installed."""


@contextmanager
def known_warnings() -> Iterator[None]:
    """Hide the warnings that Lightning 2.6 itself causes under torch 2.13, and those about a resumed run."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", message="(Checkpoint|Experiment logs) directory .* exists and is not empty")
        warnings.filterwarnings("ignore", message="The dirpath has changed from")
        yield


@working("training")
def run_training(
    trainer: pl.Trainer, module: pl.LightningModule, data: pl.LightningDataModule, resume: str | Path | None
) -> None:
    """Train, from a checkpoint if one is given.

    Raises:
        KeyboardInterrupt: After Ctrl-C or SIGTERM, or where another process has ended.
    """
    path = None if resume is None else str(resume)
    try:
        with between_steps(trainer), known_warnings(), at_level(logging.WARNING, *LIGHTNING):
            trainer.fit(module, datamodule=data, ckpt_path=path, weights_only=True if path else None)
        if trainer.world_size > 1:
            atexit.unregister(_leave_group)  # registered once, however often a process trains
            atexit.register(_leave_group)
    except SystemExit:
        # Lightning ends the process when it is interrupted; that is for our caller to do.
        if not trainer.interrupted:
            raise
        raise KeyboardInterrupt from None
    except RuntimeError as error:  # gloo has no class of its own
        if trainer.world_size == 1 or not PEER.search(str(error)):
            raise
        logger.warning("Another process of this training has ended: %s.", reason_of(error))
        raise KeyboardInterrupt from None


def _leave_group() -> None:
    """Lightning leaves NCCL's groups alone; a process that ends while gloo's threads still run is aborted."""
    if dist.is_initialized():
        dist.destroy_process_group()


def quiet_trainer(
    recipe: Mapping[str, Any], given: Mapping[str, Any] | None, advance: Advance | None = None
) -> pl.Trainer:
    """A Trainer that writes and shows nothing, for a fit without a run folder.

    Args:
        recipe: The recipe's options, for what the user left open.
        given: The user's options.
        advance: Is told how many more steps are done, if it is given.
    """
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = merged_options(recipe, given or {})
    if advance is not None:
        options["callbacks"].append(StepCount(advance))
    return _trainer({"devices": 1, **dict.fromkeys(silent, False), **options})


def repeatable_options(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a Trainer that a run recorded, as far as a quiet one needs them to come to the same result.

    Raises:
        UsageError: For a callback or a plugin, of which only the name is recorded.
    """
    defaults = {name: one.default for name, one in inspect.signature(pl.Trainer).parameters.items()}
    set_by_user = {name: value for name, value in recorded.items() if value not in (None, defaults.get(name))}
    for name in ("callbacks", "plugins"):
        if set_by_user.get(name):
            raise UsageError(f"The run kept only the names of its trainer.{name}, so it cannot be fitted again.")
    ours = (*PLACE, "callbacks", "plugins", "default_root_dir")
    return {name: set_by_user[name] for name in set_by_user if name not in ours and not name.startswith("enable_")}


def recipe_limits(epochs: float, clip_norm: float, batches: int, held_out: int, steps: int = 0) -> dict[str, Any]:
    """What a recipe asks of a Trainer; the user may override any of it.

    Args:
        epochs: Passes over the rows, perhaps not a whole number.
        clip_norm: Largest norm of the gradient; 0 for no limit.
        batches: Number of batches in an epoch.
        held_out: Number of rows that judge the training.
        steps: Largest number of steps; 0 for as many as ``epochs`` make.
    """
    most = min(max(1, int(batches * epochs)), steps or math.inf)
    return {
        "max_epochs": math.ceil(epochs),
        "max_steps": -1 if most == batches * math.ceil(epochs) else most,
        "gradient_clip_val": clip_norm or None,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": min(50, batches),
        **({} if held_out else {"limit_val_batches": 0}),
    }


def build_trainer(
    given: Mapping[str, Any], output: Path, recipe: Mapping[str, Any], step: int = 0, every: int | None = None
) -> pl.Trainer:
    """The Trainer of a run folder, with every option that was given.

    Args:
        given: The user's options.
        output: The run folder, for metrics and checkpoints.
        recipe: The recipe's options, for what the user left open.
        step: Steps taken before, for a run that is resumed.
        every: Steps between two checkpoints in the middle of an epoch; ``CHECKPOINT_STEPS`` by default.

    Raises:
        UsageError: If Lightning refuses the options.
    """
    options = merged_options(recipe, given)
    callbacks = options["callbacks"]
    if given.get("barebones"):  # refuses everything that takes time
        ours = ("callbacks", *LIMITS)
        return _trainer(launched() | {name: options[name] for name in options if name in ours or name in given})
    checkpoints = output / "checkpoints"
    plugins = several(given.get("plugins"))
    if given.get("enable_checkpointing") is not False and not given.get("fast_dev_run"):
        # In the middle of an epoch, and at its end; both write the same file.
        alike: dict[str, Any] = {"dirpath": checkpoints, "filename": "last", "enable_version_counter": False}
        callbacks.append(AfterValidation(**alike, every_n_train_steps=every or CHECKPOINT_STEPS))
        callbacks.append(ModelCheckpoint(**alike, save_on_train_epoch_end=True))
        callbacks.append(RequeueBetweenSteps())
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins.append(WholeCheckpoints())
    if given.get("enable_progress_bar") is not False and not any(isinstance(each, ProgressBar) for each in callbacks):
        callbacks.append(StepCount())
        options["enable_progress_bar"] = False
    options |= {"logger": _loggers(given.get("logger"), output, step), "plugins": plugins}
    # Lightning's checkpoints for SLURM go to its root.
    return _trainer({"enable_model_summary": False, "default_root_dir": checkpoints, **launched(), **options})


def merged_options(recipe: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's options of a Trainer, then the user's, and the callbacks of both.

    One limit of the user's replaces all of the recipe's.
    """
    replaced = LIMITS if any(name in given for name in LIMITS) else ()
    callbacks = [callback for options in (recipe, given) for callback in several(options.get("callbacks"))]
    return {name: recipe[name] for name in recipe if name not in replaced} | {**given, "callbacks": callbacks}


def launched(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Devices a node and nodes, as the launcher of this process (torchrun, or SLURM's ``srun``) states them.

    Lightning reads the same variables, but wants the two numbers as options too and refuses to start where they differ.

    Args:
        environment: The variables; those of this process by default.

    Returns:
        Options of Lightning's Trainer; none where nothing has launched this process.
    """
    if "TORCHELASTIC_RUN_ID" in environment:  # before SLURM, since torchrun may be started by it
        per_node, world = int(environment["LOCAL_WORLD_SIZE"]), int(environment["WORLD_SIZE"])
        return {"devices": per_node, "num_nodes": world // per_node}
    if "SLURM_NTASKS" in environment and environment.get("SLURM_JOB_NAME") not in INTERACTIVE:
        nodes = int(environment.get("SLURM_NNODES", 1))
        return {"devices": int(environment["SLURM_NTASKS"]) // nodes, "num_nodes": nodes}
    return {}


def _trainer(arguments: Mapping[str, Any]) -> pl.Trainer:
    options = dict(arguments)
    if options.get("max_steps", -1) > 0:
        options["callbacks"] = [*options["callbacks"], StopAfter(options.pop("max_steps"))]
        options.setdefault("max_epochs", -1)
    try:
        with at_level(logging.WARNING, *LIGHTNING):
            return pl.Trainer(**options)
    except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
        raise UsageError(f"Lightning's Trainer refuses its options: {error}") from None


def _loggers(given: Any, output: Path, step: int) -> list[Logger]:
    """metrics.csv always, unless logging is off; beside it TensorBoard, or the loggers that the user named."""
    if given is False:
        return []
    if given is None or given is True:
        # What was logged after the checkpoint is logged again.
        purge = step or None
        given = TensorBoardLogger(output, name="", version="tensorboard", default_hp_metric=False, purge_step=purge)
    # Row by row: what is kept in memory is lost when the run is killed.
    return [CSVLogger(output, name="", version="", flush_logs_every_n_steps=1), *several(given)]


class StepCount(Callback):
    """Counts the steps of the whole run, also across restarts; Lightning's bars start every epoch.

    Args:
        advance: Is told how many more steps are done; a bar by default, or lines where nobody watches.
    """

    def __init__(self, advance: Advance | None = None) -> None:
        self._advance, self._done, self._shown = advance, 0, ExitStack()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin; without a limit on the steps there is no bar, as the end is not known."""
        self._done, steps = trainer.global_step, planned_steps(trainer)
        if self._advance is None and not math.isinf(steps):
            self._advance = self._shown.enter_context(bar(int(steps), "training", unit="steps", done=self._done))

    def on_train_batch_end(self, trainer: pl.Trainer, *which: Any) -> None:
        """Count the steps taken."""
        if self._advance is not None:
            self._advance(trainer.global_step - self._done)
        self._done = trainer.global_step

    def on_fit_end(self, *which: Any) -> None:
        """Close the bar."""
        self._shown.close()

    on_exception = on_fit_end  # type: ignore[assignment]


def log_again(logger: CSVLogger, source: Path, steps: int) -> None:
    """Log the rows of ``source``, another such file, that the first ``steps`` logged: the logger begins its file anew.

    A last line that was cut off in the middle is left out.

    Raises:
        DataError: If ``source`` is damaged.
    """
    try:
        text = source.read_text("utf-8")
        kept = [(int(row["step"]), row) for row in csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))]
        if any(None in row for _, row in kept):
            raise ValueError("a row is longer than the header")
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{source} should hold the rows that the run has logged, but is damaged: {reason_of(error)}. "
            "Delete it to go on without them."
        ) from None
    for step, row in kept:
        if step < steps:
            logger.experiment.log_metrics({name: cell for name, cell in row.items() if cell}, step)
    logger.experiment.save()
