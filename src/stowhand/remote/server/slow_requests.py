"""uvicorn's protocol, with what it lacks: a deadline for a request to come in whole, and limits of connections.

uvicorn knows one timer, between two requests. A client that sends a byte a minute would hold its connection for ever;
here every byte of a request, headers and body, must have come within so many seconds of its first one. Who has not been
let in yet has less of everything (places.py).

This stands on names of uvicorn that it promises to nobody (``INTERNALS``). A server of our own would be several hundred
lines of HTTP to keep right, and a pin to one version would forbid its security fixes; so they are looked for when a
server starts, which is refused where one is gone: methods that nobody calls any more would be limits that nobody keeps.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from stowhand.errors import ConfigurationError
from stowhand.remote.server.places import STRANGERS_WAIT, Places
from stowhand.remote.server.refusals import Refused, malformed
from stowhand.remote.wire import Kind

READ_TIMEOUT = 30.0
"""Seconds."""
CONNECTIONS = 1000
PATIENCE = 4
"""How many times as long a client may leave a reply unread."""
CONNECTION = "stowhand.connection"
"""Under this name a request's ``state`` bears its connection."""
METHODS = (
    *("connection_made", "connection_lost", "data_received", "on_response_complete", "pause_writing"),
    *("resume_writing", "send_400_response", "timeout_keep_alive_handler"),
)
ATTRIBUTES = (
    *("app_state", "client", "conn", "cycle", "loop", "timeout_keep_alive", "timeout_keep_alive_task"),
    "transport",
)
INTERNALS = (*METHODS, *ATTRIBUTES)
"""Of ``H11Protocol``: what is overridden and used here."""


def check_uvicorn(protocol: type = H11Protocol) -> None:
    """Raises ConfigurationError where this version of uvicorn lacks a name that the limits stand on."""
    made = protocol.__init__.__code__.co_names  # type: ignore[misc]  # the attributes that it sets
    lacking = [name for name in METHODS if name not in vars(protocol)]
    lacking += [name for name in ATTRIBUTES if name not in made]
    if lacking:
        raise ConfigurationError(
            f"uvicorn {uvicorn.__version__}: this version of Stowhand cannot keep its limits there (no"
            f" {', '.join(lacking)}); install another: pip install 'uvicorn>=0.32,<0.55', or a newer Stowhand"
        )


def bounded(most: int = CONNECTIONS, read_timeout: float = READ_TIMEOUT) -> type[BoundedProtocol]:
    """The protocol of one server: uvicorn makes one of these for each connection."""
    places = Places[BoundedProtocol](most, lambda one: one.is_busy)
    return type("Protocol", (BoundedProtocol,), {"read_timeout": read_timeout, "places": places})


class BoundedProtocol(H11Protocol):
    """One connection. At any time somebody watches it: the application, uvicorn's own timer, or ours."""

    read_timeout = READ_TIMEOUT
    places: Places[BoundedProtocol]
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if (sock := transport.get_extra_info("socket")) is not None and sock.family != socket.AF_UNIX:
            # asyncio does so only for sockets that were made with the number of TCP. Head and body of a reply are two
            # writes: without it the second one waits for the client's delayed acknowledgement, 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app_state = {**self.app_state, CONNECTION: self}
        self.timeout_keep_alive = min(self.timeout_keep_alive, STRANGERS_WAIT)
        leaving = self.places.enter(self, self.client[0] if self.client else "")
        if leaving is self:
            self._end(Refused(Kind.TOO_MANY, "too many connections", "close idle ones", retry_after=5, status=503))
            return
        if leaving is not None:
            leaving.transport.close()
        self._watch()

    def know(self) -> bool:
        """A request was let in, so this is no stranger's any more. False: there is no place for another."""
        if self.places.is_known(self):
            return True
        if not self.places.know(self):
            return False
        self.timeout_keep_alive = self.config.timeout_keep_alive
        if self._deadline is not None:  # a body may take longer to come than a stranger's head
            self._unwatch()
            self._watch()
        return True

    @property
    def is_busy(self) -> bool:
        """A request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first one
        return cycle is not None and not cycle.response_complete

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
        self.places.leave(self)
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
            self._deadline = self.loop.call_later(self._patience, self._late)

    @property
    def _patience(self) -> float:
        return self.read_timeout if self.places.is_known(self) else min(self.read_timeout, STRANGERS_WAIT)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        what = f"the request did not come in whole within {self._patience:g} s"
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
