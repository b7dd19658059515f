"""``serve_encoder``: an encoder over HTTP, in the form of OpenAI's ``/v1/embeddings``.

The address is taken, the encoder opened, and requests are answered until the process is stopped.

    protocol.py     requests and answers, and what is refused
    trying.py       similarities before and after, and the page that shows them
    connections.py  how long a connection waits for its client
    server.py       HTTP, and who may ask
    model.py        the encoder; requests that wait are embedded together
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from bertflow.errors import UsageError, require_between
from bertflow.export.client import PATH
from bertflow.progress import working
from bertflow.serve.protocol import Limits, Served, key_digest

CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
"""oneDNN and PyTorch keep code for each shape of a matrix, by default for 1,024: nearly 1 GB for texts as they come."""
KEY = "BERTFLOW_API_KEY"
"""The environment variable that holds the key."""


def serve_encoder(
    model: str,
    *,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "auto",
    normalize: bool = False,
    truncate: bool = False,
    api_key: str | None = None,
    allow_host: str = "",
    max_texts: int = 256,
    max_characters: int = 2**16,
    max_body: int = 2**20,
    batch: int = 32,
    batch_tokens: int = 2**14,
    waiting: int = 256,
    timeout: float = 60,
    connections: int = 512,
    client_timeout: float = 15,
    say: Callable[[str], object] = print,
) -> None:
    """Answer requests for embeddings over HTTP, in the form of OpenAI's /v1/embeddings.

    Open its address in a browser for a page to try it, and /docs for the API. Requests that wait are embedded together.
    SIGTERM and Ctrl-C stop the server after the requests that it accepted are answered; a second Ctrl-C stops it at
    once. It has no TLS: for other machines, put a proxy with TLS in front of it.

    Args:
        model: Encoder to serve: a hub id, the folder of an encoder or of a calibrated encoder, or a run.
        name: Name of the model in requests; by default the name of the folder, or for FOLDER/encoder that of FOLDER.
        host: Address to listen on: 127.0.0.1, 0.0.0.0 (all of IPv4), :: or another address of this machine.
        port: Port to listen on; 0 lets the system choose one.
        device: cpu, cuda, ...; auto chooses the fastest one.
        normalize: Scale embeddings to length one.
        truncate: Truncate texts that are too long, instead of refusing them.
        api_key: Key that requests must show as Authorization: Bearer KEY. Others can read a command line: better set
            the environment variable BERTFLOW_API_KEY.
        allow_host: Further names by which clients call the server, such as embeddings.example.org, with commas; pages
            of these hosts may ask it, too. Requests to another host, and of other pages, are refused.
        max_texts: Largest number of texts in a request.
        max_characters: Largest number of characters in a text, also with truncate.
        max_body: Largest size of a request, in bytes.
        batch: Largest number of requests that are embedded together.
        batch_tokens: Largest number of tokens that are embedded together; a larger request is embedded alone.
        waiting: Largest number of requests that wait; more are refused for the moment.
        timeout: Seconds that a request may wait.
        connections: Largest number of open connections.
        client_timeout: Seconds that a client may take to send a request, and between two requests.
        say: Gets the line that says where it is served.

    Raises:
        UsageError: If the address, the key or a limit cannot be used, or the model is not a transformer.
        DataError: If the model cannot be opened.
        MissingExtraError: If Starlette or uvicorn is not installed.

    Examples:
        ```bash
        bertflow serve runs/mine
        bertflow serve runs/mine --name my-encoder --port 9000 --normalize
        curl localhost:8000/v1/embeddings --json '{"input": ["A dog sings.", "A cat sleeps."]}'
        ```
    """
    limits = Limits(
        max_texts, max_characters, max_body, batch, batch_tokens, waiting, timeout, connections, client_timeout
    )
    key, named = _key(api_key), frozenset(name.strip().lower() for name in allow_host.split(",") if name.strip())
    os.environ.update({name: os.environ.get(name, kept) for name, kept in CACHES.items()})  # read when first used
    with _bound(host, port) as listener:
        from bertflow.serve.model import ServedModel, no_prefix
        from bertflow.serve.server import EmbeddingServer  # first: without its packages nothing is loaded

        opened = ServedModel(model, device, truncate)
        name = name or _named(model)
        own, cannot = opened.encoder, no_prefix(opened.encoder)
        served = Served(name, own.dim, cannot, normalize, limits, key, host, named, own.role)
        listener.listen()
        with EmbeddingServer(served, opened) as server, _stopping(server.stop), working(""):  # waiting is not work
            shown = "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
            at = f"http://{shown}:{listener.getsockname()[1]}"
            say(f"{name} is served at {at}{PATH}. A page to try it: {at}/  Ctrl-C stops it.")
            server.run(listener)


def _named(model: str) -> str:
    """The name of a folder, which of ``fixed/encoder`` is ``fixed``; a hub id stays."""
    at = Path(model).resolve()
    return model if not at.exists() else at.parent.name if at.name == "encoder" else at.name


def _key(given: str | None) -> bytes:
    """The digest of the key; empty if there is none."""
    key = os.environ.get(KEY) if given is None else given
    if key is None:
        return b""
    if not key.strip() or key != key.strip() or not key.isascii() or not key.isprintable():
        raise UsageError("The key should be ASCII characters without spaces around them. Choose another one.")
    return key_digest(key)


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """The address, taken before anything is loaded; clients are refused until it listens."""
    require_between(0, 65535, port=port)
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        raise UsageError(
            f"The host should be an address of this machine, as 127.0.0.1, 0.0.0.0 or ::, got {host!r}."
        ) from None
    # Only a socket that is said to be TCP's sends small answers at once: otherwise each waits 40 ms for its rest.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        if os.name == "posix":  # a server that is started again need not wait for old connections
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise UsageError(f"Port {port} of {host} cannot be used: {reason}. Choose another --port.") from None
        yield listener


@contextmanager
def _stopping(stop: Callable[[], object]) -> Iterator[None]:
    """SIGTERM and Ctrl-C stop the server before uvicorn listens to them; when it has stopped, it raises them again."""
    before = {one: signal.signal(one, lambda *_: stop()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
