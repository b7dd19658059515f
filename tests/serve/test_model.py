"""Several requests in one pass: each gets what it would get alone."""

import asyncio
import threading

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Center, Whitening
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.serve.metrics import Metrics
from bertflow.serve.model import Batcher, ServedModel, no_prefix
from bertflow.serve.protocol import Found, Limits, RequestError

from .conftest import TEXTS

REQUESTS = [["the dog runs"], ["a cat", "the red bird sings in the garden"], ["the dog runs", "a man"]]


def documents(requests):
    return [("document", texts) for texts in requests]


def opened(folder, truncate=False):
    return ServedModel(str(folder), "cpu", truncate)


def answer(model, requests, **limits):
    """What several requests that come at once are answered, or why they are refused."""

    async def ask():
        return await asyncio.gather(*(batcher.answer(*one) for one in requests), return_exceptions=True)

    batcher = Batcher(model, Limits(**limits), Metrics(None, {}))
    try:
        return asyncio.run(ask())
    finally:
        batcher.close()


def test_joined_requests_are_answered_as_the_encoder_does(folder):
    encoder = CalibratedEncoder.load(folder, device="cpu")
    for (found, *_), texts in zip(answer(opened(folder), documents(REQUESTS)), REQUESTS, strict=True):
        np.testing.assert_allclose(found, encoder.encode(texts), atol=1e-5)


def test_tokens_are_those_of_the_tokenizer(folder):
    # Every word is a token; [CLS] and [SEP] come on top.
    assert [tokens for _, tokens, *_ in answer(opened(folder), documents(REQUESTS))] == [5, 4 + 9, 5 + 4]


def test_a_text_that_is_too_long_spoils_no_other_request(folder, caplog):
    model = opened(folder)
    found = answer(model, documents([REQUESTS[0], ["a cat", "dog " * 15, "dog " * 14], REQUESTS[2]]))
    assert [type(one) for one in found] == [Found, RequestError, Found]
    assert (found[1].status, found[1].code) == (400, "context_length_exceeded")
    assert found[1].message == (
        "input[1] has more than the 16 tokens that this model reads. Shorten it, or start the server with --truncate."
    )
    assert "Cut:" not in caplog.text
    np.testing.assert_allclose(found[2][0], answer(model, documents([REQUESTS[2]]))[0][0], atol=1e-5)


def test_with_truncate_it_is_cut(folder, caplog):
    long, cut = answer(opened(folder, truncate=True), documents([["dog " * 50], ["dog " * 14]]))
    np.testing.assert_allclose(long[0], cut[0], atol=1e-5)
    assert long[1] == 16
    assert "Cut: 1 of 2 sentences, at max_length=16 tokens." in caplog.text


def test_a_request_that_the_model_cannot_do_spoils_no_other(folder, monkeypatch):
    model = opened(folder)
    encode = model.encoder.raw.encode_document

    def picky(texts, progress=False):
        if "a man" in texts:
            raise DataError("No men.")
        return encode(texts)

    monkeypatch.setattr(model.encoder.raw, "encode_document", picky)
    found = answer(model, documents(REQUESTS))
    assert [type(one) for one in found] == [Found, Found, RequestError]
    assert found[2].message == "No men."


def test_a_model_that_fails_ends_its_batch_alone(folder, monkeypatch, caplog):
    model = opened(folder)
    with monkeypatch.context() as patch:
        patch.setattr(model, "embed", lambda *_: 1 / 0)
        found = answer(model, documents(REQUESTS))
    assert {(one.status, one.message) for one in found} == {(500, "The model failed; the server's log says why.")}
    assert "ZeroDivisionError" in caplog.text
    assert "the dog runs" not in caplog.text
    assert len(answer(model, documents(REQUESTS))[0][0]) == 1


def test_a_batch_holds_so_many_requests_and_so_many_tokens(folder, monkeypatch):
    model, asked, first = opened(folder), [], threading.Event()
    embed, count = model.embed, model.count
    monkeypatch.setattr(
        model, "embed", lambda role, requests, watch: asked.append(len(requests)) or embed(role, requests, watch)
    )
    # The first request is counted when all of them wait.
    monkeypatch.setattr(model, "count", lambda role, texts: first.wait(60) and count(role, texts))
    requests = documents([["the dog runs"]] * 7 + [["the dog runs"] * 10] + [["a cat"]] * 2)

    def batches(**limits):
        first.clear()
        asked.clear()
        threading.Timer(0.1, first.set).start()
        assert len(answer(model, requests, **limits)) == 10
        return list(asked)

    assert batches(batch=4) == [4, 4, 2]
    assert batches(tokens=15) == [3, 3, 1, 1, 2], "a request of 50 tokens is embedded alone"
    assert batches() == [10]


@pytest.mark.parametrize(
    ("calibrator", "reason"),
    [
        (None, "the leading coordinates of a raw embedding are no better than the others."),
        (Center(), "this calibrator does not sort its coordinates."),
        (Whitening(), ""),
    ],
)
def test_leading_coordinates_can_be_had_of_whitening_alone(tiny_bert, tmp_path, calibrator, reason):
    raw = TransformerEncoder(tiny_bert, device="cpu")
    raw.save(tmp_path / "model")
    if calibrator:
        CalibratedEncoder.fit(raw, calibrator, TEXTS).save(tmp_path / "model")
    assert no_prefix(opened(tmp_path / "model").encoder) == reason


def test_queries_are_embedded_with_their_own_prompt(tiny_bert, tmp_path):
    encoder = TransformerEncoder(tiny_bert, prompt={"query": "the cat ", "document": "a "}, device="cpu")
    asked = [("query", REQUESTS[0]), ("document", REQUESTS[1]), ("query", REQUESTS[2])]
    encoder.save(tmp_path / "model")
    found = answer(opened(tmp_path / "model"), asked)
    for (x, tokens, *_), (role, texts) in zip(found, asked, strict=True):
        encode = encoder.encode_query if role == "query" else encoder.encode
        np.testing.assert_allclose(x, encode(texts), atol=1e-5)
        assert tokens == encoder.tokenized(texts, role).lengths.sum()


def test_with_chunks_nothing_is_too_long(tiny_bert, tmp_path):
    encoder = TransformerEncoder(tiny_bert, max_length=16, device="cpu", chunks="tokens:14:4")
    encoder.save(tmp_path / "long")
    text = "dog cat " * 20
    ((found, tokens, *_),) = answer(opened(tmp_path / "long"), documents([["a cat", text]]))
    np.testing.assert_allclose(found, encoder.encode(["a cat", text]), atol=1e-5)
    assert tokens == 4 + 40 + 3 * 4 + 4 * 2, "those that chunks share are read twice"
