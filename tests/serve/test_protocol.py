"""Requests and answers without a server: what is read, what is refused, what is written."""

import base64
import json

import numpy as np
import pytest

from bertflow.errors import UsageError
from bertflow.serve.protocol import (
    Limits,
    RequestError,
    Served,
    Wanted,
    answer_body,
    key_digest,
    parse_request,
)

pytest.importorskip("starlette", reason="the serve extra is not installed")
from bertflow.serve.server import require_key

SERVED = Served("mine", 4, "", limits=Limits(texts=3, characters=100_000))
FLOW = Served("mine", 4, "a flow mixes.")
X = np.array([[3, 0, 4, 0], [0.1, 0.2, 0.3, 0.4]], np.float32)


def parse(request, served=SERVED):
    return parse_request(request if isinstance(request, bytes) else json.dumps(request).encode(), served)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"input": "text"}, Wanted(("text",), "float", 4)),
        ({"input": ["a", "b"], "model": "mine", "user": "me"}, Wanted(("a", "b"), "float", 4)),
        ({"input": "text", "encoding_format": "base64"}, Wanted(("text",), "base64", 4)),
        ({"input": "text", "encoding_format": None, "dimensions": None}, Wanted(("text",), "float", 4)),
        ({"input": "text", "dimensions": 2}, Wanted(("text",), "float", 2)),
        ({"input": "text", "input_type": "query"}, Wanted(("text",), "float", 4, "query")),
        ({"input": "text", "input_type": "passage"}, Wanted(("text",), "float", 4, "document")),
    ],
)
def test_what_is_wanted_is_read(request_, expected):
    assert parse(request_) == expected


NO_TOKENS = (
    "input should be text, got token ids, which may be those of another tokenizer. Send the text itself "
    "(in LangChain: check_embedding_ctx_length=False)."
)
REFUSED = [
    (b"{", 400, "The body should be JSON, but cannot be read: "),
    (b"\xff\xfe\x00", 400, "The body should be JSON, but cannot be read: "),
    (b"[" * 100_000, 400, "The body should be JSON, but cannot be read: "),
    ([1], 400, "The body should be a JSON object with the key input, got a list."),
    ({}, 400, "input should be a text or a list of texts, got nothing."),
    ({"input": 3}, 400, "input should be a text or a list of texts, got a number."),
    ({"input": {"text": "a"}}, 400, "input should be a text or a list of texts, got an object."),
    ({"input": []}, 400, "input should hold at least one text, got an empty list."),
    ({"input": ""}, 400, "input[0] is empty. Leave it out."),
    ({"input": ["a", " \n"]}, 400, "input[1] is empty. Leave it out."),
    ({"input": ["a", "\0\u200b"]}, 400, "input[1] is empty. Leave it out."),
    ({"input": ["a", None]}, 400, "input[1] should be a text, got nothing."),
    ({"input": [1, 2, 3]}, 400, NO_TOKENS),
    ({"input": [[1, 2], [3]]}, 400, NO_TOKENS),
    ({"input": ["a"] * 4}, 400, "input may hold 3 texts, got 4. Send several requests."),
    (b'{"input": "\\ud83d"}', 400, "input[0] is not valid text: it holds half of a surrogate pair."),
    ({"input": ["a", "a" * 100_001]}, 400, "input[1] has 100001 characters, and 100000 are read at most. Shorten it"),
    ({"input": "a", "model": "other"}, 404, "The model 'other' is not served here; this is 'mine'."),
    ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format should be one of float, base64, got 'hex'."),
    ({"input": "a", "encoding_format": ["float"]}, 400, "encoding_format should be one of float, base64, got ['"),
    ({"input": "a", "encoding_format": ""}, 400, "encoding_format should be one of float, base64, got ''."),
    ({"input": "a", "dimensions": 5}, 400, "dimensions should be from 1 to 4, got 5."),
    ({"input": "a", "dimensions": 0}, 400, "dimensions should be from 1 to 4, got 0."),
    ({"input": "a", "dimensions": True}, 400, "dimensions should be from 1 to 4, got True."),
    ({"input": "a", "dimensions": "2"}, 400, "dimensions should be from 1 to 4, got '2'."),
]


@pytest.mark.parametrize(("request_", "status", "message"), REFUSED, ids=[str(row[0])[:40] for row in REFUSED])
def test_what_cannot_be_answered_is_refused_in_openais_form(request_, status, message):
    with pytest.raises(RequestError) as error:
        parse(request_)
    body = json.loads(error.value.body())["error"]
    assert error.value.status == status
    assert body["message"].startswith(message)
    assert (set(body), body["type"]) == ({"message", "type", "param", "code"}, "invalid_request_error")


def test_of_a_flow_the_full_width_alone_can_be_asked_for():
    assert parse({"input": "text", "dimensions": 4}, FLOW).dimensions == 4
    with pytest.raises(RequestError) as error:
        parse({"input": "a", "dimensions": 2}, FLOW)
    assert error.value.message == "dimensions can only be 4 here: a flow mixes. Leave it out."


def test_floats_read_back_as_they_were():
    answer = json.loads(answer_body(SERVED, Wanted(("a", "b"), "float", 4), X, 7))
    assert [row["index"] for row in answer["data"]] == [0, 1]
    np.testing.assert_array_equal(np.float32([row["embedding"] for row in answer["data"]]), X)
    assert (answer["object"], answer["model"]) == ("list", "mine")
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


def test_base64_is_little_endian_float32():
    answer = json.loads(answer_body(SERVED, Wanted(("a", "b"), "base64", 4), X, 7))
    rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in answer["data"]]
    np.testing.assert_array_equal(rows, X)


def test_leading_coordinates_are_scaled_after_they_are_cut():
    served = Served("mine", 4, "", normalize=True)
    answer = json.loads(answer_body(served, Wanted(("a", "b"), "float", 2), X, 7))
    expected = X[:, :2] / np.linalg.norm(X[:, :2], axis=1, keepdims=True)
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]], expected, rtol=1e-6)


LOCKED = Served("mine", 4, "", key=key_digest("secret"))


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret", "Bearer  secret "])
def test_a_key_lets_in(header):
    require_key(header, LOCKED)


@pytest.mark.parametrize("header", ["", "secret", "Bearer", "Bearer ", "Bearer secret2", "Basic secret", "Bearer \xff"])
def test_without_the_key_nobody_is_let_in(header):
    require_key(header, SERVED)
    with pytest.raises(RequestError) as error:
        require_key(header, LOCKED)
    assert (error.value.status, error.value.code) == (401, "invalid_api_key")
    assert "secret" not in error.value.message


def test_a_key_is_not_shown():
    assert "secret" not in repr(LOCKED)
    assert "key" not in repr(LOCKED)


@pytest.mark.parametrize("limit", [{"batch": 0}, {"patience": float("inf")}, {"seconds": float("nan")}])
def test_a_limit_limits(limit, refusal):
    assert "Limits must be above zero and finite" in refusal(Limits, error=UsageError, **limit)
