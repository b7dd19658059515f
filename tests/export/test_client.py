"""The client of /v1/embeddings, against a server that is there."""

import numpy as np
import pytest

from bertflow.errors import DataError, UsageError
from bertflow.export.golden import embed_remotely


def lengths(sentences):
    return np.array([[len(sentence), 1.0] for sentence in sentences], np.float32)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/embeddings"])
def test_vectors_come_in_the_order_asked_for(embedding_server, path):
    with embedding_server(lengths) as (url, seen):
        found = embed_remotely(url + path, ["a", "bb", "ccc"], batch=2)
    np.testing.assert_array_equal(found, lengths(["a", "bb", "ccc"]))
    assert [request[0] for request in seen] == ["/v1/embeddings"] * 2


def test_model_and_key_are_sent(embedding_server):
    with embedding_server(lengths) as (url, seen):
        embed_remotely(url, ["a"], model="mine", key="secret")
    _, headers, request = seen[0]
    assert (request["model"], headers["Authorization"]) == ("mine", "Bearer secret")


def test_what_the_server_refuses_is_quoted(embedding_server):
    with embedding_server(lengths, 413, b"too   many") as (url, _), pytest.raises(UsageError) as error:
        embed_remotely(url, ["a"])
    assert str(error.value) == (f"{url}/v1/embeddings refused with 413: too many. Check model_name, key and batch.")


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"data": []}', b'{"data": [{"index": 0, "embedding": "AAAA"}]}'])
def test_an_answer_without_embeddings_is_refused(embedding_server, body):
    with embedding_server(lengths, 200, body) as (url, _), pytest.raises(DataError, match=r"embedding server"):
        embed_remotely(url, ["a"])


def test_a_server_that_is_not_there_is_said(embedding_server):
    with embedding_server(lengths) as (url, _):
        pass
    with pytest.raises(UsageError, match=r"cannot be reached: .* Is the server running\?"):
        embed_remotely(url, ["a"])


def test_another_scheme_is_refused():
    with pytest.raises(UsageError) as error:
        embed_remotely("file:///etc/passwd", ["a"])
    assert str(error.value) == "url should be http://... or https://..., got 'file:///etc/passwd'."
