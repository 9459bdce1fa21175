"""SQLite files: where they may be, how they are created and opened, and what happens when one is replaced.

A connection keeps using the file that it has open, even after a restored backup has replaced it. So each use compares
device and inode. The new file is opened, unless the write-ahead log of the old one is still beside it: SQLite would
apply that log to the new file and destroy it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from stowhand.errors import ConfigurationError, SchemaError

NETWORK_FILE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "glusterfs",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.rclone",
)
"""File systems whose locks or shared memory do not reach every machine that mounts them."""

IN_MEMORY_NAME = ":memory:"
"""Name in place of a file: a database that only its own connections can use."""

BUSY_TIMEOUT_SECONDS = 0.1
"""Time that SQLite itself waits for a lock. It is short, because its pauses grow and start again with each call."""

_creation_lock = threading.Lock()
FILE_MODE = 0o600


def check_path(path: Path) -> None:
    """Raise ConfigurationError, with the reason and the fix, for a path where no queue can be."""
    if path.name == IN_MEMORY_NAME:
        raise ConfigurationError(
            f"{path.name}: a database in memory can be used only by its own connections (enqueue_in); use a file, or"
            " for a queue in memory App('memory://') or stowhand.testing.MemoryStore"
        )
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    if path.is_symlink():
        raise ConfigurationError(f"{path} is a symbolic link to {path.readlink()}: use the file's own path")
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder: name a file in it, for example {path / 'stowhand.db'}")
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path} is not a regular file")
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path}: the folder {path.parent} does not exist: create it first")
    file_system_type = file_system(path.parent)
    if file_system_type is not None and file_system_type.startswith(NETWORK_FILE_SYSTEMS):
        raise ConfigurationError(
            f"{path} is on a network file system ({file_system_type}), where SQLite's locks cannot be trusted and"
            " the file would be damaged: put it on a local disk, or use PostgreSQL for several machines"
        )


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the type of a folder's file system; ``None`` if the kernel does not show it (not Linux)."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    real = folder.resolve()
    mount_points = [(_unescape(fields[1]), fields[2]) for fields in (line.split() for line in lines) if len(fields) > 2]
    # A later mount hides an earlier one on the same point, so use the last mount of the longest path.
    containing = [
        (len(point), order, kind) for order, (point, kind) in enumerate(mount_points) if real.is_relative_to(point)
    ]
    return max(containing)[2] if containing else None


def create(path: Path) -> None:
    """Create an empty file that only its owner may read, unless it exists.

    An existing file is never opened here: closing any descriptor of a file drops all locks that this process has on it,
    including those of SQLite's connections. For the same reason, only one thread at a time may do this.
    """
    check_path(path)
    with _creation_lock:
        if not path.exists():
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
            except FileExistsError:
                pass  # another process was faster; it created the file with the same mode
            except OSError as error:
                raise ConfigurationError(f"{path} cannot be created: {error.strerror}") from None


def connect(path: Path, settings: Iterable[str] = ()) -> sqlite3.Connection:
    """Connect to an existing file. Transactions are started explicitly; any thread may use it, one at a time.

    ``settings``: pragmas. Raise FileNotFoundError if there is no file, as none is created here.
    """
    check_path(path)
    with _creation_lock:
        if not path.exists():
            raise FileNotFoundError(path)
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=BUSY_TIMEOUT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
    try:
        for setting in settings:
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def _unescape(point: str) -> str:
    """Decode a mount point: ``/proc/mounts`` writes blanks in octal."""
    return point.encode("utf-8", "surrogateescape").decode("unicode_escape") if "\\" in point else point


FileIdentity = tuple[int, int] | None
"""Device and inode; ``None``: there is no such file."""


class OpenedFile(msgspec.Struct, frozen=True):
    """The file and the log that existed when this process last opened a path."""

    file: FileIdentity
    log: FileIdentity


_opened_files: dict[Path, OpenedFile] = {}
REPLACED_WARNING = (
    "another file has replaced it (a backup?); the new file was opened, and later changes of the old one are lost"
)


def file_identity(path: Path) -> FileIdentity:
    """Return the identity of the file that has this name now."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_replacement(path: Path) -> None:
    """Raise SchemaError if opening the path would destroy the file there."""
    before, now = _opened_files.get(path), file_identity(path)
    if before is None or now is None or now == before.file:
        return
    if before.log is not None and file_identity(_wal_path(path)) == before.log:
        raise SchemaError(
            f"{path}: another file has replaced it, and the -wal of the old one is beside it, which would destroy the"
            f" new one. Stop every program that uses it, put the right file there again, remove {path.name}-wal and"
            f" {path.name}-shm, and start again"
        )


def record_opened(path: Path, file: FileIdentity) -> None:
    """Record the identity of a file that was opened and read."""
    _opened_files[path] = OpenedFile(file, file_identity(_wal_path(path)))


class ReplacementReporter:
    """Reports once that a store uses a new file. Each store has one, shared by all its connections."""

    def __init__(self, on_replaced: Callable[[str, str], None]) -> None:
        self._on_replaced = on_replaced
        self._file: FileIdentity = None
        self._lock = threading.Lock()

    def on_opened(self, file: FileIdentity) -> None:
        """Report a replacement if this connection opened another file than the one before."""
        with self._lock:
            before, self._file = self._file, file
        if before is not None and before != file:
            self._on_replaced(REPLACED_WARNING, "")


def _wal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
