"""A run folder: what a training run leaves behind, also one that was interrupted.

    config.yaml   every option, ready to be given again          metrics.csv   what was logged
    run.json      versions, times, seed, text, and how it ended  checkpoints/  Lightning's own, to resume from
    calibrator/   the fitted calibrator                          encoder/      the encoder, with bertflow.json
    report/       how good the density is

With the encoder in it, it is a calibrated encoder as ``CalibratedEncoder.load`` reads it.
"""

import platform
import socket
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bertflow.calibrated import RECORD as CALIBRATED
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.saving import VERSIONED
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.files import atomic_folder, write_json, write_text
from bertflow.training.fit import FittedFlow


class RunFolder:
    """The folder of one run.

    Args:
        path: Must not exist, or be empty.

    Raises:
        UsageError: If something is in it.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise UsageError(
                f"The run folder {path} should be new or empty, but something is there. Choose another --output."
            )
        self.path = path
        self._facts: dict[str, Any] = {}

    def begin(self, config: str, facts: dict[str, Any]) -> None:
        """Write what is known before the training."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / "config.yaml", config)
        self._facts = {
            **facts,
            "started": _now(),
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in (*VERSIONED, "pytorch-lightning")},
            "command": sys.argv,
        }
        self._write_facts(status="running")

    def save_encoder(self, encoder: TransformerEncoder) -> None:
        """Write the encoder, so that the run works by itself."""
        with atomic_folder(self.path / "encoder") as aside:
            encoder.write(aside)

    def finish(self, status: str, fitted: FittedFlow, calibrated: CalibratedEncoder) -> None:
        """Write what came out.

        Args:
            status: "done", "interrupted" or "diverged".
            fitted: The flow and its record.
            calibrated: The encoder, and the flow as its calibrator.
        """
        calibrated.calibrator.save(self.path / "calibrator")
        if (self.path / "encoder").is_dir():
            write_json(self.path / CALIBRATED, {"format": 1, "describe": calibrated.describe()})
        write_text(self.path / "report" / "fit.md", fitted.record.to_markdown())
        write_json(self.path / "report" / "fit.json", fitted.record.to_dict())
        self._write_facts(status=status, ended=_now(), fit=fitted.record.to_dict())

    def _write_facts(self, **more: Any) -> None:
        write_json(self.path / "run.json", {**self._facts, **more})


def default_path(preset: str) -> Path:
    """A folder for a run that was given none."""
    return Path("runs") / f"{preset}-{datetime.now():%Y%m%d-%H%M%S}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
