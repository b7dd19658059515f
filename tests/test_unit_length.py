"""A map that was fitted on rows of unit length brings every row to unit length first, wherever it runs.

A cosine collection of a vector database holds rows of unit length, and an encoder makes rows that have a length of
their own. Whitening that was fitted on the first found 0.45 % of answers for queries like the second.
"""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

import bertflow
from bertflow.calibration.blocks import Blocks
from bertflow.calibration.closed_forms import AllButTheTop, Center, Ridge, Standardize, TwoBand, Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.saving import RECORD
from bertflow.export.approximation import linearize
from bertflow.export.golden import Golden, explain
from bertflow.export.st_folder import load_sentence_transformer
from bertflow.export.targets import write_export
from bertflow.integrations.langchain import BertflowEmbeddings
from bertflow.maps import UnitMap
from bertflow.moments import Moments

from .texts import WITH_ARTICLES, drawn

STEPS = {"max_steps": 3, "accelerator": "cpu"}
CLOSED = [Center(), Standardize(), AllButTheTop(2), Whitening(), Whitening(3), Ridge(), TwoBand(), Blocks(blocks=2)]
CALIBRATORS = [*CLOSED, FlowCalibrator(trainer=STEPS), FlowCalibrator(trainer=STEPS, purpose="search")]


def raw_rows(n=400, dim=6):
    generator = np.random.default_rng(0)
    return generator.normal(size=(n, dim)) * np.arange(1, dim + 1) + 5


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(params=CALIBRATORS, ids=[f"{number}-{type(one).__name__}" for number, one in enumerate(CALIBRATORS)])
def calibrator(request):
    return clone(request.param)


def test_raw_rows_are_mapped_as_those_of_unit_length(calibrator, tmp_path):
    x = raw_rows()
    z = calibrator.fit(unit(x)).transform(x)
    np.testing.assert_allclose(z, calibrator.transform(unit(x)), atol=2e-5)
    calibrator.save(tmp_path / "saved")
    opened = bertflow.load_calibrator(tmp_path / "saved")
    assert opened.moments_.unit
    np.testing.assert_array_equal(opened.transform(x), z)


def test_rows_of_other_lengths_are_mapped_as_ever(calibrator, tmp_path):
    calibrator.fit(raw_rows())
    assert not isinstance(calibrator.map, UnitMap)
    calibrator.save(tmp_path / "saved")
    assert "UnitMap" not in (tmp_path / "saved" / RECORD).read_text("utf-8")


def test_it_is_whitening_after_scikit_learns_normalizer():
    x = raw_rows()
    theirs = make_pipeline(Normalizer(), PCA(whiten=True)).fit(x)
    ours = Whitening().fit(unit(x)).transform(x) * np.sqrt((len(x) - 1) / len(x))
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs.transform(x)), atol=1e-10)


@pytest.mark.parametrize("calibrator", [Center(), Whitening(), Ridge(), FlowCalibrator(trainer=STEPS)], ids=str)
def test_what_comes_back_has_unit_length(calibrator):
    x = raw_rows()
    calibrator.fit(unit(x))
    np.testing.assert_allclose(calibrator.inverse_transform(calibrator.transform(x)), unit(x), atol=1e-4)


def test_densities_compare_rows_of_unit_length():
    x = raw_rows()
    for calibrator in (Whitening().fit(unit(x)), FlowCalibrator(trainer=STEPS).fit(unit(x))):
        np.testing.assert_allclose(calibrator.score_samples(x), calibrator.score_samples(unit(x)), rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(calibrator.sample(5), axis=1), 1, rtol=1e-5)


