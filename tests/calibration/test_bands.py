"""Two bands and blocks, against NumPy."""

import numpy as np
import pytest
from scipy.linalg import block_diag

import bertflow
from bertflow.affine import AffineMap
from bertflow.calibration.blocks import Blocks
from bertflow.calibration.closed_forms import Ridge, TwoBand, Whitening
from bertflow.calibration.saving import Provenance
from bertflow.calibration.spelling import load_calibrator, parse_calibrator
from bertflow.errors import DataError, UsageError
from bertflow.maps import BandMap, filled_map
from bertflow.moments import Moments

from ..test_unit_length import unit

CONCAT = Provenance({"encoder": "e", "pooling": "concat(0,3)"}, None)


@pytest.fixture
def x():
    generator = np.random.default_rng(0)
    return generator.normal(size=(300, 16)) @ generator.normal(size=(16, 16)) + generator.normal(size=16)


def cosines(rows):
    return unit(rows) @ unit(rows).T


@pytest.mark.parametrize("c", [0, 0.5, 1, 3])
def test_the_cosine_is_that_of_the_bands_weighed(x, c):
    y, z = Whitening().fit_transform(x), TwoBand(c).fit_transform(x)
    np.testing.assert_allclose(z, np.hstack([unit(y[:, :4]), np.sqrt(c) * unit(y[:, 4:])]), atol=1e-12)
    np.testing.assert_allclose(cosines(z), (cosines(y[:, :4]) + c * cosines(y[:, 4:])) / (1 + c), atol=1e-12)


def test_the_head_is_a_quarter_of_the_directions_that_are_not_null(x):
    flat = np.hstack([x[:, :8], x[:, :8]])
    with pytest.warns(bertflow.errors.NullDirectionWarning, match="8 of 16 directions"):
        fitted = TwoBand().fit(flat)
    assert fitted.map.bands == [2, 6]


@pytest.mark.parametrize(("width", "bands"), [(1, [1]), (2, [1, 1]), (3, [1, 2]), (5, [1, 4])])
def test_one_direction_is_always_in_the_head(x, width, bands):
    z = TwoBand(0.25).fit(x[:, :width]).transform(x[:, :width])
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), np.sqrt(1.25 if len(bands) > 1 else 1))
    assert TwoBand().fit(x[:, :width]).map.bands == bands


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_band_of_zeros_stays_zero(dtype):
    # The rows are symmetric, so the mean is exactly zero, and so is what is whitened of it and of e_1.
    x = np.concatenate([np.diag([8.0, 7, 6, 5, 4, 3, 2, 1]), -np.diag([8.0, 7, 6, 5, 4, 3, 2, 1])]).astype(dtype)
    z = TwoBand().fit(x).transform(np.concatenate([np.zeros((1, 8)), np.eye(8)[:1]]).astype(dtype))
    assert not z[0].any()
    assert np.abs(z[1]).tolist() == [1] + 7 * [0]


@pytest.mark.parametrize("length", [1e-30, 1e30])
def test_rows_of_any_length_have_bands_of_unit_length(x, length):
    fitted = TwoBand(1).fit(x)
    rows = (x - x.mean(0)) * length + x.mean(0) * (length > 1)
    z = TwoBand(1).fit(x - x.mean(0)).transform(rows.astype(np.float32))
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), np.sqrt(2), rtol=1e-5)
    assert fitted.transform(np.full((1, 16), 3e38, np.float32)).dtype == np.float32


def test_there_is_no_inverse_and_no_density(x, refusal):
    fitted = TwoBand().fit(x)
    assert refusal(lambda: fitted.inverse_transform(fitted.transform(x)), error=UsageError) == (
        "Bands are scaled to unit length, so the embeddings before are lost and there is no inverse. Use whitening or "
        "ridge, which have one."
    )
    assert not hasattr(fitted, "score_samples")


def test_bands_that_do_not_fit_the_record_are_refused(x):
    module = TwoBand().fit(x).map
    spec = {"class": "BandMap", **module.spec(), "bands": [4, 9]}
    with pytest.raises(UsageError, match=r"Bands of \[4, 9\] coordinates are not the 16"):
        filled_map(spec, {name: tensor.numpy() for name, tensor in module.state_dict().items()})


@pytest.mark.parametrize("one", [Whitening(), Whitening(3), Ridge(1), TwoBand(1)], ids=str)
def test_blocks_are_calibrated_alone(x, one):
    spelling = {"Whitening()": "whitening", "Whitening(n_components=3)": "whitening(3)", "TwoBand(c=1)": "two-band(1)"}
    blocks = Blocks(spelling.get(str(one), "ridge(1)"), blocks=2).fit(x)
    np.testing.assert_allclose(
        blocks.transform(x), np.hstack([one.fit_transform(x[:, :8]), one.fit_transform(x[:, 8:])]), atol=1e-10
    )
    assert isinstance(blocks.map, BandMap if isinstance(one, TwoBand) else AffineMap)


