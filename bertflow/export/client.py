"""A client of OpenAI's ``/v1/embeddings``: whatever a server answers, or does not, becomes embeddings or one line.

An answer has a limit in size, and each wait for more of it one in time. Redirects are not followed, so that a key goes
to the given address alone.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from operator import itemgetter
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np
from typing_extensions import TypedDict

from bertflow.array_types import Float32
from bertflow.errors import DataError, UsageError
from bertflow.records import parse_record

PATH = "/v1/embeddings"
MODELS = "/v1/models"
IS_IT = "Is it an embedding server?"
"""What the user can check about an answer without embeddings."""
TIMEOUT = 60.0
"""Seconds that may pass between two parts of an answer."""
LARGEST = 2**26
"""Bytes that one answer may have."""
SAID = 300
"""Bytes of a refusal that are repeated."""
TOO_LONG = (400, 413, 422)
"""What servers answer to texts that are longer than they take."""


class RefusedError(UsageError):
    """A server refused a request; ``status`` is what it answered with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, eq=False)
class Answers:
    """What a server answered to some sentences.

    Attributes:
        vectors: (n, dim), a row for each sentence that it took.
        rows: The numbers of these sentences, rising.
        refusal: Why it refused the others; None if there are none.
    """

    vectors: Float32
    rows: list[int]
    refusal: RefusedError | None


class _Row(TypedDict):
    index: int
    embedding: list[float]


class _Answer(TypedDict):
    data: list[_Row]


class _Model(TypedDict):
    id: str


class _Models(TypedDict):
    data: list[_Model]


def listed_model(url: str, key: str | None = None) -> str:
    """The first model that a server lists; "bertflow" if it lists none.

    Raises:
        UsageError: If the address is not one, or the server cannot be reached.
    """
    address = _address(url).removesuffix(PATH) + MODELS
    try:
        listed = parse_record(_ask(address, None, key), _Models, address, "list of models", IS_IT)["data"]
    except (RefusedError, DataError):  # it need not have a list, and names a wrong model itself
        listed = []
    return listed[0]["id"] if listed else "bertflow"


def embed_remotely(
    url: str, sentences: Sequence[str], model: str = "bertflow", key: str | None = None, batch: int = 8
) -> Answers:
    """Embeddings as a server gives them. Where it refuses several sentences, each of them is sent alone.

    Args:
        url: Address of the server, with or without ``/v1/embeddings``.
        sentences: The sentences, which are sent unchanged.
        model: Name of the model on the server.
        key: Key for the header ``Authorization: Bearer``.
        batch: Number of sentences in a request.

    Raises:
        UsageError: If the address is not one, or the server cannot be reached or refuses all sentences.
        DataError: If the answer holds no embeddings.
    """
    address, found, refusal = _address(url), dict[int, list[float]](), None
    batches = [list(range(start, min(start + batch, len(sentences)))) for start in range(0, len(sentences), batch)]
    while batches:
        rows = batches.pop(0)
        try:
            found.update(zip(rows, _embed(address, [sentences[row] for row in rows], model, key), strict=True))
        except RefusedError as error:
            if error.status not in TOO_LONG:
                raise
            refusal, batches = error, [*([row] for row in rows if len(rows) > 1), *batches]
    if refusal and not found:
        raise refusal
    if len(widths := {len(row) for row in found.values()}) != 1 or widths == {0}:
        raise DataError(f"{address} answered with vectors of different widths, or of none. {IS_IT}")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is named then
        vectors = np.array(list(found.values()), np.float32)
    return Answers(vectors, list(found), refusal if len(found) < len(sentences) else None)


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or not (url.isascii() and url.isprintable()) or " " in url:
        raise UsageError(f"url should be http://... or https://..., got {url!r}.")
    return url.rstrip("/").removesuffix(PATH).removesuffix("/v1") + PATH


def _embed(address: str, sentences: list[str], model: str, key: str | None) -> list[list[float]]:
    body = _ask(address, {"model": model, "input": sentences, "encoding_format": "float"}, key)
    data = parse_record(body, _Answer, address, "response with embeddings", IS_IT, finite=False)["data"]
    if sorted(row["index"] for row in data) != list(range(len(sentences))):
        raise DataError(f"{address} answered {len(sentences)} sentences with {len(data)} embeddings. {IS_IT}")
    return [row["embedding"] for row in sorted(data, key=itemgetter("index"))]


class _Straight(HTTPRedirectHandler):
    """A redirect is a refusal."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _ask(address: str, question: object, key: str | None) -> bytes:
    """What a server answers; ``question`` is posted as JSON, unless there is none."""
    if key and not (key.isascii() and key.isprintable()):
        raise UsageError("A key should be ASCII characters in one line. Look at the environment variable.")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    body = None if question is None else json.dumps(question).encode()
    try:
        with build_opener(_Straight).open(Request(address, body, headers), timeout=TIMEOUT) as answer:
            found: bytes = answer.read(LARGEST + 1)
    except HTTPError as error:
        raise _refused(address, error) from None
    except (OSError, HTTPException) as error:
        raise UsageError(f"{address} {_reason(error)}") from None
    if len(found) > LARGEST:
        raise DataError(f"{address} answered with more than {LARGEST} bytes. {IS_IT}")
    return found


def _refused(address: str, error: HTTPError) -> RefusedError:
    """The server's own words, without characters that a terminal would take for commands."""
    said = b""
    with error, suppress(OSError, HTTPException):
        said = error.read(SAID)
    words = " ".join(said.decode(errors="replace").split())
    shown = "".join(one if one.isprintable() else "?" for one in words)
    if place := error.headers.get("Location"):
        return RefusedError(f"{address} answers from elsewhere: {place!r}. Give that address as url.", error.code)
    return RefusedError(f"{address} refused with {error.code}: {shown}. Check model_name, key and batch.", error.code)


def _reason(error: Exception) -> str:
    """Why there is no answer, and what to do."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return f"did not answer within {TIMEOUT:g} seconds. {IS_IT}"
    if "SSL" in type(cause).__name__:
        return f"cannot be reached: {cause}. Does it speak TLS, with a certificate that is trusted here?"
    if isinstance(cause, HTTPException):
        return f"does not answer in HTTP: {type(cause).__name__}. Is the port right, and http or https?"
    return f"cannot be reached: {cause}. Is the server running?"
