"""The client of /v1/embeddings, against a server that is there."""

import socket
from contextlib import contextmanager
from threading import Thread

import numpy as np
import pytest

from bertflow.errors import DataError, UsageError
from bertflow.export import client
from bertflow.export.client import embed_remotely, listed_model

from .conftest import embedding_server


def lengths(sentences):
    return np.array([[len(sentence), 1.0] for sentence in sentences], np.float32)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/embeddings"])
def test_vectors_come_in_the_order_asked_for(path):
    with embedding_server(lengths) as (url, seen):
        found = embed_remotely(url + path, ["a", "bb", "ccc"], batch=2)
    assert (found.rows, found.refusal) == ([0, 1, 2], None)
    np.testing.assert_array_equal(found.vectors, lengths(["a", "bb", "ccc"]))
    assert [request[0] for request in seen] == ["/v1/embeddings"] * 2


def test_model_and_key_are_sent():
    with embedding_server(lengths) as (url, seen):
        embed_remotely(url, ["a"], model="mine", key="secret")
    _, headers, request = seen[0]
    assert (request["model"], headers["Authorization"]) == ("mine", "Bearer secret")


def test_what_the_server_refuses_is_quoted():
    with embedding_server(lambda _: b"too \x1b[2J  many") as (url, _), pytest.raises(UsageError) as error:
        embed_remotely(url, ["a"])
    assert str(error.value) == (
        f"{url}/v1/embeddings refused with 400: too ?[2J many. Check model_name, key and batch."
    )


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"{}",
        b'{"data": []}',
        b'{"data": [{"index": 0, "embedding": []}]}',
        b'{"data": [{"index": 1, "embedding": [1]}]}',
        b'{"data": [{"index": 0, "embedding": "AAAA"}]}',
    ],
)
def test_an_answer_without_embeddings_is_refused(body):
    with answering(answer(body)) as url, pytest.raises(DataError, match=r"embedding server"):
        embed_remotely(url, ["a"])


def test_a_server_that_is_not_there_is_said():
    with embedding_server(lengths) as (url, _):
        pass
    with pytest.raises(UsageError, match=r"cannot be reached: .* Is the server running\?"):
        embed_remotely(url, ["a"])


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "localhost:8000", "http://", "http://[::1", "http://a:b", "http://a b", "http://é\n"]
)
def test_what_is_no_address_is_refused(url, refusal):
    assert refusal(embed_remotely, url, ["a"], error=UsageError) == (
        f"url should be http://... or https://..., got {url!r}."
    )


def test_a_key_with_a_line_break_is_not_shown(refusal):
    assert "sec" not in refusal(embed_remotely, "http://127.0.0.1:9", ["a"], error=UsageError, key="sec\nret")


def test_what_a_server_refuses_alone_is_left_out(refusal):
    def short(sentences):
        return b"too long" if max(map(len, sentences)) > 3 else lengths(sentences)

    with embedding_server(short) as (url, _):
        found = embed_remotely(url, ["a", "long", "bb", "ccc", "longer"], batch=3)
        assert found.rows == [0, 2, 3]
        np.testing.assert_array_equal(found.vectors, lengths(["a", "bb", "ccc"]))
        assert "refused with 400: too long" in str(found.refusal)
        assert "too long" in refusal(embed_remotely, url, ["long", "longer"], error=UsageError)
    with embedding_server(lambda sentences: b"too many" if len(sentences) > 1 else lengths(sentences)) as (url, _):
        assert embed_remotely(url, ["a", "long", "bb"]).refusal is None


def test_the_model_is_the_one_that_is_listed():
    with embedding_server(lengths) as (url, _):
        assert listed_model(url) == "bertflow"
    with answering(answer(b'{"data": [{"id": "mine"}]}')) as url:
        assert listed_model(url) == "mine"


@contextmanager
def answering(content):
    """A server that answers everything with some bytes; with None it does not answer."""

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if content is None:
                kept.append(connection)
                continue
            with connection:
                request = connection.recv(2**16)
                if b"POST" in request and not request.endswith(b"}"):
                    connection.recv(2**16)
                connection.sendall(content)

    kept = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    for connection in kept:
        connection.close()


def answer(body, status=b"200 OK", headers=b""):
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, headers, len(body), body)


ANSWERS = {
    "garbage": (b"garbage\r\n\r\n", "does not answer in HTTP: BadStatusLine. Is the port right, and http or https?"),
    "nothing": (b"", "does not answer in HTTP: RemoteDisconnected. Is the port right, and http or https?"),
    "silence": (None, "did not answer within 0.3 seconds. Is it an embedding server?"),
    "a redirect": (
        answer(b"", b"302 Found", b"Location: https://example.org/\r\n"),
        "answers from elsewhere: 'https://example.org/'. Give that address as url.",
    ),
    "a wrong key": (answer(b"no", b"401 Unauthorized"), "refused with 401: no. Check model_name, key and batch."),
    "half an answer": (answer(b"[" * 9).replace(b"9", b"99"), "is damaged: it should hold JSON"),
    "another encoding": (answer(b"\xff\xfe"), "is damaged: it should hold JSON"),
    "deep JSON": (answer(b"[" * 9_000), "is damaged: it should hold JSON"),
    "too much": (answer(b" " * 20_000), "answered with more than 10000 bytes. Is it an embedding server?"),
    "an endless header": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "does not answer in HTTP: LineTooLong."),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_whatever_is_answered_becomes_one_line(monkeypatch, case):
    monkeypatch.setattr(client, "TIMEOUT", 0.3 if case == "silence" else 30)
    monkeypatch.setattr(client, "LARGEST", 10_000)
    content, message = ANSWERS[case]
    with answering(content) as url, pytest.raises((UsageError, DataError)) as error:
        embed_remotely(url, ["a"])
    assert str(error.value).startswith(f"{url}/v1/embeddings {message}")
    assert "\n" not in str(error.value)


def test_tls_where_there_is_none_is_said():
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url, pytest.raises(UsageError) as error:
        embed_remotely(url.replace("http:", "https:"), ["a"])
    assert "cannot be reached: [SSL" in str(error.value)
    assert str(error.value).endswith("Does it speak TLS, with a certificate that is trusted here?")


@pytest.mark.parametrize("number", [b"NaN", b"1e400", b"1e39"])
def test_what_is_not_finite_comes_as_it_is(number):
    with answering(answer(b'{"data": [{"index": 0, "embedding": [1, %s]}]}' % number)) as url:
        assert not np.isfinite(embed_remotely(url, ["a"]).vectors).all()
