"""A query encoder for an index that stays as it is; NumPy is the second voice."""

import json

import numpy as np
import pytest

import bertflow
from bertflow.calibration.queries import crops, matched
from bertflow.cli import main
from bertflow.data.corpus import Answer
from bertflow.errors import DataError, UsageError
from bertflow.retrieval.index import AnswerIndex
from bertflow.serve.model import ServedModel

TEXTS = [
    f"the {a} {b} the {c} ."
    for a in ("black dog", "cat", "old man")
    for b in ("sleeps in", "eats near")
    for c in ("garden", "big red house")
]
QUERIES = ["a cat", "the man", "big dog"]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))
    return tmp_path


def shift_by_hand(raw, queries=()):
    c = raw.encode_query(crops(TEXTS)).astype(float)
    asked = matched(raw.encode_query(list(queries)).astype(float), c) if queries else c
    return (asked.mean(0) - raw.encode(TEXTS).mean(0)) / 2


def test_queries_are_moved_and_documents_are_not(tiny_bert, files):
    raw = bertflow.TransformerEncoder(tiny_bert, pooling="mean(2)", device="cpu")
    done = bertflow.adapt(raw, [files / "text.txt"], output=files / "query-encoder")
    adapted = bertflow.load(files / "query-encoder", device="cpu")
    np.testing.assert_array_equal(adapted.encode_document(TEXTS), raw.encode(TEXTS))
    moved = raw.encode(QUERIES) - shift_by_hand(raw)
    np.testing.assert_allclose(adapted.encode_query(QUERIES), moved, atol=1e-5)
    np.testing.assert_allclose(adapted.encode(QUERIES), moved, atol=1e-5)  # it is there to ask with
    assert (adapted.role, adapted.identity, done.documents, done.crops) == ("query", raw.identity, len(TEXTS), 2000)
    spread = np.linalg.norm(raw.encode(TEXTS) - raw.encode(TEXTS).mean(0), axis=1)
    assert done.moved == pytest.approx(np.linalg.norm(shift_by_hand(raw)) / np.sqrt(np.square(spread).mean()), rel=1e-4)


def test_text_of_few_words_is_refused(tiny_bert, tmp_path, refusal):
    (tmp_path / "text.txt").write_text("\n".join(f"the dog sleeps {'on ' * n}the garden" for n in range(40)))
    said = refusal(bertflow.adapt, tiny_bert, [tmp_path / "text.txt"], output=tmp_path / "made", error=DataError)
    assert said.startswith("The text has 11 different words per 5,000. With fewer than 100, moved queries")
    assert not (tmp_path / "made").exists()


def test_real_queries_refine_the_crops(tiny_bert, files):
    raw = bertflow.TransformerEncoder(tiny_bert, pooling="mean(2)", device="cpu")
    bertflow.adapt(raw, [files / "text.txt"], queries=files / "queries.txt", output=files / "query-encoder")
    expected = raw.encode(QUERIES) - shift_by_hand(raw, QUERIES)
    np.testing.assert_allclose(bertflow.load(files / "query-encoder").encode(QUERIES), expected, atol=1e-5)


@pytest.mark.parametrize("calibrator", [bertflow.Whitening(4), bertflow.TwoBand()], ids=str)
def test_a_calibrated_encoder_keeps_its_documents(tiny_bert, files, calibrator):
    raw = bertflow.TransformerEncoder(tiny_bert, pooling="mean(2)", device="cpu")
    before = bertflow.CalibratedEncoder.fit(raw, calibrator, TEXTS)
    before.save(files / "before")
    bertflow.adapt(files / "before", [files / "text.txt"], output=files / "query-encoder")
    adapted = bertflow.load(files / "query-encoder", device="cpu")
    np.testing.assert_array_equal(adapted.encode_document(TEXTS), before.encode(TEXTS))
    expected = before.calibrate((raw.encode(QUERIES) - shift_by_hand(raw)).astype(np.float32))
    np.testing.assert_allclose(adapted.encode(QUERIES), expected, atol=1e-4)
    assert adapted.identity == before.identity
    with pytest.raises(UsageError) as refused:
        bertflow.adapt(files / "query-encoder", [files / "text.txt"], output=files / "twice")
    told = f"{calibrator.spelled} moves queries already. Adapt the encoder without it, or use it as it is."
    assert str(refused.value) == told


