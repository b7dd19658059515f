"""Vectors of every calibrator, for rows of any and of unit length, by dtype: six numbers each, in ``tests/snapshots``.

All exits must give them: the encoder, the encoder that was saved and opened, rows of NumPy, the map in PyTorch, and a
graph for ONNX runtime.
"""

import warnings

import numpy as np
import torch
from sklearn.base import clone

import bertflow
from bertflow.errors import NullDirectionWarning
from bertflow.export.onnx_encoder import OnnxEncoder
from bertflow.export.targets import write_export

from .test_unit_length import CALIBRATORS, unit
from .texts import WITH_ARTICLES, drawn

DIGITS = {"float32": 4, "float16": 2, "bfloat16": 1}
"""Type that an encoder computes in -> digits of its vectors that other processors have as well."""
PROBE = ["the dog sleeps in the garden .", "a big cat", "the man eats"]
EXPORTED = "Whitening()"
"""The calibrator of which a graph is made: each takes seconds."""


def exits(system, folder):
    """What embeds sentences, by its name."""
    system.save(folder / "saved")
    yield "saved and opened", bertflow.load(folder / "saved", device="cpu").encode
    yield "rows of NumPy", lambda texts: system.calibrator.transform(system.encoder.encode(texts).astype(np.float64))
    yield "the map", lambda texts: system.calibrator.map(torch.from_numpy(system.encoder.encode(texts))).numpy()
    if str(system.calibrator) == EXPORTED and system.describe()["dtype"] == "float32":
        yield "ONNX", OnnxEncoder(write_export(system, folder / "onnx", "onnx").folder).encode


@torch.no_grad()
def test_every_exit_gives_the_vectors_that_are_kept(tiny_bert, tmp_path, snapshot):
    text = drawn(WITH_ARTICLES, 240, 0, 2, 12)
    encoders = {
        dtype: bertflow.TransformerEncoder(tiny_bert, pooling="mean(2)", device="cpu", dtype=dtype) for dtype in DIGITS
    }
    x = encoders["float32"].encode(text)
    lines = []
    for number, calibrator in enumerate(CALIBRATORS):
        for length, rows in {"any length": x, "unit length": unit(x)}.items():
            with warnings.catch_warnings():  # one layer, few words
                warnings.simplefilter("ignore", NullDirectionWarning)
                fitted = clone(calibrator).fit(rows)
            for dtype, digits in DIGITS.items():
                system = bertflow.CalibratedEncoder(encoders[dtype], fitted)
                z = system.encode(PROBE)
                for name, embed in exits(system, tmp_path / f"{number} {length} {dtype}"):
                    error = f"{calibrator}, {length}, {dtype}: {name}"
                    np.testing.assert_allclose(embed(PROBE), z, rtol=1e-4, atol=1e-4, err_msg=error)
                if not isinstance(calibrator, bertflow.FlowCalibrator):  # training ends elsewhere on other processors
                    six = " ".join(f"{value:.{digits}f}" for value in (*z[0, :2], z[0, -1], *z[1, :2], z[2, -1]))
                    lines.append(f"{calibrator}, {length}, {dtype}: {six}")
    snapshot("vectors", "\n".join(lines))
