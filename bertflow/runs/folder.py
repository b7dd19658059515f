"""A run folder: what a training writes, also one that was interrupted, and how it is continued.

config.yaml   every option, ready to be given again          metrics.csv   what was logged
run.json      versions, times, seed, text, and how it ended  tensorboard/  the same, for TensorBoard
calibrator/   the fitted calibrator                          checkpoints/  Lightning's own, to resume from
report/       how good the density is                        encoder/      the encoder, with bertflow.json

``resume`` continues a run, however it stopped, to the end that it would have come to:

    auto   continue the run in the output folder; begin it where there is none; do nothing where it is done
    FILE   from this checkpoint of a run, in its own folder or in a new one

A run is continued with its own options, text and encoder. Options that only say where and how it runs may differ.
"""

import inspect
import json
import platform
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities import rank_zero_only

from bertflow.calibration.saving import VERSIONED
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import Identity
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError, how_many
from bertflow.files import atomic_folder, remove_unfinished, write_text
from bertflow.jobs import locked
from bertflow.onednn import processor
from bertflow.records import write_record
from bertflow.registry import flat_options
from bertflow.runs import RUN, read_run
from bertflow.training.checkpoints import newest_checkpoint, steps_of
from bertflow.training.divergence import DivergenceError
from bertflow.training.recipe import DEFAULT
from bertflow.training.trainer import METRICS, PLACE, build_trainer, known_warnings, log_again

AUTO = "auto"
FREE = (
    *("output", "report", "resume", "data.data_dir", "data.store", "encoder.device", "trainer.max_time"),
    *(f"trainer.{name}" for name in PLACE),
)
"""Options that may differ when a run is continued."""
OF_OTHER_TEXT = {"text_keys": "of other sentences, as many", "content": "of these sentences in another spelling"}
"""What a digest of the text that differs means."""


