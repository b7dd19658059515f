"""A run folder: what a training writes, also one that was interrupted, and how it is continued.

config.yaml   every option, ready to be given again          metrics.csv   what was logged
run.json      versions, times, seed, text, and how it ended  tensorboard/  the same, for TensorBoard
calibrator/   the fitted calibrator                          checkpoints/  Lightning's own, to resume from
report/       how good the density is                        encoder/      the encoder, with bertflow.json
"""

import json
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bertflow.errors import UsageError
from bertflow.files import atomic_folder, write_json, write_text
from bertflow.results import AbstractResult
from bertflow.runs.resume import RUN, find_resumption, read_run

if TYPE_CHECKING:
    import pytorch_lightning as pl

    from bertflow.encoder.transformer import TransformerEncoder


@dataclass(frozen=True)
class ModelOptions:
    """The encoder; the embedded one where no model is named."""

    model: str | None = None
    """Hub id or folder."""
    pooling: str | None = None
    """A name, or a row written out: mean, cls, first-last-avg, mean(1,2), sif(3), ...; by default the recipe's, else
    the folder's."""
    max_length: int | None = None
    """Tokens a sentence; the recipe's by default."""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    dtype: str | None = None
    """Precision of the encoder's weights: float32, float16, bfloat16. What is trained is float32 in any case."""
    revision: str | None = None
    """Branch, tag or commit, for a hub id."""
    prompt: str | None = None
    """Text in front of every sentence."""

    @classmethod
    def of(cls, given: "ModelOptions | TransformerEncoder | str | Path | None") -> "ModelOptions":
        """The options that open what was given.

        Raises:
            UsageError: For an encoder that is not a transformer.
        """
        if given is None or isinstance(given, ModelOptions):
            return given or cls()
        if isinstance(given, str | Path):
            return cls(str(given))
        require_transformer(given)
        return cls(**given.recipe)


def require_transformer(encoder: object) -> None:
    """Refuse what can neither be trained nor be written into a run folder.

    Raises:
        UsageError: If it is not a transformer without a calibrator.
    """
    from bertflow.encoder.transformer import TransformerEncoder

    if not isinstance(encoder, TransformerEncoder):
        raise UsageError(
            f"A raw transformer is needed, got a {type(encoder).__name__}. Give the encoder before the calibrator, "
            "or the name of one."
        )


@dataclass(frozen=True, repr=False)
class Run(AbstractResult):
    """The result of a training: a run folder.

    Attributes:
        folder: The folder.
        status: "done" or "interrupted".
        note: What there is to say instead of the results, where nothing was done.
    """

    folder: Path
    status: str
    note: str = ""

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return int(self.status == "interrupted")

    def as_dict(self) -> dict[str, Any]:
        """Folder, status and figures of the training."""
        return {"folder": str(self.folder), "status": self.status, "fit": read_run(self.folder).get("fit")}

    def headline(self) -> str:
        """Status and folder."""
        return f"{self.status}, {self.folder}"


