"""Requests and answers in the form of OpenAI's ``/v1/embeddings``; pure functions of bytes.

    {"input": "text" | ["text", ...], "model": name, "encoding_format": "float" | "base64", "dimensions": d}
    {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": ...}], "model": name, "usage": {...}}
    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

What cannot be answered is refused here, before it is tokenized. Only the length in tokens is checked by the model.

Source: https://platform.openai.com/docs/api-reference/embeddings
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bertflow.array_types import Float32
from bertflow.data.lines import is_blank
from bertflow.encoder.abstract import Role
from bertflow.errors import UsageError, shown
from bertflow.similarity import unit_rows

SURROGATE = re.compile("[\ud800-\udfff]")
SIMILARITY = "/v1/similarity"
PAGES: Mapping[str, str] = {"/": "page.html", "/docs": "docs.html"}
"""The file of each page."""


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
        characters: Characters of a text.
        body: Bytes of a request.
        batch: Requests that are embedded together.
        tokens: Tokens that are embedded together; a request that has more is embedded alone.
        waiting: Requests that wait for an answer; more are refused for the moment.
        seconds: How long a request may wait.
        connections: Connections that are open.
        patience: Seconds that a client may take to send a request, to read an answer, and between two requests.
    """

    texts: int = 256
    characters: int = 2**16
    body: int = 2**20
    batch: int = 32
    tokens: int = 2**14
    waiting: int = 256
    seconds: float = 60
    connections: int = 512
    patience: float = 15

    def __post_init__(self) -> None:
        if not all(0 < limit < float("inf") for limit in vars(self).values()):
            raise UsageError(f"Limits must be above zero and finite, got {self}.")


@dataclass(frozen=True)
class Served:
    """What is served.

    Attributes:
        name: The model's name in requests and answers.
        dim: Width of an embedding.
        no_prefix: Why the leading coordinates cannot be used alone; empty if they can.
        normalize: Scale embeddings to length one, so that the dot product is the cosine.
        limits: Limits of a request and of the server.
        key: SHA-256 of the key that requests must show; empty if anybody may ask.
        host: Address that it listens on.
        allowed: Further names of the server, in lower case.
        role: What texts are by default: documents or queries.
    """

    name: str
    dim: int
    no_prefix: str
    normalize: bool = False
    limits: Limits = Limits()
    key: bytes = field(default=b"", repr=False)
    host: str = "127.0.0.1"
    allowed: frozenset[str] = frozenset()
    role: Role = "document"


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


class Found(NamedTuple):
    """What the model finds for a request.

    Attributes:
        x: Embeddings (n, dim), in the order of its texts.
        tokens: Number of tokens that were read, special tokens included; 0 until they are known.
        raw: Embeddings before the calibrator (n, dim_in); ``x`` itself where there is none.
        before: Embeddings by the encoder that the user came with; ``raw`` itself where nothing else is known.
    """

    x: Float32
    tokens: int
    raw: Float32
    before: Float32


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


def key_digest(key: str) -> bytes:
    """What is kept of a key. Digests have one length, so that comparing them does not show the key's length."""
    return hashlib.sha256(key.encode()).digest()


def parse_request(body: bytes, served: Served) -> Wanted:
    """Read a request for embeddings.

    Raises:
        RequestError: If it cannot be answered.
    """
    request = parse_object(body, served)
    encoding = parse_choice(request, "encoding_format", ENCODINGS)
    kind = parse_choice(request, "input_type", {served.role: served.role, **ROLES})
    texts = parse_input(request.get("input"), served.limits)
    return Wanted(texts, encoding, _parse_dimensions(request.get("dimensions"), served), ROLES[kind])


def parse_object(body: bytes, served: Served) -> dict[str, Any]:
    """The JSON object of a request; it names this model, or does not name one.

    Raises:
        RequestError: If it is something else.
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
            f"The model {shown(name)} is not served here; this is {served.name!r}.", "model", 404, "model_not_found"
        )
    return request


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


def parse_choice(request: Mapping[str, Any], param: str, choices: Mapping[str, Any]) -> str:
    """One of some names; the first where nothing is given."""
    given = next(iter(choices)) if request.get(param) is None else request[param]
    if not isinstance(given, str) or given not in choices:
        raise RequestError(f"{param} should be one of {', '.join(choices)}, got {shown(given)}.", param)
    return given


def parse_input(given: Any, limits: Limits) -> tuple[str, ...]:
    """Texts within the limits.

    Raises:
        RequestError: For the first that is not.
    """
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list):
        raise RequestError(f"input should be a text or a list of texts, got {_kind(given)}.", "input")
    if not texts:
        raise RequestError("input should hold at least one text, got an empty list.", "input")
    if len(texts) > limits.texts:
        raise RequestError(f"input may hold {limits.texts} texts, got {len(texts)}. Send several requests.", "input")
    for index, text in enumerate(texts):
        if isinstance(text, int | list):
            raise RequestError(
                "input should be text, got token ids, which may be those of another tokenizer. Send the text itself "
                "(in LangChain: check_embedding_ctx_length=False).",
                "input",
            )
        if not isinstance(text, str):
            raise RequestError(f"input[{index}] should be a text, got {_kind(text)}.", "input")
        if len(text) > limits.characters:
            raise RequestError(
                f"input[{index}] has {len(text)} characters, and {limits.characters} are read at most. Shorten it, or "
                "start the server with a larger --max_characters.",
                "input",
                code="context_length_exceeded",
            )
        if is_blank(text):
            raise RequestError(f"input[{index}] is empty. Leave it out.", "input")
        if SURROGATE.search(text):
            raise RequestError(f"input[{index}] is not valid text: it holds half of a surrogate pair.", "input")
    return tuple(texts)


def _parse_dimensions(given: Any, served: Served) -> int:
    if given is None or (given == served.dim and not isinstance(given, bool)):
        return served.dim
    if served.no_prefix:
        raise RequestError(f"dimensions can only be {served.dim} here: {served.no_prefix} Leave it out.", "dimensions")
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= served.dim:
        raise RequestError(f"dimensions should be from 1 to {served.dim}, got {shown(given)}.", "dimensions")
    return given


def _kind(value: Any) -> str:
    """The type of a JSON value, in words."""
    names = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if value is None else names.get(type(value), "a text")
