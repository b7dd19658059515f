"""Requests a second of ``bertflow serve``, against encoding the same sentences one by one in one process.

    python benchmarks/serving.py [--requests 400] [--clients 1,4,16,32] [--output FILE]

Every request holds one sentence of a docstring; clients keep their connection and share the machine with the server.
Two servers of the same encoder take turns: one has a domain check in its folder, so that /metrics tells the percentile
of every text. "processor" is what the server's process took for a request.
"""

import argparse
import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.data.docstrings import docstring_corpus
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.files import write_json
from bertflow.scoring.domain import DomainCheck

START = 180
"""Seconds that a server may take to start."""


def main() -> None:
    """Measure and print."""
    options = _parser().parse_args()
    fitting, sentences = _sentences(options.requests)
    encoder = CalibratedEncoder.fit(
        TransformerEncoder(embedded_encoder(), pooling="mean", max_length=128), Whitening(), fitting
    )
    encoder.encode(sentences[:32])
    rows = [
        ("encode, one by one", _rate(lambda: [encoder.encode([sentence]) for sentence in sentences], len(sentences))),
        ("encode, all at once", _rate(lambda: encoder.encode(sentences), len(sentences))),
    ]
    with tempfile.TemporaryDirectory() as folder:
        servers, took = {}, {}
        for name in ("", ", domain check"):
            encoder.save(place := Path(folder) / f"served{name}")
            if name:
                DomainCheck.of_text(encoder.raw, fitting).save(place)
            port = _free_port()
            servers[name] = port, _start(place, port)
        try:
            for port, _ in servers.values():
                _ask_all(port, sentences[:32], 4)
            for clients in options.clients:
                found = _rates(servers, sentences, clients)
                rows += [
                    (f"serve, {clients} client{'s' * (clients > 1)}{name}", one) for name, (one, _) in found.items()
                ]
                took |= {f"{clients}{name}": processor for name, (_, processor) in found.items()}
            worst = _difference(encoder.encode(sentences), _ask_all(port, sentences, options.clients[-1]))
        finally:
            for _, process in servers.values():
                process.send_signal(signal.SIGTERM)
                process.wait(60)
    load = os.getloadavg()[0]
    print(f"{len(sentences)} sentences, {os.cpu_count()} cores, load {load:.1f}; largest difference {worst:.1e}\n")
    print("| how | sentences a second |\n| --- | ---: |")
    for name, rate in rows:
        print(f"| {name} | {rate:.0f} |")
    print("\nprocessor, ms a request: " + "; ".join(f"{name}: {1000 * value:.2f}" for name, value in took.items()))
    if options.output:
        found = {"rows": dict(rows), "processor": took, "sentences": len(sentences), "largest_difference": worst}
        write_json(options.output, found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400, help="how many (default: 400)")
    parser.add_argument(
        "--clients", type=lambda text: [int(part) for part in text.split(",")], default=[1, 4, 16, 32], metavar="LIST"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the figures as JSON")
    return parser


def _sentences(n: int) -> tuple[list[str], list[str]]:
    """Sentences to fit on and others to embed, none of them too long."""
    sentences, _ = docstring_corpus(n_pairs=1, n_sentences=2000 + 2 * n)
    short = [sentence for sentence in sentences if len(sentence) < 300]
    return short[:2000], short[2000 : 2000 + n]


def _rate(work: Callable[[], object], n: int) -> float:
    """Sentences a second, the best of three."""
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return n / min(seconds)


Server = tuple[int, subprocess.Popen[bytes]]


def _rates(servers: Mapping[str, Server], sentences: Sequence[str], clients: int) -> dict[str, tuple[float, float]]:
    """By server: sentences a second, the best of five, and the median of its processor seconds a request."""
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    processor: dict[str, list[float]] = {name: [] for name in servers}
    for turn in range(5):
        for name in list(servers)[:: 1 if turn % 2 else -1]:
            port, process = servers[name]
            begin, used = time.perf_counter(), _processor(process)
            _ask_all(port, sentences, clients)
            seconds[name].append(time.perf_counter() - begin)
            processor[name].append((_processor(process) - used) / len(sentences))
    return {name: (len(sentences) / min(seconds[name]), float(np.median(processor[name]))) for name in servers}


def _processor(process: subprocess.Popen[bytes]) -> float:
    """Processor seconds of a process until now; Linux only."""
    user, system = Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", "bertflow", "serve", str(folder), "--port", str(port)])
    end = time.monotonic() + START
    while time.monotonic() < end and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return process
        except OSError:
            time.sleep(0.2)
        finally:
            connection.close()
    process.kill()
    raise SystemExit(f"The server did not start within {START} seconds.")


def _ask_all(port: int, sentences: Sequence[str], clients: int) -> np.ndarray:
    """All sentences, one a request, over as many connections as there are clients."""
    found: list[np.ndarray] = [np.empty(0)] * len(sentences)

    def client(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for row in range(first, len(sentences), clients):
            body = json.dumps({"input": sentences[row], "encoding_format": "base64"})
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            found[row] = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
        connection.close()

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return np.stack(found)


def _difference(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(x - y).max())


if __name__ == "__main__":
    main()
