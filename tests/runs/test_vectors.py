"""embed, fit and transform from Python; the commands are tested in tests/cli."""

import json

import numpy as np
import pytest

import bertflow
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError

SENTENCES = [f"the {a} {b} sleeps ." for a in ("big", "small", "red", "green") for b in ("man", "dog", "cat", "bird")]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join([*SENTENCES, SENTENCES[0]]), encoding="utf-8")
    return str(path)


def test_from_text_to_calibrated_rows(tiny_bert, text, tmp_path):
    embedded = bertflow.embed([text], store=tmp_path / "store", model=tiny_bert, pooling="mean(1)", device="cpu")
    assert (embedded.store.n, len(embedded.store.row_ids)) == (16, 17)
    fitted = bertflow.fit(calibrator="whitening(3)", store=tmp_path / "store", output=tmp_path / "c")
    assert repr(fitted) == f"<Fitted: calibrator  {tmp_path / 'c'}: whitening(3), 16 -> 3>"
    done = bertflow.transform(calibrator=tmp_path / "c", store=tmp_path / "store", output=tmp_path / "z.npy")
    assert (done.n, done.dim_in, done.dim_out, done.kept) == (16, 16, 3, 0)
    x = TransformerEncoder(tiny_bert, "mean(1)", device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), fitted.calibrator.transform(x), rtol=1e-4, atol=1e-4)
    for result in (embedded, fitted, done):
        assert json.loads(result.to_json())["seconds"] > 0


def test_a_calibrated_encoder_is_embedded_like_any_other(tiny_bert, text, tmp_path):
    raw = TransformerEncoder(tiny_bert, "mean(1)", device="cpu")
    calibrated = bertflow.CalibratedEncoder.fit(raw, bertflow.Whitening(3), SENTENCES)
    calibrated.save(tmp_path / "encoder")
    store = bertflow.embed([text], store=tmp_path / "store", model=tmp_path / "encoder", device="cpu").store
    np.testing.assert_allclose(store.rows(range(16)), calibrated.encode(SENTENCES), rtol=1e-4, atol=1e-4)
    again = bertflow.embed([text], store=tmp_path / "store", model=calibrated).store
    assert again.n == 16
    other = bertflow.CalibratedEncoder.fit(raw, bertflow.Whitening(3), SENTENCES[:10])
    with pytest.raises(DataError, match="holds a store of something else: calibrator_digest '"):
        bertflow.embed([text], store=tmp_path / "store", model=other)


@pytest.mark.parametrize("given", [{}, {"store": "s", "vectors": "x.npy"}])
@pytest.mark.parametrize("function", [bertflow.fit, bertflow.transform])
def test_one_source_of_rows_is_wanted(refusal, tmp_path, function, given):
    bertflow.Center().fit(np.eye(3)).save(tmp_path / "c")
    calibrator = "center" if function is bertflow.fit else tmp_path / "c"
    message = refusal(function, calibrator=calibrator, output=tmp_path / "z.npy", error=UsageError, **given)
    assert message == f"One of store and vectors is wanted, got {' and '.join(given) or 'none'}. Give one."
