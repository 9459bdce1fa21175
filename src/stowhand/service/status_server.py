"""A small read-only HTTP server in threads of its own, so that it answers while the event loop is blocked.

It answers GET and HEAD, with one request and one thread per connection. It closes connections that are idle for some
seconds.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

import msgspec

from stowhand.app.settings.addresses import split_address
from stowhand.errors import ConfigurationError
from stowhand.observe.job_logger import core_logger

IDLE_TIMEOUT_SECONDS = 10.0
"""Seconds for which a connection may send or receive nothing."""
TEXT_TYPE = "text/plain; charset=utf-8"
JSON_TYPE = "application/json"


class Answer(msgspec.Struct, frozen=True):
    """The response for a path."""

    status: int
    body: bytes
    content_type: str = TEXT_TYPE


def health_answer(good_status: str, bad_status: str, reasons: Sequence[str], **more: object) -> Answer:
    """Return a health page: ``good_status`` if there are no reasons, otherwise ``bad_status`` and code 503."""
    page = {"status": bad_status if reasons else good_status, "reasons": reasons, **more}
    return Answer(503 if reasons else 200, msgspec.json.encode(page) + b"\n", JSON_TYPE)


Pages = Mapping[str, Callable[[], Answer]]


class StatusServer:
    """Server that listens once it is made. Raises ConfigurationError where it cannot listen."""

    def __init__(self, address: str, pages: Pages) -> None:
        host, port = split_address(address)
        try:
            family, _, _, _, socket_address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(family, socket_address, pages)
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            raise ConfigurationError(
                f"--http {address}: cannot listen there ({getattr(error, 'strerror', None) or error});"
                " use another port, or 0 for any free one"
            ) from None
        self.port: int = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        # 0.1: seconds between two checks for a request to shut down.
        threading.Thread(None, self._server.serve_forever, "stowhand http", (0.1,), daemon=True).start()

    def close(self) -> None:
        """Stop listening. Harmless when repeated."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    block_on_close = False

    def __init__(self, family: int, socket_address: Any, pages: Pages) -> None:
        self.address_family = family
        self.pages = pages
        super().__init__(socket_address, _RequestHandler)

    def server_bind(self) -> None:
        """Bind without looking up the host name, which may take long."""
        TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: the client has disconnected or was too slow."""


class _RequestHandler(BaseHTTPRequestHandler):
    server: _Server
    timeout = IDLE_TIMEOUT_SECONDS
    default_request_version = "HTTP/1.0"

    def version_string(self) -> str:
        return "stowhand"

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            self._send(Answer(404, f"unknown page; there are {', '.join(self.server.pages)}\n".encode()))
            return
        try:
            answer = page()
        except Exception as error:  # noqa: BLE001 - boundary: logged here; the next request may be answered
            core_logger().error(f"{self.path} could not be answered: {type(error).__name__}: {error}")
            answer = Answer(500, b"internal error; see the log\n")
        self._send(answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that is overridden
        """Log nothing: probes send a request every few seconds."""

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