def test_joined_layers_are_reduced_to_what_varies_most_of_both(x):
    y = Blocks(blocks=2).fit_transform(x)
    z = Blocks(n_components=5, blocks=2).fit_transform(x)
    np.testing.assert_allclose(z, Whitening(5).fit_transform(y), atol=1e-9)
    # Of whitened blocks, these are the pairs of canonical variates: variance 1 + correlation.
    one, two = Whitening().fit_transform(x[:, :8]), Whitening().fit_transform(x[:, 8:])
    correlations = np.linalg.svd(one.T @ two / len(x), compute_uv=False)
    covariance = np.linalg.eigvalsh(np.cov(y.T, bias=True))[::-1]
    np.testing.assert_allclose(covariance[:8], 1 + correlations, atol=1e-9)


def test_the_number_of_layers_is_read_off_the_pooling(x):
    moments = Moments.of(x)
    known = Blocks("ridge(1)").fit_moments(moments, CONCAT)
    np.testing.assert_allclose(known.transform(x), Blocks("ridge(1)", blocks=2).fit(x).transform(x))
    np.testing.assert_allclose(
        known.map.weight, block_diag(*(Ridge().fit(half).map.weight for half in (x[:, :8], x[:, 8:])))
    )


def refusals(x):
    moments, mean = Moments.of(x), Provenance({"encoder": "e", "pooling": "mean(1,2)"}, None)
    use = "Use a pooling as concat(1,-1), or whitening without blocks."
    known = "Known: center, standardize, abtt, whitening, ridge, two-band."
    return {
        "bare": (lambda: Blocks().fit(x), "Blocks needs the number of joined layers, which bare embeddings do not "
                 "tell. Fit it with an encoder or a store whose pooling is a concatenation, or give it as "
                 "Blocks(blocks=2)."),
        "stream": (lambda: Blocks().partial_fit(x), "Blocks needs the number of joined layers, which bare embeddings "
                   "do not tell. Fit it with an encoder or a store whose pooling is a concatenation, or give it as "
                   "Blocks(blocks=2)."),
        "mean": (lambda: Blocks().fit_moments(moments, mean), "Blocks calibrates each layer of a concatenation alone, "
                 f"but the pooling is mean(1,2). {use}"),
        "static": (lambda: Blocks().fit_moments(moments, Provenance({"pooling": "static-sif"}, None)),
                   f"Blocks calibrates each layer of a concatenation alone, but the pooling is static-sif. {use}"),
        "odd": (lambda: Blocks(blocks=3).fit(x), "3 layers of one width cannot be 16 wide. Correct blocks=3."),
        "flow": (lambda: Blocks("flow", blocks=2).fit(x), f"Unknown calibrator of blocks 'flow'. {known}"),
        "nested": (lambda: parse_calibrator("blocks(blocks(whitening))"),
                   f"Unknown calibrator of blocks 'blocks'. {known}"),
        "bands": (lambda: Blocks("two-band(1)", 4, 2).fit(x), "two-band(1) is not affine, so the moments do not tell "
                  "which 4 directions to keep. Leave n_components out, or use whitening or ridge."),
        "spelling": (lambda: Blocks(Whitening()).fit(x), "Blocks(calibrator=...) takes a spelling, as 'whitening', got "
                     "Whitening()."),
    }  # fmt: skip


@pytest.mark.parametrize("case", ["bare", "stream", "mean", "static", "odd", "flow", "nested", "bands", "spelling"])
def test_what_blocks_cannot_do_is_refused_in_one_line(x, case, refusal):
    do, message = refusals(x)[case]
    assert refusal(do, error=(UsageError, DataError)) == (message)


def test_an_encoder_of_another_pooling_is_refused_before_it_embeds(tiny_bert):
    encoder = bertflow.TransformerEncoder(tiny_bert, pooling="mean(1,2)", device="cpu")
    encoder.encode = None  # would fail
    with pytest.raises(UsageError, match=r"but the pooling is mean\(1,2\)"):
        Blocks().fit_sentences(encoder, ["a", "b"])


@pytest.mark.parametrize("spelling", ["blocks(whitening)", "blocks(two-band(0.5))", "blocks(ridge(1),16)"])
def test_blocks_of_an_encoder_come_back_from_a_folder(tiny_bert, tmp_path, spelling):
    encoder = bertflow.TransformerEncoder(tiny_bert, pooling="concat(0,3)", device="cpu")
    words = ["man", "dog", "cat", "bird", "house", "garden", "runs", "sleeps", "eats", "big", "red"]
    text = [" ".join(np.random.default_rng(row).choice(words, 1 + row % 7)) for row in range(200)]
    system = bertflow.CalibratedEncoder.fit(encoder, parse_calibrator(spelling), text)
    halves = [bertflow.TransformerEncoder(tiny_bert, pooling=f"mean({layer})", device="cpu") for layer in (0, 3)]
    if spelling == "blocks(whitening)":
        alone = [Whitening().fit_sentences(half, text).transform(half.encode(text)) for half in halves]
        np.testing.assert_allclose(system.encode(text), np.hstack(alone), atol=1e-3)
    assert system.dim == (16 if "16" in spelling else 30)  # one null direction a layer
    system.save(tmp_path / "saved")
    np.testing.assert_array_equal(bertflow.load(tmp_path / "saved", device="cpu").encode(text), system.encode(text))
    again = load_calibrator(tmp_path / "saved" / "calibrator")
    refitted = parse_calibrator(spelling).fit_moments(again.moments_, again.provenance)
    np.testing.assert_array_equal(refitted.transform(encoder.encode(text)), system.encode(text))
