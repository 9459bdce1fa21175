"""The small HTTP server: it only shows, and no visitor can keep it from showing."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from stowhand.app.settings.addresses import http_address, split_address
from stowhand.cli.health import asked
from stowhand.errors import ConfigurationError
from stowhand.service import status_server
from stowhand.service.status_server import MAX_VISITORS, Answer, StatusServer


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


def test_rubbish_is_refused(server: StatusServer) -> None:
    for rubbish in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"GET /page HTTP/9.9.9\r\n\r\n", b"\r\n\r\n"):
        answered = raw(server, rubbish)
        assert b"shown" not in answered
        assert answered == b"" or answered.split()[1] == b"400"
    assert ask(server, "/page")[0] == 200


def test_one_request_a_connection(server: StatusServer) -> None:
    answered = raw(server, b"GET /page HTTP/1.1\r\nConnection: keep-alive\r\n\r\n" * 2)
    assert answered.count(b"shown") == 1


def slow_visitors(server: StatusServer) -> list[socket.socket]:
    """As many as may come in, none of which says all."""
    visitors = []
    for _ in range(MAX_VISITORS):
        visitor = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        visitor.sendall(b"GET /page HTTP/1.0\r\n")
        visitors.append(visitor)
    return visitors


def until_shown(server: StatusServer) -> None:
    """A place is free a moment after its visitor was sent away."""
    deadline = time.monotonic() + 30
    while b"shown" not in raw(server, b"GET /page HTTP/1.0\r\n\r\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_connections_that_are_left_alone_shut_out_no_probe(
    server: StatusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened again and again, more than there are places, and each with a patience that never ends."""
    monkeypatch.setattr(status_server, "PATIENCE_SECONDS", 300.0)
    visitors: list[socket.socket] = []
    try:
        for _ in range(10):
            visitors += slow_visitors(server)
            assert b"shown" in raw(server, b"GET /page HTTP/1.0\r\n\r\n")
        assert visitors[0].recv(100) == b"", "whoever came first had to go"
    finally:
        for visitor in visitors:
            visitor.close()


def test_a_visitor_who_does_not_take_its_answer_goes_for_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "PATIENCE_SECONDS", 300.0)
    pages = {"/long": lambda: Answer(200, bytes(50_000_000)), "/page": lambda: Answer(200, b"shown")}
    server = StatusServer("127.0.0.1:0", pages)
    visitors = []
    try:
        for _ in range(MAX_VISITORS):
            visitor = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            visitor.sendall(b"GET /long HTTP/1.0\r\n\r\n")
            assert visitor.recv(1) == b"H"  # and no more
            visitors.append(visitor)
        assert b"shown" in raw(server, b"GET /page HTTP/1.0\r\n\r\n")
    finally:
        for visitor in visitors:
            visitor.close()
        server.close()


def test_slow_visitors_have_their_time(server: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "PATIENCE_SECONDS", 0.5)
    for visitor in slow_visitors(server):
        with visitor, suppress(ConnectionError):  # its time may be over already
            visitor.sendall(b"X: y\r\n")  # a word now and then buys no time
            assert visitor.recv(100) == b"", "its time is over"
    monkeypatch.undo()
    until_shown(server)


def test_a_visitor_for_whom_there_is_no_thread_takes_no_place_for_ever(
    server: StatusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(MAX_VISITORS):
            assert raw(server, b"GET /page HTTP/1.0\r\n\r\n") == b""
    until_shown(server)


def test_it_listens_on_ipv6_too() -> None:
    try:
        server = StatusServer("[::1]:0", {"/page": lambda: Answer(200, b"shown")})
    except ConfigurationError:
        pytest.skip("no IPv6 here")
    try:
        assert server.url == f"http://[::1]:{server.port}"
        assert asked(f"[::1]:{server.port}", "/page") == (False, f"the server at [::1]:{server.port} is not a worker")
    finally:
        server.close()


def test_where_one_cannot_listen_it_is_said_with_the_way_out(server: StatusServer) -> None:
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
