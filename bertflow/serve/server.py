"""An encoder over HTTP, as OpenAI's ``/v1/embeddings``, on LitServe.

    clients --> HTTP process --> queue --> worker process, the encoder --> HTTP process --> clients
                refuses what is wrong      takes all that waits, at once

Requests that wait are joined, so that the transformer sees batches where clients send single texts. A request that
cannot be answered is refused alone, and the others are embedded.

LitServe has the processes, the queue, the health check and the graceful stop. Two parts are our own: its OpenAI
specification refuses lists of texts once requests are batched, and its batching loop polls an empty queue without end.

    GET /health   GET /v1/models   POST /v1/embeddings
"""

import asyncio
import math
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from queue import Empty
from typing import Any, get_args

import numpy as np

from bertflow.encoder.abstract import Role, SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import BertflowError, MissingExtraError, UsageError
from bertflow.serve.protocol import (
    PATH,
    Float32,
    Found,
    Limits,
    RequestError,
    Served,
    Wanted,
    answer_body,
    models_body,
    parse_request,
)

try:
    from fastapi import HTTPException, Request, Response
    from litserve import Callback, LitAPI, LitServer
    from litserve.loops.simple_loops import BatchedLoop
    from litserve.specs.base import LitSpec
    from litserve.transport.base import MessageTransport
    from litserve.utils import LitAPIStatus, ResponseBufferItem
    from starlette.exceptions import HTTPException as HttpError
    from starlette.middleware.gzip import GZipMiddleware
except ImportError:
    raise MissingExtraError("litserve", "serve") from None

IDLE = 1.0
"""Seconds that the worker waits on an empty queue before it checks whether it should stop."""
BUSY = "The server is overloaded. Try again in a second."


Asked = tuple[Role, Sequence[str]]
"""What the texts of a request are, and the texts."""


class ServedModel:
    """An encoder that answers several requests in one pass.

    Args:
        encoder: A transformer, raw or calibrated.
        truncate: Truncate a text that is too long, instead of refusing it.

    Raises:
        UsageError: If the encoder is not a transformer.
    """

    def __init__(self, encoder: SentenceEncoder, truncate: bool = False) -> None:
        raw = encoder.raw
        if not isinstance(raw, TransformerEncoder):
            raise UsageError(
                f"Only transformers can be served, this is a {type(raw).__name__}. Give the folder of a transformer."
            )
        self.encoder, self._raw, self._truncate = encoder, raw, truncate
        self.max_tokens = int(raw.describe()["max_length"])

    def answer(self, requests: Sequence[Asked]) -> list[Found | RequestError]:
        """Embed the texts of several requests; those of one role in one pass."""
        checked = [self._checked(role, texts) for role, texts in requests]
        embedded: dict[int, Float32 | RequestError] = {}
        for role in get_args(Role):
            good = [n for n, tokens in enumerate(checked) if isinstance(tokens, int) and requests[n][0] == role]
            embedded |= dict(zip(good, self._embedded(role, [requests[n][1] for n in good]), strict=True))
        return [
            tokens if isinstance(tokens, RequestError) else _found(embedded[n], tokens)
            for n, tokens in enumerate(checked)
        ]

    def _checked(self, role: Role, texts: Sequence[str]) -> int | RequestError:
        """The number of tokens that are read, or why the request is refused."""
        try:
            tokenized = self._raw.tokenized(texts, role)
        except BertflowError as error:
            return RequestError(str(error), param="input")
        if tokenized.truncated and not self._truncate:
            long = np.flatnonzero(tokenized.lengths == self.max_tokens).tolist()
            index = next(index for index in long if self._raw.tokenized([texts[index]], role).truncated)
            return RequestError(
                f"input[{index}] has more than the {self.max_tokens} tokens that this model reads. Shorten it, or "
                "start the server with --truncate.",
                param="input",
                code="context_length_exceeded",
            )
        return int(tokenized.lengths.sum())

    def _embedded(self, role: Role, requests: Sequence[Sequence[str]]) -> list[Float32 | RequestError]:
        """The embeddings of each request. If the joined pass fails, each is tried alone, to find the one at fault."""
        encode = self.encoder.encode_query if role == "query" else self.encoder.encode
        try:
            x = encode([text for request in requests for text in request])
        except BertflowError as error:
            if len(requests) == 1:
                return [RequestError(str(error), param="input")]
            return [self._embedded(role, [one])[0] for one in requests]
        bounds = accumulate(map(len, requests), initial=0)
        return [x[start:stop] for start, stop in pairwise(bounds)]


def _found(x: Float32 | RequestError, tokens: int) -> Found | RequestError:
    return x if isinstance(x, RequestError) else Found(x, tokens)


class WaitingLoop(BatchedLoop):
    """Takes the first request, and all that arrived while the last batch was computed."""

    def get_batch_requests(
        self, lit_api: LitAPI, request_queue: Any, transport: MessageTransport
    ) -> tuple[list[Any], list[Any]]:
        """Requests as (response queue, id, what is asked), and those that waited too long, as (response queue, id)."""
        taken: list[Any] = []
        with suppress(Empty):  # when all that waited is taken
            taken.append(request_queue.get(timeout=IDLE))
            while len(taken) < lit_api.max_batch_size:
                taken.append(request_queue.get_nowait())
        late = time.monotonic() - lit_api.request_timeout
        good = [(queue, name, texts) for queue, name, came, texts in taken if came >= late]
        return good, [(queue, name) for queue, name, came, _ in taken if came < late]


