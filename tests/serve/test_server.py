"""A real server, in processes of its own, on a port that the system chose."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.calibrators import FlowCalibrator, Whitening
from bertflow.cli import main
from bertflow.data.docstrings import docstring_corpus
from bertflow.encoder.transformer import TransformerEncoder

pytest.importorskip("litserve", reason="the serve extra is not installed")

SPY = """
import sys
def spy(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        with open({log!r}, "a") as file:
            print(event, arguments[1] if event == "socket.connect" else arguments[0], file=file)
sys.addaudithook(spy)
"""
"""Notes every connection that a process or one of its children makes."""
TEXTS = [f"the {noun} {verb}" for noun in ("man", "dog", "cat", "bird") for verb in ("runs", "eats", "sings")]
SECONDS = 120
RAW, COSINE, REBATCHED = 1e-5, 1e-6, 10
POOLINGS = ("mean", "cls", "first-last-avg", "sif")

pytestmark = pytest.mark.filterwarnings("ignore::bertflow.errors.NullDirectionWarning")


class Client:
    """Asks the server at a port."""

    def __init__(self, port):
        self.port = port

    def ask(self, path, body=None, method=None, timeout=SECONDS):
        """Status and JSON (or text) of an answer."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
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


@contextmanager
def served(folder, log, *options):
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
    client = Client(port)
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
def folder(tiny_bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "mine"
    raw = TransformerEncoder(tiny_bert, max_length=16, device="cpu")
    CalibratedEncoder.fit(raw, Whitening(n_components=6), TEXTS).save(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "connections"
    with served(folder, log, "--max_texts", "20", "--max_body", "20000") as (process, client):
        client.log = log
        yield client
    assert process.returncode == 0, "SIGTERM should end it in peace"


BAD = {
    "empty": (400, b""),
    "invalid JSON": (400, b'{"input": '),
    "no object": (400, b"[]"),
    "no input": (400, {"model": "mine"}),
    "empty text": (400, {"input": ""}),
    "wrong type": (400, {"input": 17}),
    "token ids": (400, {"input": [1, 2, 3]}),
    "too long": (400, {"input": "dog " * 100}),
    "too many": (400, {"input": ["dog"] * 21}),
    "too large": (413, {"input": "dog " * 10_000}),
    "other model": (404, {"input": "dog", "model": "gpt"}),
    "too many dimensions": (400, {"input": "dog", "dimensions": 7}),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_refused_and_the_server_lives_on(server, case):
    status, body = BAD[case]
    found, answer = server.ask("/v1/embeddings", body)
    assert found == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["message"]
    assert server.embed("the dog runs").shape == (1, 6)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/embeddings", "GET", 405),
        ("/v1/embeddings", "DELETE", 405),
        ("/v1/models", "POST", 405),
        ("/v2", "GET", 404),
    ],
)
def test_a_wrong_method_or_path_is_refused(server, path, method, status):
    found, answer = server.ask(path, method=method)
    assert (found, answer["error"]["type"]) == (status, "invalid_request_error")


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


def test_tokens_are_counted(server):
    _, answer = server.ask("/v1/embeddings", {"input": ["the dog runs", "a cat"]})
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}


def test_it_says_that_it_is_well_and_what_it_serves(server):
    assert server.ask("/health") == (200, "ok")
    assert [model["id"] for model in server.ask("/v1/models")[1]["data"]] == ["mine"]


def test_it_connects_to_nobody(server):
    server.embed("the dog runs")
    lines = server.log.read_text().splitlines()
    assert lines, "the processes of a server talk to each other, and the spy should have seen it"
    assert [line for line in lines if not line.startswith(("socket.connect /", "socket.connect \0"))] == []


def test_the_client_of_openai_can_ask_it(server):
    openai = pytest.importorskip("openai", reason="the client is not installed")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="mine", input=TEXTS[:2])
        np.testing.assert_allclose([row.embedding for row in answer.data], server.embed(TEXTS[:2]), atol=1e-5)
        with pytest.raises(openai.BadRequestError, match="is empty"):
            client.embeddings.create(model="mine", input="")


