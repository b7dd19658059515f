"""A tiny encoder, served by a thread of this process, and a client that may also be rude."""

import json
import logging
import re
import socket
import struct
import urllib.error
import urllib.request
from contextlib import contextmanager
from threading import Thread

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.serve.protocol import Limits, Served

TEXTS = [f"the {noun} {verb}" for noun in ("man", "dog", "cat", "bird") for verb in ("runs", "eats", "sings")]
SECONDS = 120
JSON = {"Content-Type": "application/json"}


class Client:
    """Asks the server at a port."""

    def __init__(self, port):
        self.port = port

    def ask(self, path, body=None, method=None, timeout=SECONDS, headers=None):
        """Status and JSON (or text) of an answer."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, JSON | (headers or {}), method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read()
        return status, json.loads(text) if text[:1] in b"{[" else text.decode()

    def embed(self, texts, **more):
        """The embeddings of some texts."""
        status, answer = self.ask("/v1/embeddings", {"input": texts, **more})
        assert status == 200, answer
        return np.float32([row["embedding"] for row in answer["data"]])

    def connect(self):
        """A connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def send(self, content):
        """The statuses of what comes back, until the server closes."""
        with self.connect() as connection:
            try:
                connection.sendall(content)
                answer = b"".join(iter(lambda: connection.recv(2**16), b""))
            except ConnectionError:  # it closed before it had read all
                answer = b""
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]

    def reset(self, connection):
        """Close a connection without a word."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


@pytest.fixture(scope="session")
def client_of():
    """A client, by the port."""
    return Client


@pytest.fixture(scope="session")
def folder(tiny_bert, tmp_path_factory):
    """A whitened tiny BERT that reads 16 tokens."""
    folder = tmp_path_factory.mktemp("served") / "mine"
    raw = TransformerEncoder(tiny_bert, max_length=16, device="cpu")
    encoder = CalibratedEncoder(raw, Whitening(n_components=6).fit_sentences(raw, TEXTS))
    encoder.save(folder)
    return folder


@pytest.fixture(scope="session")
def serving(folder):
    """Serves the tiny encoder, or a model, with some limits; gives the client, whose ``model`` is what answers."""
    pytest.importorskip("starlette", reason="the serve extra is not installed")
    from bertflow.serve.model import ServedModel
    from bertflow.serve.server import EmbeddingServer

    opened = ServedModel(str(folder), "cpu")

    @contextmanager
    def serve(key=b"", model=opened, host="127.0.0.1", allowed=(), **limits):
        served = Served("mine", 6, "", limits=Limits(**limits), key=key, host=host, allowed=frozenset(allowed))
        with socket.create_server(("127.0.0.1", 0)) as listener, EmbeddingServer(served, model) as server:
            thread = Thread(target=server.run, args=[listener])
            thread.start()
            client = Client(listener.getsockname()[1])
            client.model, client.batcher = model, server._batcher
            try:
                yield client
            finally:
                server.stop()
                thread.join(SECONDS)
                assert not thread.is_alive()

    return serve


@pytest.fixture
def no_errors(caplog):
    """Nothing that is an error, and no traceback, is logged."""
    yield caplog
    assert [
        record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info
    ] == []
