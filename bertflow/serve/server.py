"""An encoder over HTTP, on Starlette and uvicorn, in one process.

    clients --> connections.py --> here: read, refuse --> model.py, a thread: embed --> clients

What is served:

    GET /health   GET /metrics   GET /v1/models   POST /v1/embeddings   POST /v1/similarity   GET /   GET /docs

``/health`` and both pages are open to all; the others want the key, where there is one. A page of somebody else that a
browser has open can make it send requests to this server. It cannot choose two headers: ``Host`` is the name by which
it found the server, also where that name was rebound to another address, and ``Origin`` is the page's own.
"""

import asyncio
import hmac
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from socket import gethostname
from typing import Any, Self
from urllib.parse import urlsplit

from bertflow.encoder.abstract import Role
from bertflow.errors import BertflowError, needs
from bertflow.export.client import PATH
from bertflow.serve.metrics import Metrics
from bertflow.serve.model import Batcher, ServedModel
from bertflow.serve.protocol import (
    PAGES,
    SIMILARITY,
    Found,
    Limits,
    RequestError,
    Served,
    answer_body,
    key_digest,
    models_body,
    parse_request,
)
from bertflow.serve.trying import as_query, comparison_body, page_with_headers, parse_comparison

with needs("starlette", "serve"):
    from starlette import applications, exceptions, routing, types
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
with needs("uvicorn", "serve"):
    import uvicorn

    from bertflow.serve.connections import Connection

ADDRESS = re.compile(r"[\d.]+|.*:.*")
"""IP address in a URL; no name that a browser looks up is made of digits and dots alone, or has a colon."""
LONGEST = 60
"""Characters of a header that a message shows."""
OPEN = ("/health", *PAGES)
"""Routes that need no key."""
BODY = 2
"""A body may take ``Limits.patience``, and is refused then; its connection may wait this many times as long."""


class EmbeddingServer:
    """The requests of a server, and how they are answered; a context, which ends the thread that embeds.

    Args:
        served: What clients are told about the encoder, and the limits.
        model: The encoder.
    """

    def __init__(self, served: Served, model: ServedModel) -> None:
        self._served, self._model, self._server = served, model, uvicorn.Server(self._config(served.limits))
        now = {
            "open_connections": lambda: len(self._server.server_state.connections),
            "waiting_requests": lambda: self._batcher.unanswered,
        }
        self._metrics = Metrics(model.domain, now)
        self._batcher: Batcher = Batcher(model, served.limits, self._metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._batcher.close()

    def run(self, listener: socket.socket) -> None:
        """Answer until SIGTERM, Ctrl-C or ``stop``, and then what was accepted."""
        self._server.run([listener])

    def stop(self) -> None:
        """Do what SIGTERM does; from any thread."""
        self._server.should_exit = True

    def _config(self, limits: Limits) -> uvicorn.Config:
        gets = {"/health": self.health, "/metrics": self.metrics, "/v1/models": self.models}
        gets |= dict.fromkeys(PAGES, self.page)
        posts = {PATH: self.embeddings, SIMILARITY: self.similarity}
        routes = [routing.Route(path, partial(self._admit, one), methods=["GET"]) for path, one in gets.items()]
        routes += [routing.Route(path, partial(self._admit, one), methods=["POST"]) for path, one in posts.items()]
        refusals = (RequestError, BertflowError, exceptions.HTTPException, ClientDisconnect)
        app = applications.Starlette(routes=routes, exception_handlers=dict.fromkeys(refusals, _failed))
        return uvicorn.Config(
            partial(self._watched, app),
            http=Connection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",  # what a client does wrong is told to the client
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=128,
            limit_concurrency=limits.connections + 1,  # uvicorn counts the one that it refuses
            timeout_keep_alive=limits.patience,  # type: ignore[arg-type]  # seconds may have fractions
            timeout_graceful_shutdown=round(limits.seconds) + 1,
        )

    async def _admit(self, answer: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        """Refuse who may not ask."""
        require_host(request.headers, self._served)
        if request.url.path not in OPEN:
            require_key(request.headers.get("authorization", ""), self._served)
        return await answer(request)

    async def health(self, _: Request) -> Response:
        """``GET /health``."""
        return Response("ok", media_type="text/plain")

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``, as Prometheus reads it."""
        body, kind = self._metrics.body(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": kind})

    async def models(self, _: Request) -> Response:
        """``GET /v1/models``."""
        return _json(models_body(self._served))

    async def embeddings(self, request: Request) -> Response:
        """``POST /v1/embeddings``."""
        wanted = parse_request(await self._body(request), self._served)
        request.state.connection.owe()
        found = await self._answer(request, wanted.role, wanted.texts)
        return _json(answer_body(self._served, wanted, found.x, found.tokens))

    async def similarity(self, request: Request) -> Response:
        """``POST /v1/similarity``: the query, then its texts, each within the limits of a request for embeddings."""
        query, texts, role = parse_comparison(await self._body(request), self._served)
        request.state.connection.owe()
        try:
            asked = await self._answer(request, role, [query])
        except RequestError as error:
            raise as_query(error) from None
        found = await self._answer(request, "document", texts)
        return _json(comparison_body(self._served, asked, found, self._model))

    async def page(self, request: Request) -> Response:
        """``GET /`` and ``GET /docs``; they hold nothing of the model, so they need no key."""
        page, headers = page_with_headers(request.url.path)
        return Response(page, headers=headers, media_type="text/html")

    async def _body(self, request: Request) -> bytes:
        """The body, as far as limits of size and time allow; what comes after an answer is read, and forgotten."""
        kind = request.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != "application/json":  # a browser asks before it sends this one
            message = f"The body should be JSON, with the header Content-Type: application/json, got {kind!r}."
            raise RequestError(message, status=415)
        most, patience, body = self._served.limits.body, self._served.limits.patience, bytearray()
        too_large = RequestError(f"The body may hold {most} bytes. Send several requests.", status=413)
        if int(request.headers.get("content-length", 0)) > most:
            raise too_large
        try:
            async with asyncio.timeout(patience):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise RequestError(f"The body did not arrive within {patience:g} seconds.", status=408) from None
        return bytes(body)

    async def _answer(self, request: Request, role: Role, texts: Sequence[str]) -> Found:
        """What the model finds; the request is dropped when its client goes away."""
        answer = asyncio.ensure_future(self._batcher.answer(role, texts))
        leaves = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait({answer, leaves}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientDisconnect
            return answer.result()
        finally:
            answer.cancel()
            leaves.cancel()

    async def _watched(self, app: types.ASGIApp, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Tell the connection when it waits for its client, and count the answers."""
        connection: Connection = scope["state"]["connection"]
        begin = time.perf_counter()

        async def counting(message: types.Message) -> None:
            if message["type"] == "http.response.start":
                if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
                    # Some proxy may have read another body: RFC 9112, section 6.3.
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
                self._metrics.answered(scope["path"], message["status"], time.perf_counter() - begin)
            await send(message)

        connection.wait(BODY)
        await app(scope, receive, counting)
        connection.wait()


async def _failed(request: Request, error: Exception) -> Response:
    """What we and Starlette refuse, in OpenAI's form."""
    headers: dict[str, str] = dict(getattr(error, "headers", None) or {})
    if isinstance(error, exceptions.HTTPException):
        error = RequestError(f"{request.method} {request.url.path}: {error.detail}.", status=error.status_code)
    elif isinstance(error, ClientDisconnect):
        error = RequestError("The client went away.", status=499)  # it is not read
    elif isinstance(error, BertflowError):
        error = RequestError(str(error), "input")
    assert isinstance(error, RequestError)
    return _json(error.body(), error.status, {**headers, **HEADERS.get(error.status, {})})


HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},
    503: {"Retry-After": "1"},
}
"""What goes with a status."""


