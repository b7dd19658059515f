"""How long a connection may wait for its client, and which one gives way when too many are open.

uvicorn has a time-out between two requests, and answers 503 above its ``limit_concurrency``. It has none for a client
that sends a header byte by byte, or does not read its answer: such a client would hold its connection for ever. Here

    every connection waits for its client for some seconds at most, and is closed then;
    if too many are open, the one whose time ends first gives way to a new one;
    if an answer is owed to all of them, uvicorn answers the new one with 503.

So slow clients cannot keep others out. uvicorn's protocol for h11 is what limits the size of a header.
"""

from asyncio import BaseTransport, TimerHandle, Transport
from typing import Any, cast

from h11 import LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """One connection. It either waits for its client, or owes it an answer. Requests find it in their state."""

    def __init__(self, *, app_state: dict[str, Any], **options: Any) -> None:
        super().__init__(app_state={**app_state, "connection": self}, **options)
        self.timer, self._unread = cast(TimerHandle | None, None), 0

    def connection_made(self, transport: BaseTransport) -> None:
        """Let it in; another one gives way if there is no room."""
        waiting = [one for one in self.connections if isinstance(one, Connection) and one.timer]
        super().connection_made(cast(Transport, transport))
        if waiting and len(self.connections) >= (self.limit_concurrency or float("inf")):
            min(waiting, key=lambda one: cast(TimerHandle, one.timer).when()).drop()
        self.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self.owe()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse the rest of a request, which is not answered otherwise; uvicorn fails where its answer was sent."""
        if self.cycle:
            self.cycle.disconnected = True
        try:
            super().send_400_response(msg)
        except LocalProtocolError:
            self.drop()

    def wait(self, times: int = 1) -> None:
        """Wait for its client from now on, ``times`` as long as others."""
        self.owe()
        self._unread = self.transport.get_write_buffer_size()
        self.timer = self.loop.call_later(times * self.timeout_keep_alive, self._late)

    def owe(self) -> None:
        """Owe an answer from now on, and stay open."""
        if self.timer:
            self.timer.cancel()
        self.timer = None

    def drop(self) -> None:
        """Close it at once."""
        self.owe()
        self.connections.discard(self)
        self.transport.abort()

    def _late(self) -> None:
        """Close it, unless the client is reading a long answer."""
        if self.transport.get_write_buffer_size() < self._unread:
            self.wait()
        else:
            self.drop()