def test_a_row_of_zeros_stays_one(calibrator):
    x = unit(raw_rows())
    x[7] = 0  # an empty text, as databases keep them
    calibrator.fit(x)
    assert isinstance(calibrator.map, UnitMap)
    assert np.isfinite(calibrator.transform(x)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_has_unit_length(dtype):
    kept = torch.from_numpy(unit(raw_rows(dim=384))).to(dtype).double().numpy()
    assert Moments.of(kept).unit


@pytest.mark.parametrize(("length", "known"), [(1.004, True), (1.006, False), (0.996, True), (0.994, False)])
def test_one_row_of_another_length_is_enough(length, known):
    x = unit(raw_rows())
    x[123] *= length
    assert Moments.of(x).unit is known


def test_the_fact_survives_merging():
    x = unit(raw_rows())
    x[:150] = 0
    whole, parts = Moments.of(x), [Moments.of(part) for part in np.array_split(x, 8)]
    assert Moments.merged(parts).lengths == whole.lengths
    assert whole.lengths[0] > 0.99, "a row of zeros has no direction to count"
    nothing = Moments(0, np.zeros(6), np.zeros((6, 6)))
    assert nothing.merge(whole).lengths == whole.merge(nothing).lengths == whole.lengths
    assert not whole.merge(Moments.of(raw_rows())).unit
    unknown = Moments(whole.n, whole.mean, whole.scatter)
    assert whole.merge(unknown).lengths is unknown.merge(whole).lengths is None
    assert Moments.of(np.zeros((3, 6))).lengths == (0.0, 0.0)


def test_batches_are_known_when_all_have_been_seen():
    x = raw_rows()
    whitening = Whitening().partial_fit(unit(x[:200]))
    np.testing.assert_allclose(whitening.transform(x), whitening.transform(unit(x)), atol=1e-9)
    assert not isinstance(whitening.partial_fit(x[200:]).map, UnitMap)


def test_every_closed_form_is_refitted_with_it():
    x = raw_rows()
    kept = Whitening().fit(unit(x)).moments_
    for calibrator in CLOSED:
        again = clone(calibrator).fit_moments(kept)
        np.testing.assert_array_equal(again.transform(x), clone(calibrator).fit(unit(x)).transform(x))


def test_lengths_that_cannot_be_are_refused(tmp_path, refusal):
    arrays = Moments.of(raw_rows()).arrays()
    assert "and lengths of" in refusal(lambda: Moments.from_arrays({**arrays, "lengths": np.array([2.0, 1.0])}))


# Every exit: documents are what the database holds, of unit length; queries are what the encoder makes.


@pytest.fixture(scope="module")
def text():
    return list(dict.fromkeys(drawn(WITH_ARTICLES, 240, 0, 2, 12)))


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return bertflow.TransformerEncoder(tiny_bert, pooling="mean(2)", max_length=48, device="cpu")


KINDS = {"whitening": Whitening(), "two-band": TwoBand(), "flow": FlowCalibrator(trainer=STEPS)}


@pytest.fixture(scope="module")
def systems(encoder, text):
    """A calibrated encoder by each calibrator, and the documents as the database calibrates them."""
    stored = unit(encoder.encode(text))  # bare vectors: no word of encoder or text
    made = {}
    for name, calibrator in KINDS.items():
        fitted = clone(calibrator).fit(stored)
        made[name] = bertflow.CalibratedEncoder(encoder, fitted), fitted.transform(stored)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_with_it_embeds_as_the_database_is(systems, text, kind, tmp_path):
    system, documents = systems[kind]
    np.testing.assert_allclose(system.encode(text), documents, atol=1e-4)
    system.save(tmp_path / "saved")
    np.testing.assert_array_equal(bertflow.load(tmp_path / "saved", device="cpu").encode(text), system.encode(text))
    assert BertflowEmbeddings(system).embed_query(text[3]) == pytest.approx(documents[3], abs=1e-4)


@pytest.mark.parametrize("layout", ["legacy", "modern"])
def test_sentence_transformers_normalizes_before_its_dense(systems, text, layout, tmp_path):
    system, documents = systems["whitening"]
    folder = write_export(system, tmp_path / "out", "sentence-transformers", layout).folder
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    assert [row["type"].rpartition(".")[2] for row in modules] == ["Transformer", "Pooling", "Normalize", "Dense"]
    for loaded in (SentenceTransformer(str(folder), device="cpu"), load_sentence_transformer(folder, "cpu")):
        np.testing.assert_allclose(loaded.encode(text), documents, atol=1e-4)


@pytest.mark.parametrize("kind", ["two-band", "flow"])
def test_sentence_transformers_runs_maps_that_are_not_affine(systems, text, kind, tmp_path):
    system, documents = systems[kind]
    folder = write_export(system, tmp_path / "out", "sentence-transformers").folder
    np.testing.assert_allclose(load_sentence_transformer(folder, "cpu").encode(text), documents, atol=1e-4)


def test_a_server_that_leaves_the_normalize_out_is_named(systems, encoder, tmp_path):
    system, _ = systems["whitening"]
    golden = Golden.read(write_export(system, tmp_path / "out", "sentence-transformers").folder)
    with torch.inference_mode():
        wrong = system.calibrator.map.inner(torch.from_numpy(encoder.encode(golden.sentences))).numpy()
    found = explain(golden, wrong)
    assert not found.right
    assert found.text == "The server differs: it does not scale vectors to unit length before the calibrator."


def test_a_stand_in_of_a_flow_scales_as_well(systems, text, tmp_path):
    system, _ = systems["flow"]
    (tmp_path / "text.txt").write_text("\n".join(text), "utf-8")
    linear, _ = linearize(system, tmp_path / "text.txt")
    assert isinstance(linear.calibrator.map, UnitMap)
    longer = 7 * np.float32(linear.raw.encode(text[:5]))
    np.testing.assert_allclose(linear.calibrate(longer), linear.encode(text[:5]), atol=1e-5)


def test_the_rows_of_a_model_that_normalizes_go_with_the_encoder_that_drops_it(tiny_bert, text, tmp_path):
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    theirs = SentenceTransformer(modules=[Transformer(str(tiny_bert)), Pooling(16), Normalize()], device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    stored = theirs.encode(text)
    fitted = Whitening().fit(stored)
    raw = bertflow.load(tmp_path / "theirs", device="cpu")
    assert not Moments.of(raw.encode(text)).unit
    np.testing.assert_allclose(
        bertflow.CalibratedEncoder(raw, fitted).encode(text), fitted.transform(stored), atol=1e-4
    )
