"""A real PgBouncer in transaction mode before a test server: the one on PATH, else Debian's package.

The package is only unpacked, into .state/pgbouncer: nothing is installed into the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.support.accounts import Account, choose_account

UNPACKED = Path(__file__).parents[2] / ".state" / "pgbouncer"
DOWNLOAD_SECONDS = 60.0
START_SECONDS = 60.0
LONGEST = "600s"
KNOWS_PREPARED_STATEMENTS = (1, 21)
"""The first version that follows prepared statements from one server connection to the next."""


@dataclass(frozen=True)
class Program:
    """The binary, and where its libraries are if not where the loader looks."""

    path: Path
    version: tuple[int, int]
    libraries: Path | None = None


@cache
def find_pgbouncer() -> Program | str:
    """The program, or why there is none."""
    on_path = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if on_path is not None:
        return _program(Path(on_path), None) or f"{on_path} does not run"
    if not (UNPACKED / "complete").exists() and (trouble := _unpack()):
        return trouble
    libraries = next((path.parent for path in sorted(UNPACKED.rglob("lib*.so.*"))), None)
    return _program(UNPACKED / "usr" / "sbin" / "pgbouncer", libraries) or "Debian's pgbouncer does not run here"


def _unpack() -> str | None:
    """Download the package and what it needs that is not installed; None, or what was in the way."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return "no pgbouncer on PATH, and no apt-get to fetch one"
    UNPACKED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED.parent) as folder:
        needed = _run(folder, "apt-cache", "depends", "--important", "pgbouncer")
        names = re.findall(r"Depends: (lib\S+)", needed or "")
        absent = [name for name in names if not _run(folder, "dpkg-query", "-W", "-f", "${Version}", name)]
        options = ("-q", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10")
        if needed is None or _run(folder, "apt-get", *options, "download", "pgbouncer", *absent) is None:
            return "no pgbouncer on PATH, and apt-get could not download one"
        tree = Path(folder, "tree")
        for package in Path(folder).glob("*.deb"):
            if _run(folder, "dpkg-deb", "-x", str(package), str(tree)) is None:
                return "no pgbouncer on PATH, and dpkg-deb could not unpack one"
        (tree / "complete").touch()
        tree.chmod(0o755)
        with suppress(OSError):  # another process of the run may have been faster
            tree.rename(UNPACKED)
    return None


def _run(folder: str, *command: str) -> str | None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _program(path: Path, libraries: Path | None) -> Program | None:
    environment = os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {})
    try:
        message = subprocess.run(
            [path, "--version"], env=environment, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    result = re.search(r"PgBouncer (\d+)\.(\d+)", message)
    return Program(path, (int(result[1]), int(result[2])), libraries) if result else None


class PgBouncer:
    """Before the server of a URL, with ``size`` server connections for everybody. ``url`` goes through it.

    ``prepared``: it keeps the prepared statements of its clients apart, if it is able to.
    """

    def __init__(self, program: Program, url: str, *, size: int = 3, prepared: bool = True) -> None:
        self._program, self._target, self._size = program, conninfo_to_dict(url), size
        self._kept = 100 if prepared else 0
        self._account = choose_account()
        self._folder = Path(tempfile.mkdtemp(prefix="stow-pool-"))
        self._process: subprocess.Popen[str] | None = None
        host = quote(str(self._folder), safe="")
        self.url = f"postgresql://postgres@/{self._target['dbname']}?host={host}&port=6432"

    def __enter__(self) -> Self:
        try:
            return self._start()
        except BaseException:
            self._stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def log(self) -> str:
        """What it said."""
        return (self._folder / "log").read_text(errors="replace")

    def _start(self) -> Self:
        path = _reachable(self._program, self._account, self._folder)
        server = " ".join(
            f"{name}='{self._target[name]}'" for name in ("host", "port", "user", "password") if name in self._target
        )
        prepared = (
            f"max_prepared_statements = {self._kept}\n" if self._program.version >= KNOWS_PREPARED_STATEMENTS else ""
        )
        # auth_type any: whoever comes is let in, and is the user named here.
        (self._folder / "ini").write_text(
            f"[databases]\n* = {server}\n[pgbouncer]\npool_mode = transaction\nauth_type = any\nlisten_addr =\n"
            f"listen_port = 6432\nunix_socket_dir = {self._folder}\nlogfile =\npidfile =\nmax_client_conn = 100\n"
            f"default_pool_size = {self._size}\nserver_round_robin = 1\n{prepared}"
        )
        for entry in (self._folder, self._folder / "ini"):
            self._account.own(entry)
        libraries = {"LD_LIBRARY_PATH": str(path[1])} if path[1] else {}
        with (self._folder / "log").open("w") as log:
            # Should this test run be killed, it does not stay for ever.
            bounded = ["timeout", LONGEST] if shutil.which("timeout") else []
            command = [*bounded, str(path[0]), str(self._folder / "ini")]
            self._process = self._account.start(command, stdout=log.fileno(), **libraries)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return self
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PgBouncer did not start: {error}\n{self.log()}") from error
            time.sleep(0.02)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # At once, whoever is connected: newer ones take SIGTERM for "when all have gone".
            process.send_signal(signal.SIGQUIT if self._program.version >= (1, 23) else signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)


def _reachable(program: Program, account: Account, folder: Path) -> tuple[Path, Path | None]:
    """The program and its libraries, copied to where another account can reach them if it must be."""
    if account.user is None:
        return program.path, program.libraries
    copy = folder / "program"
    if program.libraries is not None:
        shutil.copytree(program.libraries, copy)
    copy.mkdir(exist_ok=True)
    return Path(shutil.copy(program.path, copy / "pgbouncer")), copy if program.libraries else None
