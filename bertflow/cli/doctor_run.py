"""What ``bertflow doctor`` does: ask for the golden sentences, compare, explain."""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from bertflow.calibrated import RECORD as CALIBRATED
from bertflow.calibrated import CalibratedEncoder
from bertflow.cli.printing import print_lines
from bertflow.encoder.folders import RECORD_FILE
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import ThresholdMissedError, UsageError
from bertflow.export.client import embed_remotely
from bertflow.export.diagnosis import diagnose
from bertflow.export.golden import Golden
from bertflow.export.onnx_encoder import GRAPH, OnnxEncoder
from bertflow.export.st_folder import load_sentence_transformer

Embed = Callable[[list[str]], NDArray[np.float32]]


def run_doctor(options: argparse.Namespace) -> int:
    """Carry out what the command line asks for; returns the exit code.

    Raises:
        ThresholdMissedError: If the vectors are not the golden ones.
    """
    if options.batch < 1:
        raise UsageError(f"--batch should be 1 or more, got {options.batch}.")
    golden, where = Golden.read(options.golden), options.url or options.model
    got = _remotely(options)(golden.sentences) if options.url else _locally(options.model)(golden.sentences)
    finding = diagnose(golden, got, options.normalized)
    off = f"{finding.distance:.1e} of their length" if np.isfinite(finding.distance) else "another width"
    print_lines(
        Console(),
        [
            f"golden    {golden.describe['encoder']}, {golden.describe['pooling']}, "
            f"{golden.describe.get('calibrator', 'as it comes')}, max_length={golden.max_length}",
            f"compared  {len(got)} vectors of {where}: off by {off} (median), {golden.tolerance:.0e} is accepted",
        ],
    )
    if not finding.right:
        raise ThresholdMissedError(finding.text)
    print_lines(Console(), [f"right     {finding.text}"])
    return 0


def _remotely(options: argparse.Namespace) -> Embed:
    key = None
    if options.key is not None:
        key = os.environ.get(options.key)
        if not key:
            raise UsageError(f"--key names the environment variable {options.key}, which is not set. Set it.")
    return lambda sentences: embed_remotely(options.url, sentences, options.model_name, key, options.batch)


def _sentence_transformer(folder: Path) -> Embed:
    model = load_sentence_transformer(folder, device="cpu")
    return lambda sentences: np.asarray(model.encode(sentences), np.float32)


KINDS: Mapping[str, Callable[[Path], Embed]] = {
    str(GRAPH): lambda folder: OnnxEncoder(folder).encode,
    CALIBRATED: lambda folder: CalibratedEncoder.load(folder, device="cpu").encode,
    RECORD_FILE: lambda folder: TransformerEncoder(folder, device="cpu").encode,
    "modules.json": _sentence_transformer,
}
"""What a folder is known by -> how it is run; the first that is there."""


def _locally(model: str) -> Embed:
    folder = Path(model)
    for name, opened in KINDS.items():
        if (folder / name).is_file():
            return opened(folder)
    raise UsageError(f"{model} is nothing that can be run here: it holds none of {', '.join(KINDS)}. Export it again.")
