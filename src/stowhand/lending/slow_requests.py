"""uvicorn's protocol, with what it lacks: a deadline for a request to come in whole, and a limit of connections.

uvicorn knows one timer, between two requests. A client that sends a byte a minute would hold its connection for ever;
here every byte of a request, headers and body, must have come within so many seconds of its first one.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from stowhand.lending.refusals import Refused, malformed
from stowhand.wire import Kind

READ_TIMEOUT = 30.0
"""Seconds."""
CONNECTIONS = 1000
PATIENCE = 4
"""How many times as long a client may leave a reply unread."""


class BoundedProtocol(H11Protocol):
    """One connection. At any time somebody watches it: the application, uvicorn's own timer, or ours."""

    read_timeout = READ_TIMEOUT
    most_connections = CONNECTIONS
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if (sock := transport.get_extra_info("socket")) is not None and sock.family != socket.AF_UNIX:
            # asyncio does so only for sockets that were made with the number of TCP. Head and body of a reply are two
            # writes: without it the second one waits for the client's delayed acknowledgement, 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > self.most_connections:
            self._end(Refused(Kind.TOO_MANY, "too many connections", "close idle ones", retry_after=5, status=503))
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """The client does not read. What waits for it fills our memory, and a mere close would wait for it too."""
        super().pause_writing()
        self._unread = self.loop.call_later(PATIENCE * self.read_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._end(malformed("this is no HTTP request, or its headers are too large", "send HTTP/1.1"))

    def _watch(self) -> None:
        awaited = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and self.timeout_keep_alive_task is None
        if not awaited or self.transport.is_closing():
            self._unwatch()
        elif self._deadline is None:  # never put off: a byte now and then must not help
            self._deadline = self.loop.call_later(self.read_timeout, self._late)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        what = f"the request did not come in whole within {self.read_timeout:g} s"
        self._end(Refused(Kind.MALFORMED, what, "send it at once", status=408))

    def _end(self, refused: Refused) -> None:
        """Say why, if nothing has been said yet, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers: list[tuple[str, Any]] = [("content-type", "application/json"), ("connection", "close")]
            if refused.retry_after is not None:
                headers.append(("retry-after", str(refused.retry_after)))
            body = msgspec.json.encode(refused.trouble())
            headers.append(("content-length", str(len(body))))
            with suppress(h11.LocalProtocolError):
                for event in (
                    h11.Response(status_code=refused.status, headers=headers),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