class EmbeddingSpec(LitSpec):
    """What happens in the HTTP process: read, refuse, queue, answer."""

    def __init__(self, served: Served, limits: Limits) -> None:
        super().__init__()
        self.api_path = PATH
        self._served, self._limits = served, limits
        self.add_endpoint(PATH, self.embeddings, ["POST"])
        self.add_endpoint("/v1/models", self.models, ["GET"])

    async def embeddings(self, request: Request) -> Response:
        """``POST /v1/embeddings``."""
        try:
            wanted = parse_request(await request.body(), self._served, self._limits)
            return _json(answer_body(self._served, wanted, await self._answer(wanted)))
        except RequestError as error:
            return _refusal(error)
        except BertflowError as error:
            return _refusal(RequestError(str(error), param="input"))

    async def models(self) -> Response:
        """``GET /v1/models``."""
        return _json(models_body(self._served))

    def decode_request(self, request: Asked, context_kwargs: Any = None) -> Asked:
        """What was queued, as it is."""
        return request

    def encode_response(self, output: Found | RequestError, context_kwargs: Any = None) -> Found | RequestError:
        """What was found, or the refusal, as it goes back to the HTTP process."""
        return output

    async def _answer(self, wanted: Wanted) -> Found:
        if len(self.response_buffer) >= self._limits.waiting:
            raise RequestError(BUSY, 503, code="overloaded", kind="server_error")
        name, event = uuid.uuid4(), asyncio.Event()
        self.response_buffer[name] = ResponseBufferItem(event=event)
        try:
            self.request_queue.put_nowait((self.response_queue_id, name, time.monotonic(), (wanted.role, wanted.texts)))
            await asyncio.wait_for(event.wait(), self._limits.seconds)
            response, status = self.response_buffer[name].response
        except TimeoutError:
            response, status = None, LitAPIStatus.ERROR
        finally:
            del self.response_buffer[name]
        if isinstance(response, RequestError):
            raise response
        if status == LitAPIStatus.OK and isinstance(response, Found):
            return response
        if response is None or isinstance(response, HTTPException):
            raise RequestError(
                f"No answer within {self._limits.seconds:g} seconds.", 504, code="timeout", kind="server_error"
            )
        raise RequestError("The model failed; the server's log says why.", 500, kind="server_error")


class EmbeddingApi(LitAPI):
    """What happens in the worker process: open the encoder once, answer batches."""

    def __init__(self, open_model: Callable[[], ServedModel], served: Served, limits: Limits) -> None:
        super().__init__(max_batch_size=limits.batch, loop=WaitingLoop(), spec=EmbeddingSpec(served, limits))
        self._open_model = open_model

    def setup(self, device: str) -> None:
        """Open the encoder."""
        # Ctrl-C reaches every process of a terminal; the worker is stopped when the last request is answered.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._model = self._open_model()

    def predict(self, x: Sequence[Asked], **_: Any) -> list[Found | RequestError]:
        """The answers to a batch of requests."""
        return self._model.answer(x)


class Ready(Callback):
    """Tells when the worker has opened its encoder."""

    def __init__(self, tell: Callable[[], object]) -> None:
        super().__init__()
        self._tell = tell

    def on_after_setup(self, lit_api: LitAPI) -> None:
        """Called by LitServe in the worker process."""
        self._tell()


def build_server(
    open_model: Callable[[], ServedModel], served: Served, limits: Limits, tell: Callable[[], object]
) -> LitServer:
    """A server that is ready to run.

    Args:
        open_model: Opens the encoder in the worker process; it must pickle.
        served: What clients are told about it.
        limits: Limits of a request and of the server.
        tell: Called when the server is ready; in the worker process, so it must pickle.
    """
    server = LitServer(
        EmbeddingApi(open_model, served, limits),
        accelerator="cpu",  # one worker; the encoder chooses its own device
        timeout=limits.seconds,
        max_payload_size=limits.body,
        callbacks=[Ready(tell)],
        disable_openapi_url=True,
        model_metadata={"name": served.name, "dim": served.dim},
    )
    # What was accepted may take as long when the server is told to stop.
    server.uvicorn_graceful_timeout = math.ceil(limits.seconds) + 1
    # Compressing numbers takes as long as embedding a sentence, and saves little.
    server.app.user_middleware = [one for one in server.app.user_middleware if one.cls is not GZipMiddleware]
    server.app.add_exception_handler(HttpError, _http_error)
    server.app.add_exception_handler(Exception, _failure)
    return server


async def _http_error(request: Request, error: Exception) -> Response:
    """LitServe's and FastAPI's own refusals, in OpenAI's form."""
    assert isinstance(error, HttpError)
    response = _refusal(RequestError(f"{request.method} {request.url.path}: {error.detail}.", error.status_code))
    response.headers.update(error.headers or {})
    return response


async def _failure(request: Request, error: Exception) -> Response:
    message = f"{request.method} {request.url.path} failed; the server's log says why."
    return _refusal(RequestError(message, 500, kind="server_error"))


def _refusal(error: RequestError) -> Response:
    response = _json(error.body(), error.status)
    if error.status == 503:
        response.headers["Retry-After"] = "1"
    return response


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
