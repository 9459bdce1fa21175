"""uvicorn's protocol with what it lacks: a deadline for a request to arrive completely, and limits of connections.

uvicorn has one timer, between two requests. A client that sends a byte a minute would hold its connection for ever;
here the headers and body of a request must arrive completely within some seconds of its first byte. A connection on
which no request has been admitted has tighter limits (``Places``).

This depends on names that are not part of uvicorn's public interface (``METHODS``, ``ATTRIBUTES``). A server of our own
would be several hundred lines of HTTP to keep right, and a pin to one version would forbid security fixes. So the names
are checked when a server starts, and it refuses to start where one is missing: an overridden method that uvicorn no
longer calls would be a limit that is not enforced.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from stowhand.errors import ConfigurationError
from stowhand.remote.server.refusals import Refused, malformed
from stowhand.remote.wire import Kind

READ_TIMEOUT = 30.0
"""Seconds."""
CONNECTIONS = 1000
PATIENCE = 4
"""How many times the read timeout a client may leave a reply unread."""
CONNECTION = "stowhand.connection"
"""The key of the connection in a request's ``state``."""
METHODS = (
    *("connection_made", "connection_lost", "data_received", "on_response_complete", "pause_writing"),
    *("resume_writing", "send_400_response", "timeout_keep_alive_handler"),
)
ATTRIBUTES = (
    *("app_state", "client", "conn", "cycle", "loop", "timeout_keep_alive", "timeout_keep_alive_task"),
    "transport",
)
"""What is overridden and used here of ``H11Protocol``."""


def check_uvicorn(protocol: type = H11Protocol) -> None:
    """Raises ConfigurationError where this version of uvicorn lacks a name that the limits need."""
    made = protocol.__init__.__code__.co_names  # type: ignore[misc]  # the names of the attributes that it sets
    lacking = [name for name in METHODS if name not in vars(protocol)]
    lacking += [name for name in ATTRIBUTES if name not in made]
    if lacking:
        raise ConfigurationError(
            f"uvicorn {uvicorn.__version__}: this version of Stowhand cannot keep its limits there (no"
            f" {', '.join(lacking)}); install another: pip install 'uvicorn>=0.32,<0.55', or a newer Stowhand"
        )


def bounded(most: int = CONNECTIONS, read_timeout: float = READ_TIMEOUT) -> type[BoundedProtocol]:
    """The protocol class of one server: uvicorn makes an instance for each connection."""
    places = Places[BoundedProtocol](most, lambda one: one.is_busy)
    return type("Protocol", (BoundedProtocol,), {"read_timeout": read_timeout, "places": places})


class BoundedProtocol(H11Protocol):
    """One connection. At any time it is bounded by the application, by uvicorn's own timer, or by ours."""

    read_timeout = READ_TIMEOUT
    places: Places[BoundedProtocol]
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if (sock := transport.get_extra_info("socket")) is not None and sock.family != socket.AF_UNIX:
            # asyncio does this only for sockets that were made with the protocol number of TCP. The head and body of a
            # reply are two writes: without it the second waits for the client's delayed acknowledgement, 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app_state = {**self.app_state, CONNECTION: self}
        self.timeout_keep_alive = min(self.timeout_keep_alive, STRANGERS_WAIT)
        closing = self.places.add(self, self.client[0] if self.client else "")
        if closing is self:
            self._end(Refused(Kind.TOO_MANY, "too many connections", "close idle ones", retry_after=5, status=503))
            return
        if closing is not None:
            closing.transport.close()
        self._watch()

    def admit(self) -> bool:
        """A request was admitted, so this is no stranger any more. ``False``: there is no place for another one."""
        if self.places.is_admitted(self):
            return True
        if not self.places.admit(self):
            return False
        self.timeout_keep_alive = self.config.timeout_keep_alive
        if self._deadline is not None:  # from here on a request may take longer than a stranger's
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
        """The client does not read its reply, which fills our memory. Abort: a close would wait for the client too."""
        super().pause_writing()
        self._unread = self.loop.call_later(PATIENCE * self.read_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self.places.remove(self)
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._end(malformed("this is no HTTP request, or its headers are too large", "send HTTP/1.1"))

    def _watch(self) -> None:
        awaited = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and self.timeout_keep_alive_task is None
        if not awaited or self.transport.is_closing():
            self._unwatch()
        elif self._deadline is None:  # never extended: a byte now and then must not prolong it
            self._deadline = self.loop.call_later(self._patience, self._late)

    @property
    def _patience(self) -> float:
        return self.read_timeout if self.places.is_admitted(self) else min(self.read_timeout, STRANGERS_WAIT)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        what = f"the request did not come in whole within {self._patience:g} s"
        self._end(Refused(Kind.MALFORMED, what, "send it at once", status=408))

    def _end(self, refused: Refused) -> None:
        """Answer with the reason, if no reply has begun, and close."""
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


C = TypeVar("C")

SHARE = 4
"""One place in this many is for strangers."""
OF_ONE_ADDRESS = 64
"""Strangers of one address at a time."""
STRANGERS_WAIT = 5
"""Seconds in which a stranger's request must arrive completely, and until its next one."""


class Places(Generic[C]):
    """Which connections of one server may stay open: those that sent a valid token, and a bounded number of strangers.

    A connection is a stranger until a request on it has been admitted. Strangers have places of their own, a bounded
    number for each address, and a newcomer takes the place of the oldest one that is not being answered. So idle
    connections shut out only each other: a probe of /healthz and a client with a token always find a place.

    On the server's event loop. ``most``: open at a time, strangers included.
    """

    def __init__(self, most: int, busy: Callable[[C], bool], of_one_address: int = OF_ONE_ADDRESS) -> None:
        """``busy``: is a request on this connection being answered?"""
        self._busy = busy
        self.for_strangers = max(most // SHARE, 1)
        self.for_admitted = max(most - self.for_strangers, 1)
        self._of_one_address = of_one_address
        self._strangers: dict[C, str] = {}
        """By connection, the address; the oldest first."""
        self._admitted: set[C] = set()

    def add(self, newcomer: C, address: str) -> C | None:
        """Add a stranger. Returns the connection to close for it: another, or the newcomer where all are busy."""
        alike = [one for one, theirs in self._strangers.items() if theirs == address]
        crowded = len(alike) >= self._of_one_address
        closing: C | None = None
        if crowded or len(self._strangers) >= self.for_strangers:
            among = alike if crowded else list(self._strangers)
            closing = next((one for one in among if not self._busy(one)), newcomer)
            self.remove(closing)
        if closing is not newcomer:
            self._strangers[newcomer] = address
        return closing

    def admit(self, one: C) -> bool:
        """A request on it was admitted. ``False``: there is no place for another admitted connection."""
        if one in self._admitted:
            return True
        if len(self._admitted) >= self.for_admitted:
            return False
        if self._strangers.pop(one, None) is not None:
            self._admitted.add(one)
        return True

    def is_admitted(self, one: C) -> bool:
        """Was a request on it admitted?"""
        return one in self._admitted

    def remove(self, one: C) -> None:
        """It is closed, or about to be. Harmless when repeated."""
        self._strangers.pop(one, None)
        self._admitted.discard(one)
