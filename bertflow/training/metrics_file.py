"""``metrics.csv``, also across restarts: a run that was killed and resumed leaves the same file as one that was not.

Lightning's ``CSVLogger`` deletes what it finds. This one goes on with it: rows that were logged after the checkpoint
that is resumed from are taken out, since their steps are done again, and the header is kept.
"""

import csv
import io
from pathlib import Path

from lightning_fabric.loggers.csv_logs import _ExperimentWriter as FabricWriter
from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter

from bertflow.files import write_text

NAME = "metrics.csv"


class ContinuedCSV(CSVLogger):
    """A ``CSVLogger`` that appends to ``folder/metrics.csv``, and writes each row at once.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: str | Path) -> None:
        # A row that is kept in memory is lost when the run is killed; there is one for some fifty steps.
        super().__init__(folder, name="", version="", flush_logs_every_n_steps=1)

    @property
    @rank_zero_experiment
    def experiment(self) -> FabricWriter:
        """The writer."""
        if self._experiment is None:
            self._experiment = _Writer(self.log_dir)
        return self._experiment


class _Writer(ExperimentWriter):
    """Lightning's writer, but for what it does to a file that is there."""

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        if path.exists():
            self.metrics_keys = list(csv.DictReader(io.StringIO(path.read_text("utf-8"))).fieldnames or [])

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        path = Path(self.metrics_file_path)
        write_text(path, _table(list(csv.DictReader(io.StringIO(path.read_text("utf-8")))), fieldnames))


def keep_metrics(source: Path, folder: Path, steps: int) -> None:
    """Write ``folder/metrics.csv`` with those rows of ``source``, another such file, that the first ``steps`` logged.

    A last line that was cut off in the middle is left out; without a row there is no file.
    """
    text = source.read_text("utf-8") if source.exists() else ""
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    rows = [row for row in reader if int(row["step"]) < steps]
    if rows:
        write_text(folder / NAME, _table(rows, list(reader.fieldnames or [])))
    else:
        (folder / NAME).unlink(missing_ok=True)


def _table(rows: list[dict[str, str]], header: list[str]) -> str:
    written = io.StringIO()
    writer = csv.DictWriter(written, header)
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()
