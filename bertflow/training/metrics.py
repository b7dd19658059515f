"""``metrics.csv``: what a run logged, step by step, as one file across restarts."""

import csv
import io
from pathlib import Path

from pytorch_lightning.loggers import CSVLogger

from bertflow.errors import DataError, reason_of

METRICS = "metrics.csv"


def csv_logger(folder: str | Path) -> CSVLogger:
    """Lightning's for ``folder/metrics.csv``, row by row: one kept in memory is lost when the run is killed."""
    return CSVLogger(folder, name="", version="", flush_logs_every_n_steps=1)


def log_again(logger: CSVLogger, source: Path, steps: int) -> None:
    """Log the rows of ``source``, another such file, that the first ``steps`` logged: the logger begins its file anew.

    A last line that was cut off in the middle is left out.

    Raises:
        DataError: If ``source`` is damaged.
    """
    try:
        text = source.read_text("utf-8")
        kept = list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))
        numbered = [(int(row["step"]), {name: cell for name, cell in row.items() if cell}) for row in kept]
        if any(None in row for row in kept):
            raise ValueError("a row is longer than the header")
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{source} should hold the rows that the run has logged, but is damaged: {reason_of(error)}. "
            "Delete it to go on without them."
        ) from None
    for step, row in numbered:
        if step < steps:
            logger.experiment.log_metrics(row, step)
    logger.experiment.save()
