"""Calls to a lent store: each is one request, with one reply within a deadline.

Connections are kept between calls, redirects are not followed, and the environment's proxies are ignored. No call is
made before the time that ``Retry-After`` names.

CallRefused   the server refused the request: nothing was changed
NoReply       the request may have been executed or not: the connection broke, the deadline passed, or a proxy answered
              instead of the server
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

import httpx
import msgspec

from stowhand.clock import Clock
from stowhand.errors import ConfigurationError, StoreError, StoreRefused, StoreUnreachable
from stowhand.fork import call_in_children, replace_sockets
from stowhand.jobs.text import clean
from stowhand.remote.client.options import HttpOptions
from stowhand.remote.wire import MAX_BODY_BYTES, MAX_ITEMS, ErrorKind, ErrorReply, Verb

Q = TypeVar("Q")
A = TypeVar("A")

CONNECT_TIMEOUT_SECONDS = 5.0
KEEPALIVE_SECONDS = 30.0
"""Time for which an idle connection is kept. It is shorter than that of common servers (at least 60 s; 75 s for
``stowhand serve``), because a request sent while the server closes its connection is lost."""
MAX_CONNECTIONS = 20
MAX_REPLY_BYTES = 256 * 1024 * 1024
MAX_PAUSE_SECONDS = 5.0
"""Maximum pause for ``Retry-After``: during a longer one leases would expire."""
MAX_QUOTED_CHARACTERS = 300
"""Maximum length of a server's or proxy's text in an error."""
MAX_ITEM_BYTES = MAX_BODY_BYTES - 4096
"""Maximum size of the items of one list. The other bytes of a body are for the message around them."""
_UNSENT_REQUEST_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)


class CallRefused(StoreRefused):
    """The server refuses this call. ``kind`` is the reason, for programs."""

    def __init__(self, message: str, kind: str, server_message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.server_message = server_message
        """Message without the address at its start."""


class NoReply(StoreUnreachable):
    """The call may have been executed or not."""


def split_items(items: Sequence[bytes]) -> Iterator[range]:
    """Yield the positions of the items of each request, in order. An item that is too large is sent alone."""
    start, size = 0, 0
    for position, item in enumerate(items):
        if position > start and (size + len(item) + 1 > MAX_ITEM_BYTES or position - start == MAX_ITEMS):
            yield range(start, position)
            start, size = position, 0
        size += len(item) + 1
    if start < len(items):
        yield range(start, len(items))


class HttpCaller:
    """Caller of one server, on one event loop."""

    def __init__(self, base: str, options: HttpOptions, clock: Clock) -> None:
        self.base = base
        self._options = options
        self._clock = clock
        # A transport, not a client: a client would use the environment and cookies, and log a line for every call.
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._streams: WeakSet[Any] = WeakSet()
        """Streams of connections that have answered."""
        # Shorter than the deadline of the call: an unsent request must not count as possibly executed.
        timeouts = {"connect": min(CONNECT_TIMEOUT_SECONDS, options.timeout * 0.9), "pool": options.timeout * 0.9}
        self._extensions = {"timeout": timeouts}
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json", "User-Agent": "stowhand"}
        if options.token is not None:
            self._headers["Authorization"] = f"Bearer {options.token}"
        self._not_before = 0.0
        call_in_children(self)

    async def get(self, verb: Verb[Any, A], job_id: int | None = None) -> A:
        """Return the reply to a call without a message. ``job_id`` completes its path. Raises the same as ``post``."""
        return await self._ask(verb, verb.path.format(id=job_id), None, 0.0)

    async def post(self, verb: Verb[Q, A], message: Q | bytes, *, wait_seconds: float = 0.0) -> A:
        """Return the reply to a message, which may already be encoded.

        ``wait_seconds``: how long the server may wait, in addition to the timeout. Raises CallRefused, StoreUnreachable
        (NoReply if the call may have been executed) and StoreError.
        """
        body = message if isinstance(message, bytes) else msgspec.json.encode(message)
        return await self._ask(verb, verb.path, body, wait_seconds)

    async def close(self) -> None:
        """Close every connection. Harmless when repeated; the next call opens a new one."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def forked(self) -> None:
        """Drop the parent's connections in a forked child; the next call connects."""
        transport, self._transport = self._transport, None
        if transport is not None:
            sockets = [stream.get_extra_info("socket") for stream in self._streams]
            replace_sockets(socket.fileno() for socket in sockets if socket is not None)

    async def _ask(self, verb: Verb[Any, A], path: str, body: bytes | None, wait_seconds: float) -> A:
        if (pause := self._not_before - self._clock.monotonic()) > 0:
            await self._clock.sleep(pause)
        try:
            async with asyncio.timeout(self._options.timeout + wait_seconds):
                status, headers, reply = await self._exchange(verb.method, path, body)
        except TimeoutError:
            raise NoReply(f"{self.base}: no answer within {self._options.timeout + wait_seconds:g} s") from None
        except _UNSENT_REQUEST_ERRORS as error:
            raise StoreUnreachable(f"{self.base}: {_describe(error)}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoReply(f"{self.base}: {_describe(error)}") from None
        if status != 200:
            raise self._handle_error(status, headers, reply)
        try:
            return msgspec.json.decode(reply, type=verb.response)
        except (msgspec.MsgspecError, ConfigurationError, RecursionError) as error:
            raise StoreError(
                f"{self.base} answered {path} with a message that this version cannot read: {error};"
                " is this the address of 'stowhand serve', and of the same version?"
            ) from None

    async def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, httpx.Headers, bytes]:
        if self._transport is None:
            self._transport = self._connect()
        request = httpx.Request(
            method, self.base + path, headers=self._headers, content=body, extensions=self._extensions
        )
        response = await self._transport.handle_async_request(request)
        self._streams.add(response.extensions["network_stream"])
        try:
            received = bytearray()
            async for chunk in response.aiter_raw():
                received += chunk
                if len(received) > MAX_REPLY_BYTES:
                    raise StoreError(f"{self.base}: a reply of more than {MAX_REPLY_BYTES} bytes")
            return response.status_code, response.headers, bytes(received)
        finally:
            await response.aclose()

    def _handle_error(self, status: int, headers: httpx.Headers, reply: bytes) -> StoreError:
        error = _error_of(status, reply, self.base, self._options.token)
        if status in (429, 503):
            pause = _pause(headers.get("retry-after", ""))
            self._not_before = self._clock.monotonic() + pause
        return error

    def _connect(self) -> httpx.AsyncHTTPTransport:
        ca_file = self._options.ca_file
        try:
            return httpx.AsyncHTTPTransport(
                verify=_trusted(None if ca_file is None else str(ca_file)) if self.base.startswith("https") else False,
                limits=httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE_SECONDS),
                trust_env=False,
                proxy=self._options.proxy,
            )
        except (OSError, ValueError) as error:  # a file without certificates, a proxy that is not a URL
            raise ConfigurationError(f"{self.base}: {error}") from None


