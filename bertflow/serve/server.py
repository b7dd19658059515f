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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from queue import Empty
from typing import Any, cast, get_args

import numpy as np

from bertflow.calibration.calibrators import Whitening
from bertflow.encoder.abstract import Float32, Role, SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import BertflowError, UsageError, needs
from bertflow.export.golden import PATH
from bertflow.flow.glow import FlowMap
from bertflow.opening import load
from bertflow.serve import Found, RequestError, Served, Wanted, answer_body, models_body, parse_request

with needs("litserve", "serve"):
    from fastapi import HTTPException, Request, Response
    from litserve import LitAPI, LitServer
    from litserve.loops.simple_loops import BatchedLoop
    from litserve.specs.base import LitSpec
    from litserve.transport.base import MessageTransport
    from litserve.utils import LitAPIStatus, ResponseBufferItem
    from starlette.exceptions import HTTPException as HttpError
    from starlette.middleware.gzip import GZipMiddleware

IDLE = 1.0
"""Seconds that the worker waits on an empty queue before it checks whether it should stop."""
Asked = tuple[Role, Sequence[str]]
"""What the texts of a request are, and the texts."""


class ServedModel:
    """An encoder that answers several requests in one pass.

    Args:
        model: What ``bertflow.load`` opens: a transformer, raw or calibrated.
        device: Where it runs.
        truncate: Truncate a text that is too long, instead of refusing it.

    Raises:
        UsageError: If it is not a transformer.
        DataError: If the folder is missing, incomplete or damaged.
    """

    def __init__(self, model: str, device: str = "auto", truncate: bool = False) -> None:
        encoder = load(model, device=device)
        raw = encoder.raw
        if not isinstance(raw, TransformerEncoder):
            raise UsageError(
                f"Only transformers can be served, this is a {type(raw).__name__}. Give the folder of a transformer."
            )
        self.encoder, self._raw, self._truncate = encoder, raw, truncate
        self.max_tokens = int(raw.describe()["max_length"])

    def answer(self, requests: Sequence[Asked]) -> list[Found | RequestError]:
        """Embed the texts of several requests; those of one role in one pass."""
        answers: list[Any] = [self._checked(role, texts) for role, texts in requests]
        for role in get_args(Role):
            good = [n for n, tokens in enumerate(answers) if isinstance(tokens, int) and requests[n][0] == role]
            for n, x in zip(good, self._embedded(role, [requests[n][1] for n in good]), strict=True):
                answers[n] = x if isinstance(x, RequestError) else (x, answers[n])
        return answers

    def _checked(self, role: Role, texts: Sequence[str]) -> int | RequestError:
        """The number of tokens that are read, or why the request is refused."""
        try:
            tokenized = self._raw.tokenized(texts, role)
        except BertflowError as error:
            return RequestError(str(error), "input")
        if tokenized.truncated and not self._truncate:
            long = np.flatnonzero(tokenized.lengths == self.max_tokens).tolist()
            index = next(index for index in long if self._raw.tokenized([texts[index]], role).truncated)
            return RequestError(
                f"input[{index}] has more than the {self.max_tokens} tokens that this model reads. Shorten it, or "
                "start the server with --truncate.",
                "input",
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
                return [RequestError(str(error), "input")]
            return [self._embedded(role, [one])[0] for one in requests]
        bounds = accumulate(map(len, requests), initial=0)
        return [x[start:stop] for start, stop in pairwise(bounds)]


def no_prefix(encoder: SentenceEncoder) -> str:
    """Why the leading coordinates of an embedding cannot be used alone; empty for whitening.

    Whitening sorts its coordinates by falling variance, so the first d are whitening to d directions.
    """
    if encoder.calibrator is None:
        return "the leading coordinates of a raw embedding are no better than the others."
    if isinstance(encoder.calibrator, Whitening):
        return ""
    if isinstance(encoder.calibrator.map, FlowMap):
        return "a flow mixes all coordinates, so the leading ones are not an embedding."
    return "this calibrator does not sort its coordinates."


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

    def __init__(self, served: Served) -> None:
        super().__init__()
        self.api_path, self._served = PATH, served
        self.add_endpoint(PATH, self.embeddings, ["POST"])
        self.add_endpoint("/v1/models", self.models, ["GET"])

    async def embeddings(self, request: Request) -> Response:
        """``POST /v1/embeddings``."""
        wanted = parse_request(await request.body(), self._served)
        return _json(answer_body(self._served, wanted, *await self._answer(wanted)))

    async def models(self) -> Response:
        """``GET /v1/models``."""
        return _json(models_body(self._served))

    def decode_request(self, request: Any, context_kwargs: Any = None) -> Any:
        """What was queued, as it is."""
        return request

    encode_response = decode_request
    """What was found, or the refusal, as it goes back to the HTTP process."""

    async def _answer(self, wanted: Wanted) -> Found:
        limits = self._served.limits
        if len(self.response_buffer) >= limits.waiting:
            raise RequestError("The server is overloaded. Try again in a second.", status=503, code="overloaded")
        name, event = uuid.uuid4(), asyncio.Event()
        self.response_buffer[name] = ResponseBufferItem(event=event)
        try:
            self.request_queue.put_nowait((self.response_queue_id, name, time.monotonic(), (wanted.role, wanted.texts)))
            await asyncio.wait_for(event.wait(), limits.seconds)
            response, status = self.response_buffer[name].response
        except TimeoutError:
            response, status = None, LitAPIStatus.ERROR
        finally:
            del self.response_buffer[name]
        if isinstance(response, RequestError):
            raise response
        if status == LitAPIStatus.OK:
            return cast(Found, response)
        if response is None or isinstance(response, HTTPException):
            raise RequestError(f"No answer within {limits.seconds:g} seconds.", status=504, code="timeout")
        raise RequestError("The model failed; the server's log says why.", status=500)


class EmbeddingApi(LitAPI):
    """What happens in the worker process: open the encoder once, answer batches."""

    def __init__(self, open_model: Callable[[], ServedModel], served: Served, tell: Callable[[], object]) -> None:
        super().__init__(max_batch_size=served.limits.batch, loop=WaitingLoop(), spec=EmbeddingSpec(served))
        self._open_model, self._tell = open_model, tell

    def setup(self, device: str) -> None:
        """Open the encoder, and tell that it is open."""
        # Ctrl-C reaches every process of a terminal; the worker is stopped when the last request is answered.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._model = self._open_model()
        self._tell()

    def predict(self, x: Sequence[Asked], **_: Any) -> list[Found | RequestError]:
        """The answers to a batch of requests."""
        return self._model.answer(x)


def build_server(open_model: Callable[[], ServedModel], served: Served, tell: Callable[[], object]) -> LitServer:
    """A server that is ready to run.

    Args:
        open_model: Opens the encoder in the worker process; it must pickle.
        served: What clients are told about it, and the limits.
        tell: Called when the server is ready; in the worker process, so it must pickle.
    """
    server = LitServer(
        EmbeddingApi(open_model, served, tell),
        accelerator="cpu",  # one worker; the encoder chooses its own device
        timeout=served.limits.seconds,
        max_payload_size=served.limits.body,
        disable_openapi_url=True,
        model_metadata={"name": served.name, "dim": served.dim},
    )
    # What was accepted may take as long when the server is told to stop.
    server.uvicorn_graceful_timeout = math.ceil(served.limits.seconds) + 1
    # Compressing numbers takes as long as embedding a sentence, and saves little.
    server.app.user_middleware = [one for one in server.app.user_middleware if one.cls is not GZipMiddleware]
    for kind in (RequestError, BertflowError, HttpError, Exception):
        server.app.add_exception_handler(kind, _failed)
    return server


async def _failed(request: Request, error: Exception) -> Response:
    """What we, LitServe and FastAPI refuse, and what breaks, in OpenAI's form."""
    where, headers = f"{request.method} {request.url.path}", getattr(error, "headers", None)
    if isinstance(error, HttpError):
        error = RequestError(f"{where}: {error.detail}.", status=error.status_code)
    elif isinstance(error, BertflowError):
        error = RequestError(str(error), "input")
    elif not isinstance(error, RequestError):
        error = RequestError(f"{where} failed; the server's log says why.", status=500)
    return _json(error.body(), error.status, headers or ({"Retry-After": "1"} if error.status == 503 else None))


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers, "application/json")
