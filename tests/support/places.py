"""Folders of test servers, and cleaning up after runs that were killed.

Each server has a home under .state/, locked for as long as the process that made it lives. A home that can be
locked belongs to nobody: whatever still runs in it is stopped, and its folders are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil

from tests.support.accounts import Account

HOMES = Path(__file__).parents[2] / ".state" / "test-servers"
PID_FILES = ("postmaster.pid", "redis.pid")  # in the data folder; a process id in the first line


class Place:
    """The folders of one server: data, socket and log. `durable`: the data lies on the disk of the clone."""

    def __init__(self, account: Account, *, durable: bool = False) -> None:
        HOMES.mkdir(parents=True, exist_ok=True)
        # One at a time: between making a home and locking it, a sweep would take it for an orphan.
        with _locked(HOMES / "lock"):
            _sweep()
            self.home = Path(tempfile.mkdtemp(prefix="server-", dir=HOMES))
            self._lock = _lock(self.home / "lock", wait=True)
        # A socket's path must be short (107 bytes), so it cannot lie in the clone; neither can the data
        # of another account, which may not even enter the clone.
        self.sockets = Path(tempfile.mkdtemp(prefix="stow-"))
        self.data = (self.home if durable and not account.user else self.sockets) / "data"
        (self.home / "sockets").write_text(str(self.sockets))
        account.own(self.sockets)

    @property
    def log(self) -> Path:
        """What the server said."""
        return self.home / "server.log"

    def remove(self) -> None:
        """Give everything back. The server must have been stopped."""
        # Not while another process sweeps: it would open the lock of a home that is half gone.
        with _locked(HOMES / "lock"):
            _remove(self.home)
            if self._lock is not None:
                self._lock.close()
                self._lock = None


def _sweep() -> None:
    for home in HOMES.glob("server-*"):
        lock = _lock(home / "lock", wait=False)
        if lock is None:
            continue  # its owner lives
        _kill_leftover(home)
        _remove(home)
        lock.close()


def _kill_leftover(home: Path) -> None:
    data = next((d for d in (home / "data", _sockets(home) / "data") if d.is_dir()), None)
    note = next((file for name in PID_FILES if data and (file := data / name).exists()), None)
    if note is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ValueError):  # it just ends, or just begins
        pid = int(note.read_text().split("\n")[0])
        leftover = psutil.Process(pid)
        # The number may have gone to another program since; the data folder in its arguments is the proof.
        if str(data) in leftover.cmdline():
            leftover.kill()


def _remove(home: Path) -> None:
    sockets = _sockets(home)
    if sockets.name.startswith("stow-"):
        shutil.rmtree(sockets, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)


def _sockets(home: Path) -> Path:
    with contextlib.suppress(FileNotFoundError):
        return Path((home / "sockets").read_text())
    return home / "no-sockets"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = _lock(path, wait=True)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def _lock(path: Path, *, wait: bool) -> IO[str] | None:
    """Hold the file until it is closed or this process ends. None if another process holds it."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        return None
    return file
