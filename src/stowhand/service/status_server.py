"""A small HTTP server in threads of its own, so that it answers while the event loop is blocked. It is read-only.

GET and HEAD, one request a connection; a visitor has a few seconds, its header some kilobytes, and the number of
visitors is limited. Where all places are taken, the oldest visitor that is still sending its request, or still taking
its answer, is cut off for the newcomer: connections that are opened and left alone do not shut out a probe.

The standard library's server, and not uvicorn: it must answer while every event loop is blocked, and without an extra.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Any

import msgspec

from stowhand.app.settings.addresses import split_address
from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError
from stowhand.observe.job_logger import core_logger

VISITORS = 16
PATIENCE = 5.0
"""Seconds that a visitor has for its request, and again for taking the answer."""
LEAVES_WITHIN = 1.0
"""Seconds that a visitor who is cut off has to leave."""
LONGEST_HEAD = 8192
"""Bytes."""
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


class Answer(msgspec.Struct, frozen=True):
    """The response for a path."""

    status: int
    body: bytes
    kind: str = TEXT


def verdict(fine: str, wrong: str, reasons: Sequence[str], **more: object) -> Answer:
    """The page of a question that reasons answer: ``fine`` if there are none."""
    page = {"status": wrong if reasons else fine, "reasons": reasons, **more}
    return Answer(503 if reasons else 200, msgspec.json.encode(page) + b"\n", JSON)


Pages = Mapping[str, Callable[[], Answer]]


class StatusServer:
    """Listens from the moment it is made. Raises ConfigurationError where it cannot."""

    def __init__(self, address: str, pages: Pages, clock: Clock | None = None) -> None:
        host, port = split_address(address)
        try:
            family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(family, place, pages, clock or SystemClock())
        except (OSError, UnicodeError) as error:  # UnicodeError: what cannot be the name of a host
            raise ConfigurationError(
                f"--http {address}: cannot listen there ({getattr(error, 'strerror', None) or error});"
                " give another port, or 0 for any free one"
            ) from None
        self.port: int = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        # 0.1: how often, in seconds, it sees whether it is to end.
        threading.Thread(None, self._server.serve_forever, "stowhand http", (0.1,), daemon=True).start()

    def close(self) -> None:
        """Answer no more. Harmless when repeated."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = VISITORS

    def __init__(self, family: int, place: Any, pages: Pages, clock: Clock) -> None:
        self.address_family = family
        self.pages = pages
        self.clock = clock
        self._free = threading.Semaphore(VISITORS)
        self._lock = threading.Lock()
        self._slow: dict[socket.socket, None] = {}
        """Those that send a request, or take an answer, oldest first."""
        super().__init__(place, _Visit)

    def waits_for(self, visitor: socket.socket) -> None:
        """From here on the visitor takes its time."""
        with self._lock:
            self._slow[visitor] = None

    def works_for(self, visitor: socket.socket) -> None:
        """From here on the server takes its time, or the answer is sent."""
        with self._lock:
            self._slow.pop(visitor, None)

    def _make_room(self) -> bool:
        """Cut off the oldest slow visitor. True: a place has become free, and is taken."""
        with self._lock:
            oldest = next(iter(self._slow), None)
            if oldest is not None:
                del self._slow[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread sees the end, and leaves
        return oldest is not None and self._free.acquire(timeout=LEAVES_WITHIN)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False) and not self._make_room():
            self.shutdown_request(request)
            return
        self.waits_for(request)
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started: the place is free again
            self.works_for(request)
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.works_for(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing to report: the visitor went away, or was too slow."""


class _Visit(BaseHTTPRequestHandler):
    server: _Server
    default_request_version = "HTTP/1.0"

    def version_string(self) -> str:
        return "stowhand"

    def setup(self) -> None:
        super().setup()
        head = _head(self.connection, self.server.clock)
        self.server.works_for(self.connection)
        self.connection.settimeout(PATIENCE)
        self.rfile = BytesIO(head or b"")
        if head is None:
            self.command, self.requestline, self.request_version = "", "", self.default_request_version
            self.send_error(431, "too long")

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is malformed or of another method: for the parser calls that unsupported (501)."""
        del explain
        code = 405 if code == 501 else code
        self._send(Answer(code, f"{message or 'no'}\n".encode()), allow="GET, HEAD" if code == 405 else None)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that is overridden
        """Probes come every few seconds."""

    def _answer(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            self._send(Answer(404, f"there are {', '.join(self.server.pages)}\n".encode()))
            return
        try:
            answer = page()
        except Exception as error:  # noqa: BLE001 - boundary: logged here; the next request may be answered
            core_logger().error(f"{self.path} could not be answered: {type(error).__name__}: {error}")
            answer = Answer(500, b"this is a bug; the log says more\n")
        self._send(answer)

    def _send(self, answer: Answer, allow: str | None = None) -> None:
        self.server.waits_for(self.connection)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if allow is not None:
            self.send_header("Allow", allow)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _head(connection: socket.socket, clock: Clock) -> bytes | None:
    """The request's head; ``None``: it is too long. Raises TimeoutError unless all of it comes within its time."""
    until = clock.monotonic() + PATIENCE
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head:
        if len(head) >= LONGEST_HEAD:
            return None
        connection.settimeout(max(until - clock.monotonic(), 0.001))
        piece = connection.recv(LONGEST_HEAD - len(head))
        if not piece:
            return b""
        head += piece
    return head