def _trusted(ca_file: str | None) -> ssl.SSLContext:
    """Return the trusted certificates. ``SSL_CERT_FILE`` is the only environment variable that counts."""
    if ca_file is None:
        return httpx.create_ssl_context(trust_env=True)
    return ssl.create_default_context(cafile=ca_file)


def _pause(retry_after: str) -> float:
    """Return the seconds of a ``Retry-After`` header. A date, which some proxies send, is ignored."""
    is_number = retry_after.isdecimal() and len(retry_after) < 10
    return min(float(retry_after), MAX_PAUSE_SECONDS) if is_number else 0.0


def _describe(error: Exception) -> str:
    """Return the text of an error of httpx; some have none."""
    if isinstance(error, httpx.PoolTimeout):
        return f"all of its {MAX_CONNECTIONS} connections are in use"
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        text += "; trust another authority with --ca-file (in Python ca_file=…)"
    return text


def _error_of(status: int, body: bytes, url: str, secret: str | None) -> StoreError:
    """Return the error for a reply that is not 200. Its text never contains ``secret``."""
    try:
        error_reply: ErrorReply | None = msgspec.json.decode(body, type=ErrorReply)
    except msgspec.MsgspecError:
        error_reply = None
    if error_reply is None:
        return _from_another_program(status, body, url, secret)
    message = _quoted(error_reply.message, secret)
    fix = f" ({_quoted(error_reply.fix, secret)})" if error_reply.fix else ""
    match status:
        case 401:
            return CallRefused(
                f"{url} refused the worker token: it is missing, wrong, expired or revoked{fix};"
                " make a new one on the server: stowhand tokens make",
                error_reply.error,
                message,
            )
        case 403:
            return CallRefused(
                f"{url}: not allowed by the scopes of this worker token: {message}{fix}", error_reply.error, message
            )
        case 429 | 503:
            if error_reply.error == ErrorKind.OUTCOME_UNKNOWN:
                return NoReply(f"{url}: {message}{fix}")
            return StoreUnreachable(f"{url}: {message}{fix}")
        case status if status >= 500:
            return NoReply(f"{url}: {status}: {message}{fix}")
    return CallRefused(f"{url}: {message}{fix}", error_reply.error, message)


def _from_another_program(status: int, body: bytes, url: str, secret: str | None) -> StoreError:
    """Return the error for a reply of a proxy, or of another program at that address."""
    text = _quoted(body[:4096].decode("utf-8", "replace"), secret)
    if status in (408, 429) or status >= 500:
        return NoReply(f"{url}: {status}" + (f": {text}" if text else ""))
    if 300 <= status < 400:
        return StoreError(f"{url} answered with a redirect ({status}), which is not followed: use the target's address")
    hint = "is this the address of 'stowhand serve'?"
    return StoreError(f"{url}: {status}" + (f": {text}" if text else "") + f"; {hint}")


def _quoted(text: str, secret: str | None) -> str:
    """Return one short line without control characters and without the secret."""
    if secret is not None:
        text = text.replace(secret, "***")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return clean(line, MAX_QUOTED_CHARACTERS).replace("\n", " ")
