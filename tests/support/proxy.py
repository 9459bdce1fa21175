"""A proxy before PostgreSQL that loses replies and holds requests, connection by connection.

It stands on a unix socket of its own. Connections are known by the ``application_name`` in their first message
(``stowhand:claim:…``), so that a test can hit the one it means.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit


class Proxy:
    """Use it as a context manager; ``url`` is the way through it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        port = query.get("port", ["5432"])[0]
        self._target = Path(query["host"][0]) / f".s.PGSQL.{port}"
        self._folder = Path(tempfile.mkdtemp(prefix="stow-proxy-"))
        own = self._folder / ".s.PGSQL.5432"
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}?host={quote(str(self._folder), safe='')}&port=5432"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(own))
        self._listener.listen(64)
        self._lock = threading.Lock()
        self._lose_reply_of: dict[str, bytes] = {}
        self._hold: dict[str, tuple[bytes, threading.Event]] = {}
        self._silence: set[str] = set()
        self.lost = threading.Event()
        """A reply has been lost."""
        self.held = threading.Event()
        """A request is being held back."""
        self.let_through = threading.Event()
        """A held request has reached the server, and its reply was thrown away."""
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            # Who waits for a client goes on waiting otherwise, and may end up with a later proxy's.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        shutil.rmtree(self._folder, ignore_errors=True)

    def lose_next_reply(self, role: str, to: bytes = b"") -> None:
        """The next request of this role is done by the server; its reply never arrives, the connection is cut.

        ``to``: only a request with this in it counts.
        """
        self.lost.clear()
        with self._lock:
            self._lose_reply_of[role] = to

    def hold_next_request(self, role: str, to: bytes = b"") -> threading.Event:
        """The next request of this role stays here and its client is cut off; set the event to send it on.

        ``to``: only a request with this in it counts.
        """
        go = threading.Event()
        with self._lock:
            self._hold[role] = to, go
        return go

    def silence_next_request(self, role: str) -> None:
        """The connection of the next request of this role dies without a word: nothing more goes through it."""
        self.lost.clear()
        with self._lock:
            self._silence.add(role)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(str(self._target))
        except OSError:  # nobody is there, and the client finds out
            server.close()
            client.close()
            return
        with self._lock:
            self._open |= {client, server}
        role = _Role()
        back = threading.Thread(target=self._pump_replies, args=(server, client, role), daemon=True)
        back.start()
        self._pump_requests(client, server, role)
        back.join(10)
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _pump_requests(self, client: socket.socket, server: socket.socket, role: _Role) -> None:
        while data := _receive(client):
            role.learn(data)
            go = self._take_hold(role.name, data) if role.started else None
            if go is not None:
                _cut(client)
                role.discard = True
                self.held.set()
                go.wait(30)
                with contextlib.suppress(OSError):
                    server.sendall(data)
                    self.let_through.wait(10)
                break
            if role.started and self._take_silence(role.name):
                self.lost.set()
                while _receive(client):
                    pass
                break
            if role.started and self._take_loss(role.name, data):
                role.lose = True
            try:
                server.sendall(data)
            except OSError:
                break
            role.started = role.started or b"stowhand:" in data
        _cut(server)

    def _pump_replies(self, server: socket.socket, client: socket.socket, role: _Role) -> None:
        while data := _receive(server):
            if role.discard:
                self.let_through.set()
                break
            if role.lose:
                self.lost.set()
                break
            try:
                client.sendall(data)
            except OSError:
                break
        _cut(client)
        _cut(server)

    def _take_loss(self, role: str, data: bytes) -> bool:
        with self._lock:
            if role in self._lose_reply_of and self._lose_reply_of[role] in data:
                del self._lose_reply_of[role]
                return True
            return False

    def _take_silence(self, role: str) -> bool:
        with self._lock:
            if role in self._silence:
                self._silence.discard(role)
                return True
            return False

    def _take_hold(self, role: str, data: bytes) -> threading.Event | None:
        with self._lock:
            to, _ = self._hold.get(role, (b"", None))
            return self._hold.pop(role)[1] if role in self._hold and to in data else None


class _Role:
    """Whose connection it is, and what is to happen to it."""

    def __init__(self) -> None:
        self.name = ""
        self.started = False
        self.lose = False
        self.discard = False

    def learn(self, data: bytes) -> None:
        if not self.name and b"stowhand:" in data:
            self.name = data.split(b"stowhand:", 1)[1].split(b"\0", 1)[0].split(b":", 1)[0].decode()


def _receive(one: socket.socket) -> bytes:
    try:
        return one.recv(65536)
    except OSError:
        return b""


def _cut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
