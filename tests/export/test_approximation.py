"""The affine stand-in for a flow: least squares, judged on text it was not fitted on."""

import numpy as np
import torch

from bertflow.export.approximation import LinearStandIn, least_squares, linearize
from bertflow.export.st_folder import load_sentence_transformer
from bertflow.export.targets import write_export
from bertflow.maps import gap_of
from bertflow.retrieval.adapting import only_queries_of


def test_it_is_least_squares():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(80, 5)) @ generator.normal(size=(5, 5)) + 3
    z = np.tanh(x @ generator.normal(size=(5, 4))) + generator.normal(size=4)
    affine = least_squares(x, z)
    design = np.hstack([x, np.ones((80, 1))])
    wanted = design @ np.linalg.lstsq(design, z, rcond=None)[0]
    np.testing.assert_allclose((x - affine.shift.numpy()) @ affine.weight.numpy(), wanted, atol=1e-9)


def test_a_stand_in_is_exported_as_built_in_modules(tiny_system, tiny_text, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(tiny_text))
    stand_in, cost = linearize(tiny_system("mean", "flow"), text)
    calibrator = stand_in.calibrator
    assert isinstance(calibrator, LinearStandIn)
    assert 0.9 < calibrator.r2 < 1
    assert cost[0].startswith(f"R^2 {calibrator.r2:.4f} on ")
    assert stand_in.describe()["calibrator"].startswith("LinearStandIn(of=")
    written = write_export(stand_in, tmp_path / "out", "sentence-transformers")
    assert (written.ours, written.facts["modules"]) == ((), ["Pooling", "Dense"])
    found = load_sentence_transformer(written.folder, device="cpu").encode(tiny_text[:9])
    np.testing.assert_allclose(found, stand_in.encode(tiny_text[:9]), atol=1e-4)
    adapted, _, _ = only_queries_of(tiny_system("mean", "flow"), tiny_text)
    moves = linearize(adapted, text)[0]  # queries, as the flow does
    assert moves.role == "query"
    assert torch.equal(gap_of(moves.calibrator.map), gap_of(adapted.calibrator.map))


def test_too_little_text_is_refused(tiny_system, tmp_path, refusal):
    (tmp_path / "text.txt").write_text("the cat\n" * 20)
    assert refusal(lambda: linearize(tiny_system("mean", "flow"), tmp_path / "text.txt")) == (
        "A stand-in needs at least 10 sentences, got 1. Give more text."
    )
