"""A run folder: what a training run leaves behind, also one that was interrupted.

    config.yaml   every option, ready to be given again          metrics.csv   what was logged
    run.json      versions, times, seed, text, and how it ended  tensorboard/  the same, as TensorBoard reads it
    calibrator/   the fitted calibrator                          checkpoints/  Lightning's own, to resume from
    report/       how good the density is                        encoder/      the encoder, with bertflow.json

With the encoder in it, it is a calibrated encoder as ``CalibratedEncoder.load`` reads it.
"""

import platform
import shutil
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from bertflow.calibrated import RECORD as CALIBRATED
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.saving import VERSIONED
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.files import atomic_folder, write_json, write_text
from bertflow.records import read_record
from bertflow.training.fit import FittedFlow

RUN = "run.json"
"""Written last when a run begins: a folder that has it can be continued."""


class RunRecord(TypedDict):
    """What ``run.json`` cannot be continued without."""

    options: dict[str, Any]
    status: str
    text: NotRequired[dict[str, Any]]
    describe: NotRequired[dict[str, Any]]


def read_run(folder: Path) -> RunRecord:
    """What a run says of itself.

    Raises:
        DataError: If ``run.json`` is missing or damaged.
    """
    return read_record(folder / RUN, RunRecord, "training run", "Choose another folder for a new run.")


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._facts: dict[str, Any] = {}

    def require_empty(self, config: str) -> None:
        """Refuse to write among other things; but what this run wrote when it was killed as it began is no harm.

        Raises:
            UsageError: If something is in the folder.
        """
        if not self.path.exists():
            return
        if not self.path.is_dir() or any(not _is_ours(path, config) for path in self.path.iterdir()):
            raise UsageError(
                f"The run folder {self.path} should be new or empty, but something is there. "
                "Choose another --output, or continue a run with --resume auto."
            )

    def begin(self, config: str, facts: dict[str, Any], resumed: int | None = None) -> None:
        """Write what is known before the training.

        Args:
            config: All options, as YAML.
            facts: For ``run.json``.
            resumed: Steps that were taken before, for a run that goes on.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        before: Mapping[str, Any] = read_run(self.path) if (self.path / RUN).exists() else {}
        for leftover in (*self.path.glob(".encoder.*"), *(self.path / "checkpoints").glob(".*")):
            _delete(leftover)  # of a run that was killed while it wrote
        write_text(self.path / "config.yaml", config)
        resumptions = [] if resumed is None else [{"at": _now(), "host": socket.gethostname(), "step": resumed}]
        self._facts = {
            **facts,
            "started": before.get("started", _now()),
            "resumed": [*before.get("resumed", []), *resumptions],
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in (*VERSIONED, "pytorch-lightning")},
            "command": sys.argv,
        }
        self._write_facts(status="running")

    def save_encoder(self, encoder: TransformerEncoder) -> None:
        """Write the encoder, so that the run works by itself; one that is there is whole."""
        if (self.path / "encoder").is_dir():
            return
        with atomic_folder(self.path / "encoder") as aside:
            encoder.write(aside)

    def finish(self, status: str, fitted: FittedFlow, calibrated: CalibratedEncoder) -> None:
        """Write what came out.

        Args:
            status: "done", "interrupted", "diverged" or "failed".
            fitted: The flow and its record.
            calibrated: The encoder, and the flow as its calibrator.
        """
        calibrated.calibrator.save(self.path / "calibrator")
        if (self.path / "encoder").is_dir():
            write_json(self.path / CALIBRATED, {"format": 1, "describe": calibrated.describe()})
        write_text(self.path / "report" / "fit.md", fitted.record.to_markdown())
        write_json(self.path / "report" / "fit.json", fitted.record.to_dict())
        self.end(status, fit=fitted.record.to_dict())

    def end(self, status: str, **facts: Any) -> None:
        """Write how it ended, and what else is known by then."""
        self._write_facts(status=status, ended=_now(), **facts)

    def _write_facts(self, **more: Any) -> None:
        write_json(self.path / RUN, {**self._facts, **more})


def default_path(preset: str) -> Path:
    """A folder for a run that was given none."""
    return Path("runs") / f"{preset}-{datetime.now():%Y%m%d-%H%M%S}"


def _is_ours(path: Path, config: str) -> bool:
    return path.name.startswith(".config.yaml.") or (path.name == "config.yaml" and path.read_text("utf-8") == config)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
