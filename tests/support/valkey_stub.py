"""What no installed server says on demand: a server of the test that speaks the protocol and answers as it is told.

with Stub({"INFO": bulk("redis_version:6.0.16")}) as stub:
    stub.url                             redis://127.0.0.1:…/0
"""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import ssl
import threading
from collections.abc import Mapping
from io import BufferedIOBase
from pathlib import Path

import trustme


def bulk(text: str) -> bytes:
    """One text as an answer."""
    raw = text.encode()
    return b"$%d\r\n%s\r\n" % (len(raw), raw)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


class Stub:
    """Answers each command by its first word, and ``+OK`` where nothing was said. ``asked`` counts them."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self.asked: list[str] = []
        stub = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while (words := _words(self.rfile)) is not None:
                    name = words[0].decode().upper()
                    stub.asked.append(name)
                    if name not in answers:
                        self.wfile.write(b"+OK\r\n")
                    elif answers[name]:
                        self.wfile.write(answers[name])
                    else:
                        return  # an empty answer: hang up

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"redis://127.0.0.1:{self._server.server_address[1]}/0"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Stub:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class TlsEnd:
    """TLS before a server that knows none (the wheel's does not), with a certificate of its own authority.

    ``url`` leads through it; ``authority`` is the file that a client must be told.
    """

    def __init__(self, target: Path, folder: Path) -> None:
        """``target``: the server's socket."""
        self._target = target
        authority = trustme.CA()
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(self.authority)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._context)
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Through it, to database 0."""
        assert self._server is not None
        return f"rediss://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def __aenter__(self) -> TlsEnd:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0, ssl=self._context)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Its clients have gone; what they leave open would be complained of in another test."""
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*self._running)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        from_server, to_server = await asyncio.open_unix_connection(self._target)
        await asyncio.gather(_pump(reader, to_server), _pump(from_server, writer))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
    with contextlib.suppress(OSError):
        await sink.wait_closed()


def _words(stream: BufferedIOBase) -> list[bytes] | None:
    """The next command; None when the client has gone."""
    head = stream.readline()
    if not head.startswith(b"*"):
        return None
    words = []
    for _ in range(int(head[1:])):
        size = int(stream.readline()[1:])
        words.append(stream.read(size + 2)[:-2])
    return words
