"""The small HTTP server: it only shows, and no visitor can keep it from showing."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from stowhand.app.settings.addresses import http_address, split_address
from stowhand.cli import health as health_command
from stowhand.errors import ConfigurationError
from stowhand.service import status_server
from stowhand.service.status_server import Answer, StatusServer


def broken() -> Answer:
    raise ZeroDivisionError


@pytest.fixture
def server() -> Iterator[StatusServer]:
    started = StatusServer("127.0.0.1:0", {"/page": lambda: Answer(200, b"shown"), "/broken": broken})
    yield started
    started.close()


def ask(server: StatusServer, path: str, method: str = "GET", body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def raw(server: StatusServer, said: bytes) -> bytes:
    """What comes back until the end."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as visitor:
        visitor.sendall(said)
        answered = b""
        try:
            while piece := visitor.recv(4096):
                answered += piece
        except ConnectionResetError:
            pass
        return answered


def test_pages_are_shown_and_nothing_else_is_done(server: StatusServer) -> None:
    assert ask(server, "/page") == (200, b"shown")
    assert ask(server, "/page?x=1")[0] == 200
    assert ask(server, "/page", "HEAD") == (200, b"")
    assert ask(server, "/other")[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "BREW"):
        assert ask(server, "/page", method)[0] == 501, method


def test_a_page_that_breaks_is_a_500_and_the_next_is_shown(
    server: StatusServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(server, "/broken")[0] == 500
    assert ask(server, "/page")[0] == 200


def test_a_long_head_is_refused(server: StatusServer) -> None:
    head = b"GET /page HTTP/1.1\r\n" + b"X-Long: " + b"x" * 65_536
    assert b" 431 " in raw(server, head).partition(b"\r\n")[0]


def test_a_malformed_request_is_refused(server: StatusServer) -> None:
    for rubbish in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"GET /page HTTP/9.9.9\r\n\r\n", b"\r\n\r\n"):
        answered = raw(server, rubbish)
        assert b"shown" not in answered
        assert answered == b"" or answered.split()[1] == b"400"
    assert ask(server, "/page")[0] == 200


def test_one_request_a_connection(server: StatusServer) -> None:
    answered = raw(server, b"GET /page HTTP/1.1\r\nConnection: keep-alive\r\n\r\n" * 2)
    assert answered.count(b"shown") == 1


def test_idle_connections_block_no_probe_and_are_closed(server: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    visitors = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(50)]
    try:
        assert ask(server, "/page") == (200, b"shown")
        monkeypatch.setattr(status_server._RequestHandler, "timeout", 0.1)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as late:
            late.sendall(b"GET /page HTTP/1.0\r\n")
            assert late.recv(100) == b"", "its time is over"
    finally:
        for visitor in visitors:
            visitor.close()


def test_it_listens_on_ipv6_too() -> None:
    try:
        server = StatusServer("[::1]:0", {"/page": lambda: Answer(200, b"shown")})
    except ConfigurationError:
        pytest.skip("no IPv6 here")
    try:
        assert server.url == f"http://[::1]:{server.port}"
        assert health_command.request_health(f"[::1]:{server.port}", "/page") == (
            False,
            f"the server at [::1]:{server.port} is not a worker",
        )
    finally:
        server.close()


def test_an_address_that_cannot_be_used_is_refused_with_a_fix(server: StatusServer) -> None:
    for address in (f"127.0.0.1:{server.port}", "192.0.2.1:80", "no.such.host.invalid:80", ".a:80"):
        with pytest.raises(ConfigurationError, match=r"^--http .*cannot listen there .*another port"):
            StatusServer(address, {})


@pytest.mark.parametrize(
    ("typed", "address", "parts"),
    [
        ("9100", "127.0.0.1:9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:09100", "0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::]:80", "[::]:80", ("::", 80)),
        ("::1:80", "[::1]:80", ("::1", 80)),
        ("worker.local:0", "worker.local:0", ("worker.local", 0)),
    ],
)
def test_addresses(typed: str, address: str, parts: tuple[str, int]) -> None:
    assert http_address(typed) == address
    assert split_address(address) == parts


@pytest.mark.parametrize("typed", ["", ":80", "host", "host:", "65536", "-1", "1.5", "[]:80", "²"])
def test_no_addresses(typed: str) -> None:
    with pytest.raises(ValueError, match=r"must be PORT or HOST:PORT"):
        http_address(typed)