def _json(body: bytes, status: int = 200, headers: Mapping[str, Any] | None = None) -> Response:
    return Response(body, status, headers, "application/json")


def require_key(header: str, served: Served) -> None:
    """Check the header ``Authorization: Bearer KEY``, in a time that does not show how much of it is right.

    Raises:
        RequestError: If the server has a key, and the header does not hold it.
    """
    scheme, _, given = header.partition(" ")
    if served.key and not (hmac.compare_digest(key_digest(given.strip()), served.key) and scheme.lower() == "bearer"):
        raise RequestError(
            "This server needs a key, in the header Authorization: Bearer KEY. Ask its operator for one.",
            status=401,
            code="invalid_api_key",
        )


def require_host(headers: Mapping[str, str], served: Served) -> None:
    """Refuse what a page of somebody else makes a browser ask; only HTTP/1.0 can leave out the host, no browser does.

    Raises:
        RequestError: If the header Host does not name this server, or the header Origin names another one.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if host and not _answers_to(served, _name(f"//{host}")):
        raise RequestError(
            f"This server is not called {host[:LONGEST]!r}. Call it by its address, or start it with --allow_host and "
            "that name.",
            status=403,
        )
    if origin is not None and origin.partition("//")[2] != host and _name(origin) not in served.allowed:
        raise RequestError(
            f"The page {origin[:LONGEST]!r} is not of this server. Start it with --allow_host and the page's host, "
            "if it may ask.",
            status=403,
        )


def _answers_to(served: Served, name: str) -> bool:
    """Whether a client may call the server by this name; if it listens on all addresses, every address is accepted."""
    if name in {"localhost", "127.0.0.1", "::1", served.host} | served.allowed:
        return True
    return ip_address(served.host).is_unspecified and (name == gethostname().lower() or bool(ADDRESS.fullmatch(name)))


def _name(address: str) -> str:
    """The host in an address, in lower case; empty if there is none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
