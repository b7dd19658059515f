"""``metrics.csv``: what a run logged, step by step, as one file across restarts."""

import csv
import io
from pathlib import Path

from lightning_fabric.loggers.csv_logs import _ExperimentWriter as FabricWriter
from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter

from bertflow.errors import DataError, reason_of
from bertflow.files import write_text

METRICS = "metrics.csv"


class ContinuedCSV(CSVLogger):
    """A ``CSVLogger`` that appends to ``folder/metrics.csv`` and writes each row at once.

    Lightning's own deletes the file that it finds. With this one a run that was killed and resumed leaves the same file
    as one that was not: ``keep_metrics`` removes the rows logged after the checkpoint, and the header is kept.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: str | Path) -> None:
        # A row kept in memory is lost when the run is killed; there is one for some fifty steps.
        super().__init__(folder, name="", version="", flush_logs_every_n_steps=1)

    @property
    @rank_zero_experiment
    def experiment(self) -> FabricWriter:
        """The writer."""
        if self._experiment is None:
            self._experiment = _Writer(self.log_dir)
        return self._experiment


class _Writer(ExperimentWriter):
    """Lightning's writer, except for how it treats a file that exists."""

    def _check_log_dir_exists(self) -> None:
        self.metrics_keys, _ = _read_metrics(Path(self.metrics_file_path))

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        path = Path(self.metrics_file_path)
        _write_metrics(path, fieldnames, _read_metrics(path)[1])


def keep_metrics(source: Path, folder: Path, steps: int) -> None:
    """Write ``folder/metrics.csv`` with the rows of ``source``, another such file, that the first ``steps`` logged.

    A last line that was cut off in the middle is left out; without a row there is no file.

    Raises:
        DataError: If ``source`` is damaged.
    """
    try:
        header, logged = _read_metrics(source)
        if kept := [row for row in logged if int(row["step"]) < steps]:
            _write_metrics(folder / METRICS, header, kept)
        else:
            (folder / METRICS).unlink(missing_ok=True)
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{source} should hold the rows that the run has logged, but is damaged: {reason_of(error)}. "
            "Delete it to go on without them."
        ) from None


def _read_metrics(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Header and rows; a last line that was cut off is left out."""
    text = path.read_text("utf-8") if path.exists() else ""
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    return list(reader.fieldnames or []), list(reader)


def _write_metrics(path: Path, header: list[str], rows: list[dict[str, str]]) -> None:
    written = io.StringIO()
    writer = csv.DictWriter(written, header)
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, written.getvalue())
