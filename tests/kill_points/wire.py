"""A proxy before PostgreSQL that names every request of a client, and strikes before or after one of them.

A request is what the server answers with ReadyForQuery. When that message arrives here, the transaction of an
autocommit statement has been committed. So *after* is after the commit and before any byte of the reply.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, quote, urlsplit

from tests.kill_points.points import Fault, Moment

ENDS_REQUEST = (b"Q", b"S")
"""Query and Sync."""
FUNCTION = re.compile(r'stowhand"?\."?(\w+)"?\s*\(')
COMMENTS = re.compile("--.*")
ROLE = re.compile(rb"application_name\0stowhand:(\w+)")


class Wire:
    """Use it as a context manager; ``url`` is the way through it."""

    def __init__(self, url: str, fault: Fault | None = None, strike: Callable[[], None] = lambda: None) -> None:
        """``strike`` is called once: before the request of the fault reaches the server, or after its transaction."""
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._target = str(Path(query["host"][0]) / f".s.PGSQL.{query['port'][0]}")
        self._folder = Path(tempfile.mkdtemp(prefix="stow-wire-"))
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}?host={quote(str(self._folder), safe='')}&port=5432"
        self._fault, self._strike = fault, strike
        self.points: list[str] = []
        """The names of all requests so far: role, statement and number."""
        self.has_struck = False
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._striking = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Wire:
        self._listener.bind(str(self._folder / ".s.PGSQL.5432"))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._striking:  # a server that is restarted is there again
            pass
        cut(self._listener)
        self._listener.close()
        with self._lock:
            for one in self._sockets:
                cut(one)
        shutil.rmtree(self._folder, ignore_errors=True)

    def moment_of(self, label: str) -> Moment | None:
        """Name a request. Return the moment at which to strike; ``None``: this is not the one."""
        with self._lock:
            self._counts[label] += 1
            name = f"{label}.{self._counts[label]}"
            self.points.append(name)
            is_it = self._fault is not None and self._fault.is_at(name, len(self.points))
            return self._fault.moment if self._fault is not None and is_it else None

    def strike(self) -> None:
        with self._striking:
            self.has_struck = True
            self._strike()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with client, server:
            with self._lock:
                self._sockets |= {client, server}
            with contextlib.suppress(OSError, EOFError):
                server.connect(self._target)
                _Session(self, client, server).pump()
            with self._lock:
                self._sockets -= {client, server}


class _Session:
    """One connection of the client, and the one to the server behind it."""

    def __init__(self, wire: Wire, client: socket.socket, server: socket.socket) -> None:
        self._wire, self._client, self._server = wire, client, server
        self._role = "other"
        self._statements: dict[bytes, str] = {}
        self._requests = 0
        self._lost: int | None = None
        """The number of the request whose reply is lost."""

    def pump(self) -> None:
        replies = threading.Thread(target=self._pump_replies, daemon=True)
        try:
            with self._client.makefile("rb") as requests:
                startup = _read_sized(requests)
                if found := ROLE.search(startup):
                    self._role = found[1].decode()
                replies.start()
                if self._send("connect", startup):
                    while self._pump_request(requests):
                        pass
        finally:
            cut(self._server)
            cut(self._client)
            if replies.ident is not None:
                replies.join(10)

    def _pump_request(self, requests: BinaryIO) -> bool:
        """Pass one request on. False: the connection is cut."""
        parts: list[bytes] = []
        labels: list[str] = []
        while True:
            kind, message = _read_message(requests)
            labels += self._label(kind, message)
            parts.append(kind + message)
            if kind in ENDS_REQUEST:
                return self._send("+".join(dict.fromkeys(labels)), b"".join(parts))
            if kind not in (b"P", b"B", b"D", b"E"):  # a flush, or the client's goodbye
                self._server.sendall(b"".join(parts))
                parts.clear()

    def _send(self, label: str, request: bytes) -> bool:
        """Send a request. Without a label it executes nothing, so it is no point: it prepares a statement."""
        self._requests += 1
        moment = self._wire.moment_of(f"{self._role}/{label}") if label else None
        if moment == "before":
            self._wire.strike()
            return False  # and so the connection is cut
        if moment == "after":
            self._lost = self._requests
        self._server.sendall(request)
        return True

    def _pump_replies(self) -> None:
        answered = 0
        with contextlib.suppress(OSError, EOFError), self._server.makefile("rb") as replies:
            while True:
                kind, message = _read_message(replies)
                is_lost = answered + 1 == self._lost
                if not is_lost:
                    self._client.sendall(kind + message)
                answered += kind == b"Z"
                if is_lost and kind == b"Z":
                    self._wire.strike()
                    break
        cut(self._client)
        cut(self._server)

    def _label(self, kind: bytes, message: bytes) -> list[str]:
        body = message[4:]
        if kind == b"Q":
            return [_words(body)]
        if kind == b"P":
            name, query, _ = body.split(b"\0", 2)
            self._statements[name] = _words(query)
        if kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            return [self._statements.get(name, "statement")]
        return []


def _words(query: bytes) -> str:
    """Return the function that a statement calls, or its first word."""
    text = COMMENTS.sub("", query.strip(b"\0").decode(errors="replace"))
    found = FUNCTION.search(text)
    return found[1] if found else (text.split() or ["nothing"])[0].lower().strip(";")


def _read_message(stream: BinaryIO) -> tuple[bytes, bytes]:
    kind = stream.read(1)
    if not kind:
        raise EOFError
    return kind, _read_sized(stream)


def _read_sized(stream: BinaryIO) -> bytes:
    """Return the length and what follows it."""
    head = stream.read(4)
    if len(head) < 4:
        raise EOFError
    body = stream.read(struct.unpack("!i", head)[0] - 4)
    return head + body


def cut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
