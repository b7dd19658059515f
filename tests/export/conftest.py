"""Tiny encoders with calibrators, and a server that answers as it is told."""

import json
import sysconfig
import warnings
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import bertflow
from bertflow.data.docstrings import PLAIN, is_sentence, paragraphs, read_docstrings, sentences
from bertflow.errors import NullDirectionWarning

from ..texts import WITH_ARTICLES, drawn

MODULES = """argparse ast asyncio/tasks calendar cmd codecs collections/__init__ configparser contextlib csv ctypes/util
datetime decimal difflib email/message enum fileinput fractions ftplib functools gettext hashlib heapq http/client
http/cookiejar imaplib inspect ipaddress logging/__init__ logging/handlers mailbox mimetypes nntplib optparse os pathlib
pdb pickle pickletools platform plistlib poplib pprint pydoc random re/__init__ sched shelve shlex shutil smtplib socket
socketserver statistics string subprocess tarfile telnetlib tempfile textwrap threading trace traceback turtle typing
unittest/case unittest/mock urllib/request uuid wave weakref xmlrpc/client zipfile _pydatetime _pydecimal"""
"""Modules whose docstrings are real sentences that every machine has."""
TEXTS = ["the cat sleeps .", "", "a", "[UNK] zebra [SEP] the dog", "the big red house in the garden . " * 9]
STEPS = {"max_steps": 3, "accelerator": "cpu"}


@pytest.fixture(scope="session")
def tiny_text():
    """Sentences that the tiny BERT has words for, the golden ones' words unknown to it among them."""
    return [*drawn(WITH_ARTICLES, 240, 0, 1, 12), *PLAIN]


@pytest.fixture(scope="session")
def tiny_system(tiny_bert, tiny_text):
    """Makes a tiny encoder, raw or calibrated by "whitening" or "flow"; each is made once."""
    made = {}

    def make(pooling="mean", calibrator=None, prompt="", model=None, dtype=None):
        key = (pooling, calibrator, prompt, str(model), dtype)
        if key not in made:
            encoder = bertflow.TransformerEncoder(
                model or tiny_bert, pooling=pooling, max_length=48, prompt=prompt, device="cpu", dtype=dtype
            )
            if "sif" in pooling:
                encoder.count_tokens(tiny_text)
            made[key] = encoder if calibrator is None else _calibrated(encoder, calibrator, tiny_text)
        return made[key]

    return make


def _calibrated(encoder, calibrator, text):
    kinds = {
        "whitening": lambda: bertflow.Whitening(),
        "center": lambda: bertflow.Center(),
        "flow": lambda: bertflow.FlowCalibrator(trainer=STEPS),
        "ridge": lambda: bertflow.Ridge(),
        "two-band": lambda: bertflow.TwoBand(),
        "blocks": lambda: bertflow.Blocks("ridge(1)"),
        "blocks-of-bands": lambda: bertflow.Blocks("two-band(1)"),
    }
    with warnings.catch_warnings():  # one layer lies in a hyperplane, which is said and is not what is tested here
        warnings.simplefilter("ignore", NullDirectionWarning)
        return bertflow.CalibratedEncoder(encoder, kinds[calibrator]().fit_sentences(encoder, text))


@pytest.fixture(scope="session")
def real_sentences():
    """1,000 distinct sentences of the standard library's prose, the same ones on one Python."""
    root = Path(sysconfig.get_path("stdlib"))
    found = {}
    for module in MODULES.split():
        path = root / f"{module}.py"
        for text in read_docstrings(path) if path.exists() else ():
            for paragraph in paragraphs(text):
                found |= dict.fromkeys(sentence for sentence in sentences(paragraph) if is_sentence(sentence))
    assert len(found) >= 1000, f"1,000 sentences are wanted, {len(found)} were found"
    return list(found)[:: len(found) // 1000][:1000]


@contextmanager
def embedding_server(embed):
    """A server with /v1/embeddings that answers with what a function makes of the sentences; bytes are a refusal."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, dict(self.headers), request))
            answer, status = embed(request["input"]), 400
            if not isinstance(answer, bytes):
                data = [{"index": k, "embedding": row.tolist()} for k, row in enumerate(answer)]
                answer, status = json.dumps({"data": data[::-1]}).encode(), 200
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
