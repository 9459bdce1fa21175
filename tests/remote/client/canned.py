"""A server with canned replies: whole replies as bytes, in order. It records the requests."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import Any


class CannedServer:
    """Context manager of the server. The last reply is repeated. ``cuts``: close the connection after each reply."""

    def __init__(self, *replies: bytes, cuts: bool = False) -> None:
        self._replies, self._cuts = list(replies), cuts
        self.heads: list[bytes] = []
        self.bodies: list[Any] = []
        """Bodies of POST requests, decoded from JSON."""
        self.reached_silence = threading.Event()
        self.end_silence = threading.Event()
        """For an empty reply the server sends nothing, and closes the connection when this is set."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> CannedServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.end_silence.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(ConnectionError), client, client.makefile("rb") as stream:
            while head := _head(stream):
                body = stream.read(_length(head))
                self.heads.append(head)
                if body:
                    self.bodies.append(json.loads(body))
                reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
                if not reply:
                    self.reached_silence.set()
                    self.end_silence.wait(60)
                    return
                client.sendall(reply)
                if self._cuts:
                    return


def reply(body: object, status: str = "200 OK", **headers: str) -> bytes:
    """Return a whole reply with a JSON body, or with these bytes as its body."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}content-length: {len(raw)}\r\n\r\n".encode() + raw


def error_reply(kind: str, message: str, status: str, fix: str = "", **headers: str) -> bytes:
    """Return a whole error reply."""
    return reply({"error": kind, "message": message, "fix": fix}, status, **headers)


def _head(stream: Any) -> bytes:
    head = b""
    while (line := stream.readline()) not in (b"\r\n", b""):
        head += line
    return head


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