class RunFolder:
    """The folder of one run, from the options to the end of the training.

    Args:
        output: The folder; by default that of the run that is resumed, else a new one.
        resume: "auto", or a checkpoint of a run.
        name: Begins the name of a new folder.
        options: All options of the run, as a tree that is ready for JSON.
        say: Called with each line that a person may want to read.

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
    ) -> None:
        from pytorch_lightning.utilities import rank_zero_only

        given = Path(output) if output else None
        self.options, self.config = options, yaml.safe_dump(dict(options), sort_keys=False, allow_unicode=True)
        self.found = find_resumption(resume, given, options)
        self.path = given or self.found.run or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
        self.say: Callable[[str], Any] = rank_zero_only(say or (lambda line: None))
        self._given, self.arguments, self.facts = given, dict[str, Any](), dict[str, Any]()

    @property
    def nothing_to_do(self) -> str:
        """What there is to say where a run that is done is asked to go on."""
        return f"The run in {self.path} is done: there is nothing to resume. For another one, choose another --output."

    def trainer(
        self,
        given: Mapping[str, Any] | None,
        recipe: Mapping[str, Any],
        shared: Mapping[str, Any],
    ) -> "pl.Trainer":
        """Lightning's Trainer for this run.

        Args:
            given: The user's options of it.
            recipe: The recipe's options.
            shared: Folders besides the output that several processes need in common, by option.

        Raises:
            UsageError: If Lightning refuses its options, the folder is not empty, or several processes would each have
                a folder of their own.
        """
        from bertflow.training.trainer import build_trainer

        trainer = build_trainer(given or {}, self.path, recipe, self.found.steps)
        missing = [name for name, folder in {"--output": self._given, **shared}.items() if not folder]
        if trainer.world_size > 1 and missing:
            raise UsageError(
                f"{trainer.world_size} processes train together and need the same folders, but "
                f"{' and '.join(missing)} {'was' if len(missing) == 1 else 'were'} not given. "
                "Give a folder that all of them can see."
            )
        if trainer.is_global_zero and not (self.found.run and self.found.run.resolve() == self.path.resolve()):
            self._require_empty()
        return trainer

    def begin(self, encoder: "TransformerEncoder", facts: Mapping[str, Any], seed: int, ranks: int) -> None:
        """Write what is known before the training; keep the logged rows of steps that are not taken again.

        Args:
            encoder: What is trained, or calibrated.
            facts: About the text or the pairs, for ``run.json``.
            seed: The random seed.
            ranks: Number of processes.
        """
        from bertflow.calibration.base import VERSIONED
        from bertflow.training.trainer import METRICS, keep_metrics

        self.path.mkdir(parents=True, exist_ok=True)
        before: Mapping[str, Any] = read_run(self.path) if (self.path / RUN).exists() else {}
        for leftover in (*self.path.glob(".encoder.*"), *(self.path / "checkpoints").glob(".*")):
            _delete(leftover)  # of a run that was killed while it wrote
        write_text(self.path / "config.yaml", self.config)
        found = self.found
        resumption = {"at": _now(), "host": socket.gethostname(), "step": found.steps}
        self.facts = {
            "encoder": self.arguments,
            "describe": encoder.describe(),
            **facts,
            "options": dict(self.options),
            "seed": seed,
            "world_size": ranks,
            "started": before.get("started", _now()),
            "resumed": [*before.get("resumed", []), *([resumption] if found.run else [])],
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in (*VERSIONED, "pytorch-lightning")},
            "command": sys.argv,
        }
        self._write_facts(status="running")
        keep_metrics((found.run or self.path) / METRICS, self.path, found.steps)
        if found.run:
            self.say(f"resumed   {found.checkpoint or 'before its first checkpoint'}, after {found.steps:,} steps")

    def train(self, training: Callable[[], None], finish: Callable[[], Mapping[str, Any]]) -> str:
        """Train, and write the end whatever it is.

        Args:
            training: Trains.
            finish: Writes the results, and returns the figures for ``run.json``.

        Returns:
            "done", or "interrupted" after Ctrl-C or SIGTERM.
        """
        from bertflow.training.checkpoints import DivergenceError, prune_requeue_checkpoints

        status = "failed"
        try:
            training()
            status = "done"
        except KeyboardInterrupt:
            status = "interrupted"
        except DivergenceError:
            status = "diverged"
            raise
        finally:
            self._write_facts(fit=finish(), status=status, ended=_now())
            if status not in ("done", "interrupted"):
                self.say(f"\nrun       {self.path}")
        if status == "done":
            prune_requeue_checkpoints(self.path / "checkpoints", keep=0)
        return status

    def open_encoder(
        self, given: "ModelOptions | TransformerEncoder | str | Path | None", **recipe: Any
    ) -> "TransformerEncoder":
        """The encoder to train, or to calibrate.

        Args:
            given: Its name with options, or the encoder itself.
            **recipe: Options of the recipe, for those that are not given.

        Raises:
            UsageError: If it is not a transformer without a calibrator.
        """
        from bertflow.encoder.transformer import TransformerEncoder
        from bertflow.opening import load

        if isinstance(given, TransformerEncoder):
            encoder: Any = given
        else:
            options: dict[str, Any] = asdict(ModelOptions.of(given))
            named: dict[str, Any] = {name: recipe.get(name) if one is None else one for name, one in options.items()}
            encoder = load(**named)
        require_transformer(encoder)
        self.arguments = encoder.recipe
        self.say(f"encoder   {self.arguments['model']}, {encoder.describe()['pooling']}, width {encoder.dim}")
        return encoder

    def save_encoder(self, encoder: "TransformerEncoder") -> None:
        """Write the encoder, so that the run works by itself; one that is there is complete."""
        if not (self.path / "encoder").is_dir():
            with atomic_folder(self.path / "encoder") as aside:
                encoder.write(aside)

    def _require_empty(self) -> None:
        """Refuse to write among other files; what this run wrote when it was killed as it began is allowed."""
        if not self.path.exists():
            return
        if not self.path.is_dir() or any(not _is_ours(path, self.config) for path in self.path.iterdir()):
            raise UsageError(
                f"The run folder {self.path} should be new or empty, but something is there. "
                "Choose another --output, or continue a run with --resume auto."
            )

    def _write_facts(self, **more: Any) -> None:
        write_json(self.path / RUN, {**self.facts, **more})


def options_tree(**options: Any) -> dict[str, Any]:
    """Arguments as a tree that is ready for JSON, as the command line gives them; objects become names of classes."""

    def plain(value: Any) -> Any:
        return asdict(value) if is_dataclass(value) and not isinstance(value, type) else type(value).__name__

    return dict(json.loads(json.dumps(options, default=plain)))


def _is_ours(path: Path, config: str) -> bool:
    return path.name.startswith(".config.yaml.") or (path.name == "config.yaml" and path.read_text("utf-8") == config)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
