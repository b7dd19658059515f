"""Clients that are slow, wrong or malicious: each is told so or closed, and the next honest one is answered."""

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertflow.serve.protocol import Limits, RequestError, Served, Wanted, parse_request

PATIENCE = 0.3
LIMITS = {"texts": 20, "characters": 500, "body": 60_000, "connections": 12, "patience": PATIENCE, "waiting": 6}
ASK = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLOSE = b"Connection: close\r\n"


def post(body, *headers):
    """A request with a body."""
    return ASK + CLOSE + b"".join(headers) + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def chunks(n, *more, headers=CLOSE):
    """A request whose body comes in n chunks of 1,000 bytes, without its length."""
    return ASK + headers + b"Transfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n%s\r\n" % (b" " * 1000) * n + b"".join(more)


HTTP = {
    "nothing": (b"", []),
    "half a header": (b"POST /v1/embeddings HTTP/1.1\r\nHos", []),
    "half a body": (ASK + b'Content-Length: 100\r\n\r\n{"input": ', [408]),
    "half a chunk": (ASK + b'Transfer-Encoding: chunked\r\n\r\nff\r\n{"input": ', [408]),
    "an endless header": (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000, [400]),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, [400]),
    "an endless line": (b"G" * 100_000, [400]),
    "a large body": (post(b" " * 100_000), [413]),
    "a large body in chunks": (chunks(100, b"0\r\n\r\n"), [413]),
    "a huge length": (ASK + CLOSE + b"Content-Length: 999999999999999999\r\n\r\n{}", [413]),
    "a length beyond all": (ASK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}", [400]),
    "a huge length that asks first": (
        ASK + CLOSE + b"Expect: 100-continue\r\nContent-Length: 999999999999\r\n\r\n",
        [413],
    ),
    "a negative length": (ASK + b"Content-Length: -1\r\n\r\n{}", [400]),
    "a length in words": (ASK + b"Content-Length: ten\r\n\r\n{}", [400]),
    "a length and chunks": (
        ASK + b'Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{"input": "dog"}\r\n0\r\n\r\n' + HEALTH,
        [200],
    ),
    "two lengths": (ASK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", [400]),
    "a wrong chunk": (ASK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", [400]),
    "another encoding": (ASK + b"Transfer-Encoding: gzip\r\n\r\n{}", [400]),
    "HTTP/0.9": (b"GET /health\r\n\r\n", [400]),
    "HTTP/1.0": (b"GET /health HTTP/1.0\r\n\r\n", [200]),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [404, 400]),
    "HTTP/9": (b"GET /health HTTP/9.9\r\nHost: localhost\r\n" + CLOSE + b"\r\n", [200]),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2, [400]),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", [400]),
    "a websocket": (HEALTH[:-2] + CLOSE + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", [200]),
    "bytes in the path": (b"GET /\xff\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "odd characters in the path": (b"GET /%00%ff%d8 HTTP/1.1\r\nHost: localhost\r\n" + CLOSE + b"\r\n", [404]),
    "a long path": (b"GET /" + b"a" * 30_000 + b" HTTP/1.1\r\nHost: localhost\r\n" + CLOSE + b"\r\n", [404]),
    "a path out of the folder": (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n" + CLOSE + b"\r\n", [404]),
    "pipelining": (HEALTH * 30 + post(b'{"input": "the dog"}'), [200] * 31),
    "pipelined garbage": (HEALTH + b"garbage\r\n\r\n", [200, 400]),
    **{
        method: (f"{method} /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(), [405])
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "HEAD", "NONSENSE")
    },
}
"""What is sent, and the statuses that come back before the connection is closed."""
JSON = {
    "deep JSON, elsewhere": b'{"input": "a", "encoding_format": ' + b"[" * 900 + b"]" * 900 + b"}",
    "deep objects": b'{"a":' * 900 + b"1" + b"}" * 900,
    "a number of 9,000 digits": b'{"input": "a", "dimensions": ' + b"9" * 9_000 + b"}",
    "half a pair as model": b'{"input": "a", "model": "\\ud83d"}',
    "a long name": json.dumps({"input": "a", "model": "m" * 10_000}).encode(),
}


def read(connection, end):
    """Read an answer as far as to its end."""
    answer = b""
    while not answer.endswith(end):
        part = connection.recv(2**16)
        assert part, answer
        answer += part


def until(true):
    """Wait for something."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


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
    assert server.send(post(JSON[case])) in ([400], [404])


PAGE = (
    "The page 'http://evil.example' is not of this server. Start it with --allow_host and the page's host, if it may "
    "ask."
)
NAME = "This server is not called {!r}. Call it by its address, or start it with --allow_host and that name."
OF_A_PAGE = {
    "another host": ({"Host": "evil.example:8000"}, NAME.format("evil.example:8000")),
    "another page": ({"Origin": "http://evil.example"}, PAGE),
    "a page of another port": ({"Origin": "http://127.0.0.1:1"}, PAGE.replace("evil.example", "127.0.0.1:1")),
    "a page without a name": ({"Origin": "null"}, PAGE.replace("http://evil.example", "null")),
    "an address that is not its own": ({"Host": "10.0.0.1"}, NAME.format("10.0.0.1")),
    "a broken host": ({"Host": "[::1"}, NAME.format("[::1")),
}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/similarity", "/health", "/metrics", "/"])
@pytest.mark.parametrize("case", OF_A_PAGE)
def test_what_a_page_of_somebody_else_asks_is_refused(server, path, case):
    headers, message = OF_A_PAGE[case]
    body = {"input": "the dog", "query": "the cat"} if path.startswith("/v1") else None
    status, answer = server.ask(path, body, headers=headers)
    assert (status, answer["error"]["message"]) == (403, message)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_page_may_send_unasked_is_refused(server, kind):
    status, answer = server.ask("/v1/embeddings", {"input": "the dog"}, headers={"Content-Type": kind})
    message = f"The body should be JSON, with the header Content-Type: application/json, got {kind!r}."
    assert (status, answer["error"]["message"]) == (415, message)


@pytest.mark.parametrize(
    ("host", "called", "status"),
    [
        ("127.0.0.1", {"Host": "LOCALHOST:1"}, 200),
        ("127.0.0.1", {"Host": "[::1]:1"}, 200),
        ("127.0.0.1", {"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        ("127.0.0.1", {"Host": "a.example"}, 200),
        ("127.0.0.1", {"Origin": "https://a.example"}, 200),
        ("127.0.0.1", {"Host": "b.a.example"}, 403),
        ("0.0.0.0", {"Host": "192.0.2.7:8000"}, 200),
        ("0.0.0.0", {"Host": socket.gethostname()}, 200),
        ("::", {"Host": "[2001:db8::7]:8000"}, 200),
        ("0.0.0.0", {"Host": "evil.example"}, 403),
        ("192.0.2.7", {"Host": "192.0.2.7:80"}, 200),
        ("192.0.2.7", {"Host": "192.0.2.8:80"}, 403),
    ],
)
def test_the_server_answers_to_its_own_names_and_to_those_that_are_allowed(serving, host, called, status):
    with serving(host=host, allowed=["a.example"]) as client:
        assert client.ask("/health", headers=called)[0] == status


def test_a_body_that_turns_to_garbage_after_it_was_refused_is_closed(server):
    assert server.send(chunks(100, b"garbage\r\n")) in ([413], [400])
    with server.connect() as connection:
        connection.sendall(chunks(100, headers=b""))
        read(connection, b"}}")
        connection.sendall(b"garbage\r\n")
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""


@pytest.mark.parametrize("content", [b"", b"POST", ASK, ASK + b"Content-Length: 9\r\n\r\n{", post(b'{"input": "a"}')])
def test_a_reset_is_no_news(server, content):
    for _ in range(3):
        connection = server.connect()
        connection.sendall(content)
        server.reset(connection)


def test_slow_connections_keep_nobody_out(server):
    begin = time.monotonic()
    slow = [server.connect() for _ in range(40)]
    for connection in slow[20:]:
        connection.sendall(ASK)
    assert server.embed("the dog runs").shape == (1, 6)
    for connection in slow:
        connection.settimeout(60)
        with connection, suppress(ConnectionResetError):  # it was closed with our header unread
            assert connection.recv(1) == b""
    assert time.monotonic() - begin < 60


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(server):
    with server.connect() as connection:
        for _ in range(4):
            connection.sendall(HEALTH)
            read(connection, b"ok")
            time.sleep(PATIENCE / 2)
        assert connection.recv(1000) == b""


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_dropped(server):
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(HEALTH * 50_000)
        with pytest.raises(ConnectionError):
            _flood(connection)


def _flood(connection):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        connection.sendall(HEALTH)


@pytest.fixture
def stuck(serving, monkeypatch):
    """Serves with a model that waits for an event, ``go``; ``asked`` is what it was asked."""

    @contextmanager
    def serve(**limits):
        asked, go = [], threading.Event()
        with serving(**LIMITS | limits) as client, monkeypatch.context() as patch:
            embed = client.model.embed

            def wait(role, requests, watch):
                asked.extend(requests)
                assert go.wait(60)
                return embed(role, requests, watch)

            patch.setattr(client.model, "embed", wait)
            client.asked, client.go = asked, go
            try:
                yield client
            finally:
                go.set()

    return serve


DOG = post(b'{"input": "the dog"}')


@contextmanager
def six_owed(client):
    """Six requests that wait; they are answered when the block ends."""
    owed = [client.connect() for _ in range(6)]
    for connection in owed:
        connection.sendall(DOG)
    until(lambda: client.batcher.unanswered == 6)
    yield
    client.go.set()
    for connection in owed:
        with connection:
            read(connection, b"}}")


def test_when_an_answer_is_owed_to_all_a_new_one_is_told_to_come_back(stuck):
    with stuck(connections=6) as client, six_owed(client):
        assert client.send(HEALTH) == [503]
        assert client.send(b"") == []


def test_when_too_many_wait_the_next_is_told_to_come_back(stuck):
    with stuck() as client, six_owed(client):
        assert client.send(DOG) == [503]


def test_a_client_that_goes_away_takes_its_question_with_it(stuck):
    with stuck() as client:
        with client.connect() as first:
            first.sendall(DOG)
            until(lambda: len(client.asked) == 1)
            for _ in range(4):
                others = [client.connect() for _ in range(5)]
                for connection in others:
                    connection.sendall(DOG)
                until(lambda: client.batcher.unanswered == 6)
                for connection in others:
                    client.reset(connection)
                until(lambda: client.batcher.unanswered == 1)
            client.go.set()
            read(first, b"}}")
        assert client.embed("the man").shape == (1, 6)
        assert len(client.asked) == 2


def test_who_waits_too_long_is_told_and_the_model_is_spared(stuck):
    with stuck(seconds=0.1) as client:
        assert [client.send(DOG) for _ in range(3)] == [[504]] * 3
        assert len(client.asked) == 1


SERVED = Served("mine", 6, "", limits=Limits(texts=3, characters=20))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)
QUESTIONS = st.fixed_dictionaries(
    {"input": VALUES | st.lists(st.text(max_size=30), max_size=5)},
    optional={
        "model": st.just("mine") | VALUES,
        "encoding_format": st.sampled_from(["float", "base64"]) | VALUES,
        "dimensions": st.integers(0, 8) | VALUES,
        "input_type": st.sampled_from(["query", "passage"]) | VALUES,
    },
)


@given(st.binary() | QUESTIONS.map(lambda question: json.dumps(question).encode()))
def test_a_body_is_read_or_refused(body):
    try:
        wanted = parse_request(body, SERVED)
    except RequestError as refused:
        body = refused.body()
        assert refused.status in (400, 404) and len(body) < 1000  # noqa: PT017, PT018 - one or the other
    else:
        assert isinstance(wanted, Wanted)
        assert all(text.strip() and len(text) <= 20 for text in wanted.texts)
        assert 1 <= len(wanted.texts) <= 3


WORDS = (b"GET /health", b" HTTP/1.1\r\n", b"Host: localhost\r\n", b"\r\n", b"Content-Length: ", b"17")
BODY = (b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b'{"input": "the dog"}', b"\xff", b"\0")
PIECES = st.sampled_from([CLOSE, ASK, HEALTH, *WORDS, *BODY])


@settings(max_examples=settings.default.max_examples // 5)
@given(st.lists(PIECES | st.binary(max_size=9), max_size=12).map(b"".join))
def test_whatever_is_sent_is_no_error_of_the_server(server, content):
    with server.connect() as connection:
        try:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(2**16), b""))
        except ConnectionError:
            answer = b""
    assert b"HTTP/1.1 5" not in answer
