"""Documents go through the map, queries are moved to them first; NumPy by hand is the second voice."""

import numpy as np
import pytest
from sklearn.base import clone

from bertflow.calibration.closed_forms import Center, Standardize, Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.queries import crops, matched
from bertflow.calibration.spelling import load_calibrator, parse_system
from bertflow.errors import UnknownNameError
from bertflow.moments import Moments

from ..test_unit_length import unit
from .test_calibrators import CALIBRATORS

FLOW = FlowCalibrator(trainer={"max_steps": 3})


def rows_of(n, dim=6, seed=0, at=5.0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, dim)) * np.arange(1, dim + 1) + at


DOCUMENTS, QUERIES = rows_of(400), rows_of(300, seed=1, at=-3.0)[:, ::-1]
MOVED = QUERIES - QUERIES.mean(0) + DOCUMENTS.mean(0)


@pytest.mark.parametrize("calibrator", [*CALIBRATORS, FLOW], ids=str)
def test_a_query_is_a_document_once_it_is_moved(calibrator):
    fitted = clone(calibrator).fit(DOCUMENTS, queries=QUERIES)
    assert fitted.has_roles
    found = fitted.transform(QUERIES, "query")
    np.testing.assert_allclose(found, fitted.transform(MOVED), atol=1e-5)
    assert np.abs(found - fitted.transform(QUERIES)).max() > 1e-2


@pytest.mark.parametrize("calibrator", [*CALIBRATORS, FLOW], ids=str)
def test_without_queries_both_roles_are_one(calibrator):
    fitted = clone(calibrator).fit(DOCUMENTS)
    assert not fitted.has_roles
    np.testing.assert_array_equal(fitted.transform(QUERIES, "query"), fitted.transform(QUERIES))
    with_queries = clone(calibrator).fit(DOCUMENTS, queries=QUERIES)  # which change no map of documents
    np.testing.assert_array_equal(with_queries.transform(DOCUMENTS), fitted.transform(DOCUMENTS))


def test_rows_of_unit_length_are_moved_on_the_sphere():
    fitted, asked = Center().fit(unit(DOCUMENTS), queries=QUERIES), unit(QUERIES)
    np.testing.assert_allclose(fitted.transform(QUERIES, "query"), asked - asked.mean(0), atol=1e-12)


def test_moments_merge_role_by_role():
    parts = [Moments.of(DOCUMENTS[:100]).with_queries(Moments.of(QUERIES[:50])), Moments.of(DOCUMENTS[100:])]
    parts.append(Moments.of(DOCUMENTS[:10]).with_queries(Moments.of(QUERIES[50:])))
    merged = Moments.merged(parts)
    expected = Moments.of(np.concatenate([DOCUMENTS, DOCUMENTS[:10]]))
    np.testing.assert_allclose(merged.scatter, expected.scatter)
    np.testing.assert_allclose(merged.queries.scatter, Moments.of(QUERIES).scatter)
    np.testing.assert_allclose(merged.gap, QUERIES.mean(0) - expected.mean)


def test_streamed_batches_fit_as_the_whole():
    streamed = Whitening().partial_fit(DOCUMENTS[:150], queries=QUERIES[:200])
    streamed.partial_fit(DOCUMENTS[150:], queries=QUERIES[200:])
    whole = Whitening().fit(DOCUMENTS, queries=QUERIES)
    np.testing.assert_allclose(streamed.transform(QUERIES, "query"), whole.transform(QUERIES, "query"))


def test_what_is_saved_keeps_both_roles(tmp_path):
    fitted = Whitening(n_components=4, power=0.5).fit(DOCUMENTS, queries=QUERIES)
    fitted.save(tmp_path / "roles")
    Whitening().fit(DOCUMENTS).save(tmp_path / "one")
    again, one = (load_calibrator(tmp_path / name) for name in ("roles", "one"))
    np.testing.assert_array_equal(again.transform(QUERIES, "query"), fitted.transform(QUERIES, "query"))
    refitted = parse_system("standardize").refitted(again)
    np.testing.assert_array_equal(
        refitted.transform(QUERIES, "query"), Standardize().fit(DOCUMENTS, queries=QUERIES).transform(QUERIES, "query")
    )
    assert not one.has_roles
    assert again.get_params() == {"n_components": 4, "power": 0.5}


def test_another_role_is_refused(refusal):
    assert refusal(lambda: Center().fit(DOCUMENTS).transform(QUERIES, "question"), error=UnknownNameError).startswith(
        "Unknown role 'question'. Known: document, query."
    )


def test_crops_are_spans_of_two_to_six_words_and_the_same_each_time():
    documents = ["one", " ", *(" ".join(f"{letter}{k}" for k in range(30)) for letter in "abc")]
    drawn = crops(documents, 500)
    assert drawn == crops(documents, 500) != crops(documents, 500, seed=1)
    assert {len(crop.split()) for crop in drawn} == {1, 2, 3, 4, 5, 6}
    assert {crop for crop in drawn if len(crop.split()) == 1} == {"one"}
    assert all(any(crop in document for document in documents) for crop in drawn)


def test_crops_of_no_words_are_refused(refusal):
    assert refusal(crops, ["", "  "]) == "Crops are drawn from documents with words, but none of 2 has any."


def test_matched_crops_move_by_the_role_of_queries_and_not_by_their_topics():
    generator = np.random.default_rng(0)
    topics, role = 4 * generator.normal(size=(10, 20)), np.full(20, 1.0)
    cropped = topics[generator.integers(10, size=1000)] + generator.normal(size=(1000, 20))
    asked = np.concatenate([np.arange(400) % 10, np.zeros(200, int)])  # a third and more of one topic
    queries = topics[asked] + role + generator.normal(size=(600, 20))
    moved = matched(queries, cropped).mean(0) - cropped.mean(0)
    assert np.linalg.norm(moved - role) < 0.3 * np.linalg.norm(queries.mean(0) - cropped.mean(0) - role)
    few = matched(queries[:20], cropped).mean(0) - cropped.mean(0)
    assert 0.3 < few.mean() < 0.7  # half of the way
    np.testing.assert_allclose(np.cov(matched(queries, cropped).T), np.cov(cropped.T))


def test_crops_have_no_numbers_and_no_punctuation():
    assert set(" ".join(crops(["Tent A-139. In stock, 2 cabins!"])).split()) == {"Tent", "In", "stock", "cabins"}
    assert set(crops(["12 345"])) == {"12 345"}


def test_crops_are_spans_of_words_in_any_script():
    hindi = "वह जाती है और गाना गाती है"
    assert all(crop in hindi for crop in crops([hindi], 50))
    chinese = "今天天气很好。我们去公园散步"
    drawn = set(crops([chinese], 500))
    assert "天气很好 我们" in drawn
    assert all(crop.replace(" ", "。") in chinese and 4 <= len(crop.replace(" ", "")) <= 12 for crop in drawn)
