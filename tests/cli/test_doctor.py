import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import bertflow
from bertflow.cli import main
from bertflow.export.targets import write_export

# One layer lies in a hyperplane, which is said and is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::bertflow.errors.NullDirectionWarning")
NOUNS, VERBS, ENDS = ("man", "dog", "cat", "bird"), ("runs", "eats"), ("a", "in", "big")
TEXT = [f"the {noun} {verb} {end} ." for noun in NOUNS for verb in VERBS for end in ENDS]


@pytest.fixture(scope="module")
def system(tiny_bert):
    encoder = bertflow.TransformerEncoder(tiny_bert, pooling="mean(1,2)", device="cpu", max_length=48)
    return bertflow.CalibratedEncoder(encoder, bertflow.Whitening(15).fit_sentences(encoder, TEXT))


@pytest.fixture(scope="module")
def exported(system, tmp_path_factory):
    return write_export(system, tmp_path_factory.mktemp("exported") / "mine", "sentence-transformers").folder


@pytest.fixture
def server():
    """A server that answers with what ``server.embed`` makes of the sentences."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            rows = server.embed(request["input"])
            body = json.dumps({"data": [{"index": k, "embedding": r.tolist()} for k, r in enumerate(rows)]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


def test_a_server_that_is_right_is_right(system, exported, server, capsys):
    server.embed = system.encode
    assert main(["doctor", "--golden", str(exported), "--url", server.url]) == 0
    assert "right     The vectors are the golden ones." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (lambda system: system.encoder.encode, "error: The server differs: it leaves the calibrator out."),
        (
            lambda system: lambda sentences: system.encode(sentences)[:, ::-1],
            "error: The server differs, and none of",
        ),
    ],
)
def test_a_server_that_differs_is_told_apart_with_exit_code_4(system, exported, server, capsys, mistake, text):
    server.embed = mistake(system)
    assert main(["doctor", "--golden", str(exported / "golden.json"), "--url", server.url]) == 4
    assert capsys.readouterr().err.splitlines()[-1].startswith(text)


def test_unit_length_can_be_what_is_wanted(system, exported, server, capsys):
    def embed(sentences):
        z = system.encode(sentences)
        return z / np.linalg.norm(z, axis=1, keepdims=True)

    server.embed = embed
    arguments = ["doctor", "--golden", str(exported), "--url", server.url]
    assert main(arguments) == 4
    assert "it scales vectors to unit length" in capsys.readouterr().err
    assert main([*arguments, "--normalized"]) == 0


def test_folders_are_run_here(system, exported, tmp_path):
    system.save(tmp_path / "calibrated")
    system.encoder.save(tmp_path / "raw")
    folders = (exported, tmp_path / "calibrated", tmp_path / "raw")
    codes = [main(["doctor", "--golden", str(exported), "--model", str(folder)]) for folder in folders]
    assert codes == [0, 0, 4]


REFUSALS = {
    "neither server nor folder": ((), 2, "One of url, a server, and model, a folder, is needed; got neither."),
    "a folder of something else": (("--model", "."), 2, ". cannot be run here: it holds none of"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_done_is_refused_in_one_line(exported, tmp_path, capsys, case, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, code, text = REFUSALS[case]
    assert main(["doctor", "--golden", str(exported), *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.removeprefix("error: ").startswith(text)


def test_without_golden_vectors_there_is_nothing_to_compare(tmp_path, capsys):
    assert main(["doctor", "--golden", str(tmp_path), "--model", "."]) == 3
    assert "golden.json is missing" in capsys.readouterr().err
