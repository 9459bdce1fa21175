"""A proxy before an HTTP server that loses, cuts, doubles, delays and falsifies what goes through it.

with HttpProxy(target) as proxy:
    proxy.next("/v1/claim", Fault.LOSE)      the next such request, once
    proxy.plan = lambda path: …              or a fault for every request
"""

from __future__ import annotations

import http.client
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Reply = tuple[int, str, bytes, str | None]
"""Status, content type, body, Retry-After."""


class Fault(Enum):
    """What becomes of one request."""

    DROP = auto()
    """It never arrives."""
    LOSE = auto()
    """The server does it; the reply never comes."""
    CUT = auto()
    """The server does it; half of the reply comes."""
    LATE = auto()
    """The client is cut off first; then, when ``go`` is set, the server gets it."""
    TWICE = auto()
    """The server gets it twice; the second reply comes."""
    SLOW = auto()
    """It takes a while."""
    BAD_GATEWAY = auto()
    """The server does it; something in between answers 502 with a page."""


class HttpProxy:
    """Use it as a context manager; ``url`` is the way through it. ``target`` may be down, and come back."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._next: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self.plan: Callable[[str], Fault | None] = lambda path: None
        self.before_reply: Callable[[str], None] = lambda path: None
        """Called when the server has answered, before the client hears of it."""
        self.go = threading.Event()
        self.done_late = threading.Event()
        self.met: list[tuple[str, Fault]] = []
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{parts.path}"

    def __enter__(self) -> HttpProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()

    def next(self, path: str, *faults: Fault) -> None:
        """These befall the next requests of this path, one each. ``path``: its end."""
        self._next[path].extend(faults)

    def fault_of(self, path: str) -> Fault | None:
        """What befalls this request."""
        for end, faults in self._next.items():
            if path.endswith(end) and faults:
                fault: Fault | None = faults.popleft()
                break
        else:
            fault = self.plan(path)
        if fault is not None:
            self.met.append((path, fault))
        return fault

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        """Ask the server. Raises OSError, HTTPException when it does not answer."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=40)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.headers["content-type"], reply.read(), reply.headers.get("retry-after")
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: HttpProxy

    def do_GET(self) -> None:
        self._pass()

    def do_POST(self) -> None:
        self._pass()

    def log_message(self, *args: object) -> None:
        pass

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        # The server has no tokens and must be asked by its own name.
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        fault = self.owner.fault_of(self.path)
        if fault is Fault.DROP:
            self._cut()
            return
        if fault is Fault.SLOW:
            threading.Event().wait(0.1)
        if fault is Fault.LATE:
            self._cut()
            self.owner.go.wait(30)
        try:
            if fault is Fault.TWICE:
                self.owner.forward(self.command, self.path, headers, body)
            reply = self.owner.forward(self.command, self.path, headers, body)
        except (OSError, http.client.HTTPException):
            self._cut()
            return
        finally:
            if fault is Fault.LATE:
                self.owner.done_late.set()
        self.owner.before_reply(self.path)
        self._answer(fault, reply)

    def _answer(self, fault: Fault | None, reply: Reply) -> None:
        status, kind, body, retry_after = reply
        if fault in (Fault.LOSE, Fault.LATE):
            self._cut()
            return
        if fault is Fault.BAD_GATEWAY:
            status, kind, body = 502, "text/html", b"<html>\n<title>502 Bad Gateway</title>\n</html>"
        with suppress(OSError):  # the client has gone
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            if retry_after is not None:
                self.send_header("retry-after", retry_after)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if fault is Fault.CUT else body)
        if fault is Fault.CUT:
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(2)