def test_an_index_is_asked_with_it_as_it_is(tiny_bert, files, told):
    raw = bertflow.TransformerEncoder(tiny_bert, pooling="mean(2)", device="cpu")
    source = {"model": str(tiny_bert), "pooling": "mean(2)"}
    place = files / "a.index"
    AnswerIndex.create(place, raw, [Answer(str(row), text) for row, text in enumerate(TEXTS)], source).close()
    written = place.read_bytes()
    adapted = str(files / "query-encoder")
    assert main(["adapt", str(tiny_bert), "--index", str(place), "--output", adapted]) == 0
    hits = json.loads(told("search", "ask", place, "a cat", "--model", adapted, "--json"))
    x, q = raw.encode(TEXTS).astype(float), raw.encode(["a cat"])[0] - shift_by_hand(raw)
    cosines = x @ q / np.linalg.norm(x, axis=1) / np.linalg.norm(q)
    assert hits[0]["score"] == pytest.approx(cosines.max(), abs=1e-5)
    assert place.read_bytes() == written


def test_a_server_takes_texts_for_queries(tiny_bert, files):
    from bertflow.serve.protocol import Served, parse_request

    bertflow.adapt(tiny_bert, [files / "text.txt"], output=files / "query-encoder")
    model = ServedModel(str(files / "query-encoder"), "cpu")
    assert parse_request(b'{"input": "a cat"}', Served("mine", 4, "", role=model.encoder.role)).role == "query"
    assert parse_request(b'{"input": "a cat"}', Served("mine", 4, "")).role == "document"


@pytest.mark.parametrize("calibrate", [None, "whitening(4)"])
def test_moved_queries_are_compared_with_the_index_as_it_is(tiny_bert, files, calibrate):
    index, adapted = files / "a.index", files / "query-encoder"
    answers = [Answer(str(row), text) for row, text in enumerate(TEXTS)]
    bertflow.build_index(index, answers, tiny_bert, calibrate=calibrate, device="cpu")
    asked = {"a cat": frozenset({"1"}), "the dog sleeps": frozenset({"2"})}
    before = bertflow.evaluate_search(index, asked, resamples=0, device="cpu").rows
    bertflow.adapt(tiny_bert, index=str(index), output=adapted)
    found = bertflow.evaluate_search(index, asked, model=adapted, resamples=0, device="cpu").rows
    assert list(dict.fromkeys(row["system"] for row in found)) == ["index as it is", "query-encoder", "bm25"]
    of = "raw" if calibrate is None else "Whitening(n_components=4)"
    values = [row["value"] for row in before if row["system"] == of]
    assert [row["value"] for row in found if row["system"] == "index as it is"] == values


def test_an_encoder_that_was_saved_with_another_pooling_is_not_opened_as_the_index_was_built(tiny_bert, files, refusal):
    answers = [Answer(str(row), text) for row, text in enumerate(TEXTS)]
    bertflow.build_index(files / "a.index", answers, tiny_bert, pooling="mean(1)", device="cpu")
    for pooling in ("mean(1)", "mean(2)"):
        bertflow.TransformerEncoder(tiny_bert, pooling=pooling, device="cpu").save(files / pooling)
    asked = {"a cat": frozenset({"1"})}
    assert bertflow.evaluate_search(files / "a.index", asked, model=files / "mean(1)", resamples=0, device="cpu").rows
    message = refusal(
        bertflow.evaluate_search, files / "a.index", asked, model=files / "mean(2)", resamples=0, device="cpu"
    )
    assert "pooling" in message