class RunFolder:
    """The folder of one run, from the options to the end of the training.

    Args:
        output: The folder; by default that of the run that is resumed, else a new one.
        resume: "auto", or a checkpoint of a run.
        name: Begins the name of a new folder; of a flow, its preset with the version.
        options: All options of the run, as a tree; objects become names of classes.
        say: Called with each line that a person may want to read.
        trainer: The user's options of Lightning's Trainer.
        shared: Folders besides the output that several processes need in common, by option.

    Raises:
        UsageError: If the run was made with other options, or ``resume`` does not say which run.
        DataError: If the checkpoint cannot be read, or is in no run folder.
    """

    def __init__(
        self,
        output: str | Path | None,
        resume: str | Path | None,
        name: str,
        options: Mapping[str, Any],
        say: Callable[[str], None] | None,
        trainer: Mapping[str, Any] | None = None,
        shared: Mapping[str, str | None] | None = None,
    ) -> None:
        given = Path(output) if output else None
        self.options = dict(json.loads(json.dumps(options, default=_plain)))
        if self.options.get("flow", {}).get("preset") == DEFAULT:  # what is recorded has a version
            self.options["flow"]["preset"] = name
        self.config = yaml.safe_dump(self.options, sort_keys=False, allow_unicode=True)
        self.begun, self.checkpoint, self.steps = find_resumption(resume, given, self.options)
        self.path = given or self.begun or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
        self.in_place = self.begun is not None and self.begun.resolve() == self.path.resolve()
        self.say: Callable[[str], Any] = rank_zero_only(say or (lambda line: None))
        self._asked, self._shared = trainer or {}, {"output": given, **(shared or {})}
        self.facts, self._held = dict[str, Any](), ExitStack()
        done = f"The run in {self.path} is done: there is nothing to resume. For another one, choose another --output."
        self.nothing_to_do = done if self.in_place and read_run(self.path)["status"] == "done" else ""

    def __enter__(self) -> "RunFolder":
        """Reserve the folder for this process; several that train together have it in common.

        Raises:
            UsageError: If another run writes there now, or it is not empty; and as ``prepare``, so that options that
                Lightning refuses are refused before text is read, which may take long.
        """
        with ExitStack() as held:  # given back where something is refused
            if not rank_zero_only.rank:  # type: ignore[attr-defined]  # Lightning sets it
                if not held.enter_context(locked(self.path.parent / f".{self.path.name}.lock")):
                    raise UsageError(
                        f"Another run writes to {self.path} now. Wait for its end, or choose another --output."
                    )
                unfinished = f".{RUN}."  # an unfinished run.json is all that may be there
                there = [self.path] if self.path.is_file() else self.path.glob("*")
                if not self.in_place and not all(path.name.startswith(unfinished) for path in there):
                    raise UsageError(
                        f"Output folder {self.path} is not empty. "
                        "Choose another --output, or continue a run with --resume auto."
                    )
            self.prepare({})
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Let others have it."""
        self._held.close()

    def prepare(self, recipe: Mapping[str, Any], every: int | None = None) -> None:
        """Make Lightning's Trainer of this run, with the user's options and a recipe's; a checkpoint ``every`` steps.

        Raises:
            UsageError: If Lightning refuses its options, or several processes would each have a folder of their own.
        """
        self.trainer = trainer = build_trainer(self._asked, self.path, recipe, self.steps, every)
        missing = [f"--{name}" for name, folder in self._shared.items() if not folder]
        if trainer.world_size > 1 and missing:
            raise UsageError(
                f"{trainer.world_size} processes train together and need the same folders, but "
                f"{' and '.join(missing)} {'was' if len(missing) == 1 else 'were'} not given. "
                "Give a folder that all of them can see."
            )

    def train(
        self,
        training: Callable[[pl.Trainer, Path | None], None],
        encoder: TransformerEncoder,
        facts: Mapping[str, Any],
        finish: Callable[[], Mapping[str, Any]],
        keep: bool = False,
        report: Callable[[], None] | None = None,
    ) -> str:
        """Train, and write the end whatever it is.

        Args:
            training: Trains, from a checkpoint if there is one.
            encoder: What is trained, or calibrated.
            facts: About the text or the pairs, and the seed, for ``run.json``.
            finish: Writes the results, and returns the figures for ``run.json``.
            keep: Whether the folder gets the encoder first, so that the run works by itself.
            report: Written when the training is done and its results are, before the run is said to be done.

        Returns:
            "done", or "interrupted" after Ctrl-C or SIGTERM; empty in all processes but the first, which write nothing.
        """
        if not self.trainer.is_global_zero:
            training(self.trainer, self.checkpoint)
            return ""
        self._begin(encoder, facts)
        if keep and not (self.path / "encoder").is_dir():  # one that is there is complete
            with atomic_folder(self.path / "encoder") as aside:
                encoder.write(aside)
        status = "failed"
        try:
            training(self.trainer, self.checkpoint)
            status = "done"
        except KeyboardInterrupt:
            status = "interrupted"
        except DivergenceError:
            status = "diverged"
            raise
        finally:
            figures = finish()
            if report and status == "done":
                report()
            self._write_facts(fit=figures, status=status, ended=_now())
            if status not in ("done", "interrupted"):
                self.say(f"\nrun       {self.path}")
        if status == "done":
            for requeued in self.path.glob("checkpoints/hpc_ckpt_*.ckpt"):
                requeued.unlink()
        return status

    def _begin(self, encoder: TransformerEncoder, facts: Mapping[str, Any]) -> None:
        """Write what is known before the training; keep the logged rows of steps that are not taken again."""
        self.path.mkdir(parents=True, exist_ok=True)
        before: Mapping[str, Any] = read_run(self.path) if (self.path / RUN).exists() else {}
        remove_unfinished(self.path / "encoder")
        host = socket.gethostname()
        stop = {"at": _now(), "host": host, "step": self.steps}
        self.facts = {
            "encoder": encoder.recipe,
            "describe": encoder.describe(),
            **facts,
            "options": self.options,
            "world_size": self.trainer.world_size,
            "started": before.get("started", _now()),
            "resumed": [*before.get("resumed", []), *([stop] if self.begun else [])],
            "host": host,
            "platform": platform.platform(),
            "processor": [*processor()],
            "python": platform.python_version(),
            "versions": {name: version(name) for name in (*VERSIONED, "pytorch-lightning")},
            "command": sys.argv,
        }
        self._write_facts(status="running")  # first: a folder that has it can be continued
        write_text(self.path / "config.yaml", self.config)
        if self.begun:
            logged, ours = self.begun / METRICS, next(iter(self.trainer.loggers), None)
            if isinstance(ours, CSVLogger) and logged.exists():
                with known_warnings():
                    log_again(ours, logged, self.steps)
            steps = how_many(self.steps, "steps")
            self.say(f"resumed   {self.checkpoint or 'before its first checkpoint'}, after {steps}")

    def _write_facts(self, **more: Any) -> None:
        write_record(self.path / RUN, {**self.facts, **more})


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else type(value).__name__


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def find_resumption(
    resume: str | Path | None, output: Path | None, options: Mapping[str, Any]
) -> tuple[Path | None, Path | None, int]:
    """What ``resume`` means for the folders as they are.

    Returns:
        The run folder that was left, or None for a run that begins; the checkpoint in it, or None where it stopped
        before the first one; and the steps taken by then.

    Raises:
        UsageError: If the run was made with other options, or the options do not say which run.
        DataError: If the checkpoint cannot be read, or is in no run folder.
    """
    if resume is None:
        return None, None, 0
    if resume != AUTO:
        checkpoint: Path | None = Path(resume)
        run = Path(resume).parent.parent
        if Path(resume).is_file() and not (run / RUN).is_file():
            raise DataError(
                f"A checkpoint to go on from is in checkpoints/ of a run folder, but {run} has no run.json. "
                "Give one that does."
            )
    elif output is None:
        raise UsageError("--resume auto continues the run in --output, but none was given. Give --output DIR.")
    elif not (output / RUN).is_file():
        return None, None, 0
    else:
        run, checkpoint = output, newest_checkpoint(output / "checkpoints")
    steps = steps_of(checkpoint) if checkpoint else 0
    left_out = {f"trainer.{name}": one.default for name, one in inspect.signature(pl.Trainer).parameters.items()}
    then, now = ({**left_out, **dict(flat_options(each))} for each in (read_run(run)["options"], options))
    for name in {**now, **then}:
        if then.get(name) != now.get(name) and not any(name == free or name.startswith(f"{free}.") for free in FREE):
            raise UsageError(
                f"The run in {run} was made with {name}={then.get(name)}, but now it is {now.get(name)}. "
                f"Give the options of {run / 'config.yaml'}, or choose another --output."
            )
    return run, checkpoint, steps


def require_same_inputs(run: Path, text: Mapping[str, Any], encoder: SentenceEncoder) -> None:
    """Refuse to continue a run whose text or encoder has changed behind the same options.

    Raises:
        DataError: For the first fact about the text that differs, or for all about the encoder.
    """
    then, do = read_run(run), "Use what it was made from, or choose another --output."
    before = then.get("text", {})
    for name, now in text.items():
        if before.get(name) != now:
            made = OF_OTHER_TEXT.get(name, f"with text.{name} {before.get(name)!r}, but now it is {now!r}")
            raise DataError(f"The run in {run} was made {made}. {do}")
    Identity.from_record(then["describe"]).require(encoder.identity, f"The run in {run} was made by", do, exact=True)