def test_what_waits_is_taken_at_once_and_what_waited_too_long_is_left_out(monkeypatch):
    from bertflow.serve import server as serving

    monkeypatch.setattr(serving, "IDLE", 0.01)
    waiting, now = queue.Queue(), time.monotonic()
    for name, came in (("a", now), ("b", now - 100), ("c", now), ("d", now)):
        waiting.put((0, name, came, [f"text {name}"]))
    api = SimpleNamespace(max_batch_size=3, request_timeout=60)
    taken = [serving.WaitingLoop().get_batch_requests(api, waiting, None) for _ in range(3)]
    assert taken[0] == ([(0, "a", ["text a"]), (0, "c", ["text c"])], [(0, "b")])
    assert taken[1:] == [([(0, "d", ["text d"])], []), ([], [])]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_server_that_is_stopped_answers_what_it_accepted(minilm, tmp_path, number):
    texts = ["The quick brown fox jumps over the lazy dog, again and again and again."] * 200
    with served(minilm, tmp_path / "log") as (process, client), ThreadPoolExecutor(1) as thread:
        client.embed("warm")
        answer = thread.submit(client.embed, texts)
        time.sleep(0.5)
        # Ctrl-C reaches every process of a terminal, SIGTERM the first alone.
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        assert answer.result(SECONDS).shape == (200, 384)
        assert process.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "none"),
        (
            ["{folder}", "--host", "example.org"],
            "The host must be one of 127.0.0.1, 0.0.0.0, ::, and the port from 1024 to",
        ),
        (["{folder}", "--port", "80"], "to 65535; got 127.0.0.1 and 80."),
        (["{folder}", "--port", "{taken}"], "cannot be used: Address already in use. Choose another --port."),
        (
            ["{folder}", "--port", "{free}", "--batch", "1"],
            "Limits must be above zero, and a batch 2 requests or more",
        ),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(folder, capsys, arguments, message):
    with socket.socket() as taken, socket.socket() as probe:
        for one in (taken, probe):
            one.bind(("127.0.0.1", 0))
        taken.listen()
        free = probe.getsockname()[1]
        probe.close()
        values = {"folder": folder, "taken": taken.getsockname()[1], "free": free}
        assert main(["serve", *(argument.format(**values) for argument in arguments)]) in (2, 3)
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_without_litserve_the_pip_line_is_given():
    script = "import sys; sys.modules['litserve'] = None\nfrom bertflow.cli import main\nmain(['serve', 'x'])"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert finished.stderr == (
        "error: This needs the package litserve. Install it with: pip install 'bertflow[serve]'\n"
    )


@pytest.fixture(scope="module")
def corpus():
    """Sentences to fit on, and 200 others to embed."""
    sentences, _ = docstring_corpus(n_pairs=1, n_sentences=1400)
    return sentences[:1200], sentences[1200:]


def cosines(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "calibrated", [None, Whitening(), FlowCalibrator(trainer={"max_steps": 20})], ids=["raw", "whitening", "flow"]
)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_endpoint_and_encode_agree_on_real_sentences(minilm, tmp_path, corpus, pooling, calibrated):
    fitting, sentences = corpus
    encoder = TransformerEncoder(minilm, pooling=pooling, device="cpu")
    encoder = encoder.count_tokens(fitting) if pooling == "sif" else encoder
    system = encoder if calibrated is None else CalibratedEncoder.fit(encoder, calibrated, fitting)
    system.save(tmp_path / "served")
    expected = system.encode(sentences).astype(np.float64)
    one_by_one = np.concatenate([system.encode([sentence]) for sentence in sentences]).astype(np.float64)
    with served(tmp_path / "served", tmp_path / "log", "--truncate") as (_, client):
        together = client.embed(sentences)
        with ThreadPoolExecutor(8) as clients:
            apart = np.concatenate(list(clients.map(client.embed, sentences)))
    for found in (together, apart):
        if calibrated is None:
            np.testing.assert_allclose(found, expected, atol=RAW)
        assert cosines(found, expected).min() >= 1 - COSINE
        assert np.abs(found - expected).max() <= REBATCHED * np.abs(one_by_one - expected).max()
