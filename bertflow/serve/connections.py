"""Limits on connections, which uvicorn does not have: how many are open, and how long each may wait for its client.

uvicorn counts connections when a request has arrived, and has a time-out between two requests alone. A client that
sends a header byte by byte, or does not read its answer, would hold a connection for ever. Here

    every connection waits for its client for some seconds at most, and is closed then;
    if too many are open, the one that has waited for the longest gives way to a new one;
    if none waits, because an answer is owed to all of them, the new one is refused with 503.

So slow clients cannot keep others out. uvicorn's protocol for h11 is what limits the size of a header.
"""

import asyncio
from asyncio import BaseTransport, TimerHandle, Transport
from typing import Any, cast

from h11 import LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertflow.serve.protocol import RequestError

FULL = RequestError("Too many connections are open. Try again in a second.", status=503, code="overloaded").body()
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(FULL), FULL)
)
"""The answer to a connection that is refused."""


class Gate:
    """The connections of a server.

    Args:
        most: How many may be open.
        patience: Seconds that each may wait for its client.
    """

    def __init__(self, most: int, patience: float) -> None:
        self.most, self.patience = most, patience
        self.open: set[Connection] = set()
        self.waiting: dict[Connection, None] = {}
        """Those that wait for their client; the first for the longest time."""


class Connection(H11Protocol):
    """One connection. It either waits for its client, or owes it an answer.

    Args:
        gate: The connections of its server.
        app_state: What requests find in their state; there they find their connection as well.
        options: As uvicorn gives them.
    """

    def __init__(self, gate: Gate, *, app_state: dict[str, Any], **options: Any) -> None:
        super().__init__(app_state={**app_state, "connection": self}, **options)
        self.lost = asyncio.Event()
        """Set when it is closed on both sides."""
        self._gate, self._timer, self._unread = gate, cast(TimerHandle | None, None), 0

    def connection_made(self, transport: BaseTransport) -> None:
        """Let it in if there is room."""
        super().connection_made(cast(Transport, transport))
        gate = self._gate
        if len(gate.open) >= gate.most:
            if not gate.waiting:
                self.transport.write(REFUSAL)
                self.transport.close()
                return
            next(iter(gate.waiting)).drop()
        gate.open.add(self)
        self.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._forget()
        super().connection_lost(exc)
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        """Pass on what came. uvicorn fails where a body turns out to be malformed after its answer was sent."""
        try:
            super().data_received(data)
        except LocalProtocolError:
            self.drop()

    def wait(self, times: float = 1) -> None:
        """From now on it waits for its client, ``times`` as long as others."""
        self.owe()
        if self not in self._gate.open:
            return
        self._gate.waiting[self] = None
        self._unread = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(times * self._gate.patience, self._late)

    def owe(self) -> None:
        """From now on it owes an answer, and is not closed."""
        self._gate.waiting.pop(self, None)
        if self._timer:
            self._timer.cancel()

    def drop(self) -> None:
        """Close it at once."""
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        self.owe()
        self._gate.open.discard(self)

    def _late(self) -> None:
        """Close it, unless the client is reading a long answer."""
        if self.transport.get_write_buffer_size() < self._unread:
            self.wait()
        else:
            self.drop()
