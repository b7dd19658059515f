"""A server as clients see it: in this process, and (slow) in one of its own."""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import bertflow
from bertflow.calibrated import CalibratedEncoder
from bertflow.cli import main
from bertflow.errors import UsageError
from bertflow.export.targets import write_export
from bertflow.serve.protocol import key_digest

from .conftest import TEXTS

SPY = """
import sys
def spy(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        with open({log!r}, "a") as file:
            print(event, arguments[1] if event == "socket.connect" else arguments[0], file=file)
sys.addaudithook(spy)
"""
"""Notes every connection that a process or one of its children makes."""
SECONDS = 120


@contextmanager
def served(client_of, folder, log, *options):
    """A running server: its process and a client; it is killed in the end if it did not stop."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    site = log.parent / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(SPY.format(log=str(log)), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(Path.cwd())])}
    command = [sys.executable, "-m", "bertflow", "serve", str(folder), "--port", str(port), "--device", "cpu", *options]
    with log.with_suffix(".out").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    client = client_of(port)
    try:
        _wait(process, client, log)
        yield process, client
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(process, client, log):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            if client.ask("/health", timeout=5) == (200, "ok"):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(log.with_suffix(".out").read_text())


@pytest.fixture(scope="module")
def server(serving):
    with serving(texts=20, body=20_000) as client:
        yield client


def test_it_embeds_as_the_encoder_does(server, folder):
    expected = CalibratedEncoder.load(folder, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(server.embed(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(server.embed(TEXTS, dimensions=2), expected[:, :2], atol=1e-5)


def test_requests_at_once_get_each_their_own_answer(server, folder):
    texts = TEXTS * 5
    expected = CalibratedEncoder.load(folder, device="cpu").encode(texts)
    with ThreadPoolExecutor(12) as clients:
        found = np.concatenate(list(clients.map(server.embed, texts)))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_it_says_that_it_is_well_what_it_serves_and_counts_tokens(server):
    assert server.ask("/health") == (200, "ok")
    assert [model["id"] for model in server.ask("/v1/models")[1]["data"]] == ["mine"]
    _, answer = server.ask("/v1/embeddings", {"input": ["the dog runs", "a cat"]})
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}


@pytest.fixture(scope="module")
def golden(folder, tmp_path_factory):
    """The golden vectors of the served encoder."""
    written = tmp_path_factory.mktemp("golden")
    return write_export(CalibratedEncoder.load(folder, device="cpu"), written / "out", "safetensors").folder


def test_doctor_goes_on_with_what_the_server_takes(serving, golden, monkeypatch, capsys, told):
    monkeypatch.setenv("MY_KEY", "secret")
    with serving(key=key_digest("secret")) as client:
        arguments = ["doctor", "--golden", str(golden), "--url", f"http://127.0.0.1:{client.port}"]
        out = told(*arguments, "--key", "MY_KEY").splitlines()
        assert main(arguments) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "refused with 401: " in error
    assert out[2].startswith("left out  ")
    assert "tokens or more, which the server refuses: http" in out[2]
    assert "has more than the 16 tokens that this model reads." in out[2]
    assert out[3] == "right     The vectors are the golden ones."


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/similarity", "/v1/models", "/metrics"])
def test_a_key_is_wanted_where_there_is_one(serving, path, no_errors):
    no_errors.set_level(logging.DEBUG)
    body = {"query": "a cat", "input": "the dog runs"} if path in ("/v1/embeddings", "/v1/similarity") else None
    with serving(key=key_digest("secret")) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            status, answer = client.ask(path, body, headers=headers)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert client.ask(path, body, headers={"Authorization": "Bearer secret"})[0] == 200
        assert client.ask("/health") == (200, "ok")
        assert [client.ask(page)[0] for page in ("/", "/docs")] == [200, 200]
    assert "secret" not in no_errors.text


def test_the_client_of_openai_can_ask_it(server, refusal):
    openai = pytest.importorskip("openai", reason="the client is not installed")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="mine", input=TEXTS[:2])
        np.testing.assert_allclose([row.embedding for row in answer.data], server.embed(TEXTS[:2]), atol=1e-5)
        assert "is empty" in refusal(client.embeddings.create, error=openai.BadRequestError, model="mine", input="")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_server_that_is_stopped_answers_what_it_accepted(client_of, minilm, tmp_path, number):
    texts = ["The quick brown fox jumps over the lazy dog, again and again and again."] * 200
    with served(client_of, minilm, tmp_path / "log") as (process, client), ThreadPoolExecutor(1) as thread:
        client.embed("warm")
        idle, slow = client.connect(), client.connect()
        slow.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n")
        answer = thread.submit(client.embed, texts)
        time.sleep(0.5)
        # Ctrl-C reaches every process of a terminal, SIGTERM the first alone.
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        assert answer.result(SECONDS).shape == (200, 384)
        assert process.wait(SECONDS) == 0
        idle.close()
        slow.close()
    said = [
        line for line in (tmp_path / "log.out").read_text().splitlines() if not re.match("note: |.*Normalize", line)
    ]
    assert said.pop(0).startswith("bertflow serve")
    (line,) = said
    assert "is served at http://127.0.0.1:" in line
    assert not (tmp_path / "log").exists(), "a server connects to nobody"


RUDE = b'POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n{"input": "a dog"}'


@pytest.mark.slow
def test_memory_is_flat_under_load(client_of, folder, tmp_path):
    with served(client_of, folder, tmp_path / "log") as (process, client), ThreadPoolExecutor(8) as clients:
        size = []
        for _ in range(4):
            list(clients.map(client.embed, TEXTS * 50))
            for _ in range(100):
                connection = client.connect()
                connection.sendall(RUDE)
                client.reset(connection)
            size.append(int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    assert size[3] - size[1] < 4 * 2**20, size
    assert "Traceback" not in (tmp_path / "log.out").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "none"),
        (["{folder}", "--host", "192.0.2.1"], "of 192.0.2.1 cannot be used: Cannot assign requested address."),
        (["{folder}", "--port", "{taken}"], "cannot be used: Address already in use. Choose another --port."),
        (["{folder}", "--api_key", ""], "The key should be ASCII characters without spaces around them."),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(folder, capsys, arguments, message):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        values = {"folder": folder, "taken": taken.getsockname()[1]}
        assert main(["serve", *(argument.format(**values) for argument in arguments)]) in (2, 3)
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_is_stopped_quietly(folder, monkeypatch, capsys, number):
    def stop(line):
        said.append(line)
        threading.Timer(0.2, os.kill, [os.getpid(), number]).start()

    said = []
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("BERTFLOW_API_KEY", "secret")
    bertflow.serve_encoder(str(folder), port=0, device="cpu", say=stop)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert said[0].startswith("mine is served at http://127.0.0.1:")
    assert capsys.readouterr() == ("", "")


def test_the_key_in_the_environment_counts(folder, monkeypatch, refusal):
    monkeypatch.setenv("BERTFLOW_API_KEY", "two\nlines")
    assert "The key should be ASCII" in refusal(lambda: bertflow.serve_encoder(str(folder), port=0), error=UsageError)
