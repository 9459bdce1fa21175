"""Another file in the place of the one that is open: a backup that was restored, say.

A connection goes on in the file that it has open, which no other program sees any more. So each use compares device and
inode. The other file is opened, unless the write-ahead log of the old one is still beside it: SQLite would take that
for the new file's own, and destroy it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from stowhand.errors import SchemaError

Identity = tuple[int, int] | None
"""Device and inode; ``None``: there is no such file."""


class Opened(msgspec.Struct, frozen=True):
    """What was there when this process last opened a path. A log that was deleted meanwhile belongs to no file."""

    file: Identity
    log: Identity


_opened: dict[Path, Opened] = {}
REPLACED = "another file has taken its place (a backup?); it was opened, and what the old one held since is not in it"


def identity(path: Path) -> Identity:
    """Of the file that has this name just now."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_replacement(path: Path) -> None:
    """Before a path is opened. Raises SchemaError where that would destroy what is there."""
    before, now = _opened.get(path), identity(path)
    if before is None or now is None or now == before.file:
        return
    if before.log is not None and identity(_log(path)) == before.log:
        raise SchemaError(
            f"{path}: another file has taken its place, and beside it lies the -wal of the old one, which would destroy"
            f" it. Stop every program that uses it, put the right file there again, remove {path.name}-wal and"
            f" {path.name}-shm, and start anew"
        )


def note_opened(path: Path, file: Identity) -> None:
    """After it was opened, and read."""
    _opened[path] = Opened(file, identity(_log(path)))


class Replacement:
    """Says, once for each, that a store goes on in another file. One of these per store, for all of its connections."""

    def __init__(self, on_replaced: Callable[[str, str], None]) -> None:
        self._on_replaced = on_replaced
        self._file: Identity = None
        self._lock = threading.Lock()

    def opened(self, file: Identity) -> None:
        """A connection was made to it."""
        with self._lock:
            before, self._file = self._file, file
        if before is not None and before != file:
            self._on_replaced(REPLACED, "")


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
