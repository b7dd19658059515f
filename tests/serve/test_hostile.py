"""Clients that are slow, wrong or malicious: each is told so or closed, and the next honest one is answered."""

import json
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertflow.serve.protocol import Limits, RequestError, Served, Wanted, parse_request

PATIENCE = 0.3
LIMITS = {"texts": 20, "characters": 500, "body": 20_000, "connections": 12, "patience": PATIENCE, "waiting": 6}
ASK = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSE = b"Connection: close\r\n"


def post(body, *headers):
    """A request with a body."""
    return ASK + CLOSE + b"".join(headers) + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def chunks(n, *more):
    """A request whose body comes in n chunks of 1,000 bytes, without its length."""
    return ASK + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n%s\r\n" % (b" " * 1000) * n + b"".join(more)


HTTP = {
    "nothing": (b"", []),
    "half a header": (b"POST /v1/embeddings HTTP/1.1\r\nHos", []),
    "half a body": (ASK + b'Content-Length: 100\r\n\r\n{"input": ', [408]),
    "half a chunk": (ASK + b'Transfer-Encoding: chunked\r\n\r\nff\r\n{"input": ', [408]),
    "an endless header": (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, [400]),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, [400]),
    "an endless line": (b"G" * 100_000, [400]),
    "a large body": (post(b" " * 50_000), [413]),
    "a large body in chunks": (chunks(50, b"0\r\n\r\n"), [413]),
    "a large body that turns to garbage": (chunks(50, b"garbage\r\n"), [413]),
    "a huge length": (ASK + CLOSE + b"Content-Length: 999999999999999999\r\n\r\n{}", [413]),
    "a length beyond all": (ASK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}", [400]),
    "a huge length that asks first": (
        ASK + CLOSE + b"Expect: 100-continue\r\nContent-Length: 999999999999\r\n\r\n",
        [413],
    ),
    "a negative length": (ASK + b"Content-Length: -1\r\n\r\n{}", [400]),
    "a length in words": (ASK + b"Content-Length: ten\r\n\r\n{}", [400]),
    "two lengths": (ASK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", [400]),
    "a wrong chunk": (ASK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", [400]),
    "another encoding": (ASK + b"Transfer-Encoding: gzip\r\n\r\n{}", [501]),
    "HTTP/0.9": (b"GET /health\r\n\r\n", [400]),
    "HTTP/1.0": (b"GET /health HTTP/1.0\r\n\r\n", [200]),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    "HTTP/9": (b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n", [400]),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2, [400]),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", [400]),
    "a websocket": (HEALTH[:-2] + CLOSE + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", [200]),
    "bytes in the path": (b"GET /\xff\x00 HTTP/1.1\r\nHost: x\r\n\r\n", [400]),
    "odd characters in the path": (b"GET /%00%ff%d8 HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n", [404]),
    "a long path": (b"GET /" + b"a" * 30_000 + b" HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n", [404]),
    "a path out of the folder": (b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n", [404]),
    "pipelining": (HEALTH * 30 + post(b'{"input": "the dog"}'), [200] * 31),
    "pipelined garbage": (HEALTH + b"garbage\r\n\r\n", [200, 400]),
    **{
        method: (f"{method} /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(), [405])
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "HEAD", "NONSENSE")
    },
}
"""What is sent, and the statuses that come back before the connection is closed."""
JSON = {
    "no JSON": b"{'input': 'a'}",
    "deep JSON": b'{"input": ' + b"[" * 9_000 + b"]" * 9_000 + b"}",
    "deep JSON, elsewhere": b'{"input": "a", "encoding_format": ' + b"[" * 900 + b"]" * 900 + b"}",
    "deep objects": b'{"a":' * 900 + b"1" + b"}" * 900,
    "no UTF-8": b'{"input": "\xff\xfe"}',
    "NaN": b'{"input": NaN}',
    "infinity": b'{"input": "a", "dimensions": Infinity}',
    "a number of 9,000 digits": b'{"input": "a", "dimensions": ' + b"9" * 9_000 + b"}",
    "a fraction": b'{"input": "a", "dimensions": 2.5}',
    "half of a surrogate pair": b'{"input": "\\ud83d"}',
    "half a pair as model": b'{"input": "a", "model": "\\ud83d"}',
    "empty list": b'{"input": []}',
    "empty text": b'{"input": [""]}',
    "an object": b'{"input": {"a": "b"}}',
    "a list of lists": b'{"input": [["a"], ["b"]]}',
    "wrong types": b'{"input": [true, null, 1.5]}',
    "10,000 tiny texts": json.dumps({"input": ["a"] * 10_000}).encode(),
    "a text of too many characters": json.dumps({"input": "a" * 10_000}).encode(),
    "a long name": json.dumps({"input": "a", "model": "m" * 10_000}).encode(),
    "wrong format": b'{"input": "a", "encoding_format": {}}',
    "NUL alone": b'{"input": "\\u0000"}',
}

pytestmark = pytest.mark.filterwarnings("ignore::bertflow.errors.NullDirectionWarning")


@pytest.fixture(scope="module")
def server(serving):
    with serving(**LIMITS) as client:
        yield client


@pytest.fixture(autouse=True)
def honest(request, no_errors):
    """After each test here an honest request is answered, and nothing was logged."""
    yield
    if "server" in request.fixturenames:
        assert request.getfixturevalue("server").embed("the dog runs").shape == (1, 6)


@pytest.mark.parametrize("case", HTTP)
def test_what_is_no_request_is_refused_or_closed(server, case):
    content, statuses = HTTP[case]
    assert server.send(content) == statuses


@pytest.mark.parametrize("case", JSON)
def test_what_is_no_question_is_refused(server, case):
    assert set(server.send(post(JSON[case]))) <= {400, 404, 413, 200 if case == "NUL alone" else 400}
