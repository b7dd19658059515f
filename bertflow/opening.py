"""From what a user names to one encoder, for whoever uses just one: a server, an index of answers, LangChain.

a hub id or a folder of an encoder            raw
a folder of ``CalibratedEncoder.save``        calibrated
a run of ``train.py``                         calibrated
"""

from pathlib import Path
from typing import Any

from bertflow.calibrated import CalibratedEncoder
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import UsageError
from bertflow.evaluation.systems import open_system


def open_encoder(model: str | Path, device: str = "auto", **options: Any) -> SentenceEncoder:
    """Open an encoder, raw or calibrated.

    Args:
        model: A hub id or a folder.
        device: Where it runs.
        options: Of ``TransformerEncoder``, for an encoder as it comes; what is calibrated keeps its own.

    Raises:
        UsageError: If options are given for what is calibrated, or the folder is a calibrator alone.
        DataError: If the folder is missing, incomplete or damaged.
    """
    opened = open_system(str(model), device, **options)
    if opened.calibrator is None:
        return opened.shared.own
    if options:
        raise UsageError(f"{model} is calibrated and keeps its own {next(iter(options))}. Leave that option out.")
    return CalibratedEncoder(opened.shared.own, opened.calibrator)
