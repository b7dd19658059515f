"""``serve_encoder``: an encoder over HTTP. Check the address, open the encoder, serve until the process is stopped."""

import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from types import FrameType

from bertflow.errors import DataError, UsageError
from bertflow.export.golden import PATH
from bertflow.serve.protocol import Limits, Served

HOSTS = ("127.0.0.1", "0.0.0.0", "::")
"""What LitServe can listen on."""


def serve_encoder(
    model: str,
    *,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "auto",
    normalize: bool = False,
    truncate: bool = False,
    max_texts: int = 256,
    max_body: int = 2**20,
    batch: int = 32,
    waiting: int = 256,
    timeout: float = 60,
) -> None:
    """Answer requests for embeddings over HTTP, in the form of OpenAI's /v1/embeddings.

    Requests that wait are embedded together. SIGTERM and Ctrl-C stop the server after the requests that it accepted
    are answered. There is no password: let others in through a proxy that has one.

    Args:
        model: Encoder to serve: a hub id, the folder of an encoder or of a calibrated encoder, or a run.
        name: Name of the model in requests; the folder's name by default.
        host: Address to listen on: 127.0.0.1, 0.0.0.0 (all of IPv4) or ::.
        port: Port to listen on, from 1024 to 65535.
        device: cpu, cuda, ...; auto chooses the fastest one.
        normalize: Scale embeddings to length one.
        truncate: Truncate texts that are too long, instead of refusing them.
        max_texts: Largest number of texts in a request.
        max_body: Largest size of a request, in bytes.
        batch: Largest number of requests that are embedded together.
        waiting: Largest number of requests that wait; more are refused for the moment.
        timeout: Seconds that a request may wait.

    Raises:
        UsageError: If the address or a limit cannot be used, or the model is not a transformer.
        DataError: If the model cannot be opened, or a process of the server dies.
        MissingExtraError: If LitServe is not installed.
    """
    _require_address(host, port)
    from bertflow.serve.server import ServedModel, build_server, no_prefix

    limits = Limits(max_texts, max_body, batch, waiting, timeout)
    name = name or (Path(model).resolve().name if Path(model).exists() else model)
    open_model = partial(ServedModel, model, device, truncate)
    # Opened here as well, so that what cannot be served is refused in one line before a process is started.
    encoder = open_model().encoder
    served = Served(name, encoder.dim, no_prefix(encoder), normalize, limits)
    at = f"http://{'[::1]' if host == '::' else host}:{port}{PATH}"
    tell = partial(print, f"{name} is served at {at}. Ctrl-C stops it.", flush=True)
    server = build_server(open_model, served, tell)
    _finish_on_signals()
    try:
        server.run(host=host, port=port, log_level="warning", generate_client_file=False, access_log=False)
    except (RuntimeError, EOFError, ConnectionError) as error:
        # LitServe stops when its worker dies, and says so in its log.
        reason = str(error) or "a process died, perhaps because memory ran out"
        raise DataError(f"The server stopped: {reason}. Its log above says more.") from None


def _require_address(host: str, port: int) -> None:
    """Refuse an address here, since LitServe would exit without a message."""
    if host not in HOSTS or not 1024 <= port <= 65535:
        raise UsageError(
            f"The host must be one of {', '.join(HOSTS)}, and the port from 1024 to 65535; got {host} and {port}."
        )
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if host == "::" else socket.AF_INET).close()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UsageError(f"Port {port} of {host} cannot be used: {reason}. Choose another --port.") from None


def _finish_on_signals() -> None:
    """SIGTERM stops the server as Ctrl-C does; in the processes that are forked from here a signal just ends them."""
    main = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() == main:
            raise KeyboardInterrupt
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
