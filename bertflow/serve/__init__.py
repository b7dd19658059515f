"""``serve_encoder``: an encoder over HTTP, in the form of OpenAI's ``/v1/embeddings``.

    {"input": "text" | ["text", ...], "model": name, "encoding_format": "float" | "base64", "dimensions": d}
    {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": ...}], "model": name, "usage": {...}}
    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

The address is checked, the encoder opened, and requests are answered until the process is stopped. What cannot be
answered is refused here, before it reaches the model (``server.py``). Only the length in tokens is checked there.

Source: https://platform.openai.com/docs/api-reference/embeddings
"""

import base64
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from bertflow.encoder.abstract import Float32, Role
from bertflow.errors import DataError, UsageError
from bertflow.export.golden import PATH
from bertflow.similarity import unit_rows

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


@dataclass(eq=False)
class RequestError(Exception):
    """A request that is not answered.

    Attributes:
        message: What was wanted, what was got, what to do.
        param: The part of the request that is wrong.
        status: HTTP status.
        code: The error as a word that programs can test.
    """

    message: str
    param: str | None = None
    status: int = 400
    code: str | None = None

    def body(self) -> bytes:
        """OpenAI's error object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True)
class Limits:
    """Limits of a request and of the server.

    Attributes:
        texts: Texts in a request.
        body: Bytes of a request.
        batch: Requests that are embedded together; at least 2.
        waiting: Requests that wait for an answer; more are refused for the moment.
        seconds: How long a request may wait.
    """

    texts: int = 256
    body: int = 2**20
    batch: int = 32
    waiting: int = 256
    seconds: float = 60

    def __post_init__(self) -> None:
        if self.batch < 2 or min(self.texts, self.body, self.waiting, self.seconds) <= 0:
            raise UsageError(f"Limits must be above zero, and a batch 2 requests or more, got {self}.")


@dataclass(frozen=True)
class Served:
    """What is served.

    Attributes:
        name: The model's name in requests and answers.
        dim: Width of an embedding.
        no_prefix: Why the leading coordinates cannot be used alone; empty if they can.
        normalize: Scale embeddings to length one, so that the dot product is the cosine.
        limits: Limits of a request and of the server.
    """

    name: str
    dim: int
    no_prefix: str
    normalize: bool = False
    limits: Limits = Limits()


@dataclass(frozen=True)
class Wanted:
    """What a request asks for.

    Attributes:
        texts: The texts to embed.
        encoding: A row of ``ENCODINGS``.
        dimensions: Number of leading coordinates.
        role: What the texts are.
    """

    texts: tuple[str, ...]
    encoding: str
    dimensions: int
    role: Role = "document"


Found = tuple[Float32, int]
"""The embeddings (n, dim) for a request, in the order of its texts, and the number of tokens that were read."""
ENCODINGS: Mapping[str, Callable[[Float32], str | list[float]]] = {
    "float": lambda row: list(row.tolist()),
    "base64": lambda row: base64.b64encode(row.astype("<f4").tobytes()).decode("ascii"),
}
"""How an embedding is written, by its name in ``encoding_format``."""
ROLES: Mapping[str, Role] = {
    "document": "document",
    "passage": "document",
    "search_document": "document",
    "query": "query",
    "search_query": "query",
}
"""What the texts are, by ``input_type``: OpenAI has no such field, other services call it so."""


def parse_request(body: bytes, served: Served) -> Wanted:
    """Read a request.

    Raises:
        RequestError: If it cannot be answered.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body should be JSON, but cannot be read: {error}.") from None
    if not isinstance(request, dict):
        raise RequestError(f"The body should be a JSON object with the key input, got a {type(request).__name__}.")
    name = request.get("model", served.name)
    if name != served.name:
        raise RequestError(
            f"The model {name!r} is not served here; this is {served.name!r}.", "model", 404, "model_not_found"
        )
    encoding, kind = _parse_choice(request, "encoding_format", ENCODINGS), _parse_choice(request, "input_type", ROLES)
    texts = _parse_input(request.get("input"), served.limits.texts)
    return Wanted(texts, encoding, _parse_dimensions(request.get("dimensions"), served), ROLES[kind])


def answer_body(served: Served, wanted: Wanted, embeddings: Float32, tokens: int) -> bytes:
    """The answer to a request.

    Args:
        served: What is served.
        wanted: The request.
        embeddings: (n, dim), in the order of the texts.
        tokens: Number of tokens that were read, special tokens included.

    Raises:
        DataError: If an embedding should have length one, but is all zeros.
    """
    encode, x = ENCODINGS[wanted.encoding], embeddings[:, : wanted.dimensions]
    x = unit_rows(x).astype(np.float32) if served.normalize else x
    data = [{"object": "embedding", "index": index, "embedding": encode(row)} for index, row in enumerate(x)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json.dumps({"object": "list", "data": data, "model": served.name, "usage": usage}).encode()


def models_body(served: Served) -> bytes:
    """The answer to ``GET /v1/models``."""
    model = {"id": served.name, "object": "model", "created": 0, "owned_by": "bertflow"}
    return json.dumps({"object": "list", "data": [model]}).encode()


def _parse_choice(request: Mapping[str, Any], param: str, choices: Mapping[str, Any]) -> str:
    """One of some names; the first where nothing is given."""
    given = request.get(param) or next(iter(choices))
    if not isinstance(given, str) or given not in choices:
        raise RequestError(f"{param} should be one of {', '.join(choices)}, got {given!r}.", param)
    return given


def _parse_input(given: Any, most: int) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list):
        raise RequestError(f"input should be a text or a list of texts, got {_kind(given)}.", "input")
    if not texts:
        raise RequestError("input should hold at least one text, got an empty list.", "input")
    if len(texts) > most:
        raise RequestError(f"input may hold {most} texts, got {len(texts)}. Send several requests.", "input")
    for index, text in enumerate(texts):
        if isinstance(text, int | list):
            raise RequestError(
                "input should be text, got token ids, which may be those of another tokenizer. Send the text itself "
                "(in LangChain: check_embedding_ctx_length=False).",
                "input",
            )
        if not isinstance(text, str):
            raise RequestError(f"input[{index}] should be a text, got {_kind(text)}.", "input")
        if not text.strip():
            raise RequestError(f"input[{index}] is empty. Leave it out.", "input")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RequestError(f"input[{index}] is not valid text: it holds half of a surrogate pair.", "input")
    return tuple(texts)


def _parse_dimensions(given: Any, served: Served) -> int:
    if given is None or (given == served.dim and not isinstance(given, bool)):
        return served.dim
    if served.no_prefix:
        raise RequestError(f"dimensions can only be {served.dim} here: {served.no_prefix} Leave it out.", "dimensions")
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= served.dim:
        raise RequestError(f"dimensions should be from 1 to {served.dim}, got {given!r}.", "dimensions")
    return given


def _kind(value: Any) -> str:
    """The type of a JSON value, in words."""
    names = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if value is None else names.get(type(value), "a text")
