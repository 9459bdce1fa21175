"""The meaning of SQLite's errors: what happened, to which file, and what to do next."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from stowhand.errors import StoreError, StoreUnreachable

_ADVICE_BY_CODE = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space; everything committed is safe",
    sqlite3.SQLITE_READONLY: "the file, or the folder that holds its -wal and -shm, may not be written by this user",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: do the folder and the file exist, and may this user write there?",
    sqlite3.SQLITE_IOERR: "the disk or its file system reports an error",
    sqlite3.SQLITE_PERM: "this user may not open it",
    sqlite3.SQLITE_AUTH: "this user may not open it",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_PROTOCOL: "its locks are not available",
    sqlite3.SQLITE_NOLFS: "it is too large for this system",
}
"""Advice for errors of the file, the disk or the machine, which are outages. Other codes are about the statement."""
_REFUSED_DATA_CODES = (
    sqlite3.SQLITE_CONSTRAINT_CHECK,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
)
DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_FILE_CODES = (
    *_ADVICE_BY_CODE,
    *DAMAGE_CODES,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
)


def code(error: sqlite3.Error) -> int:
    """Return the primary result code; 0 for an error of Python."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection holds the lock, which is temporary."""
    return code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_interrupted(error: sqlite3.Error) -> bool:
    """Return whether our own progress handler ended the statement."""
    return code(error) == sqlite3.SQLITE_INTERRUPT


def is_undecodable(error: sqlite3.Error) -> bool:
    """Return whether a stored text is not UTF-8. Python raises this error, so it has no code."""
    return str(error).startswith("Could not decode to UTF-8")


def decode_leniently(stored: bytes) -> str:
    """Return any stored bytes as text, each byte that is not UTF-8 as a lone surrogate."""
    return stored.decode("utf-8", "surrogateescape")


def is_refused_data(error: BaseException) -> bool:
    """Return whether no writer can ever write these values."""
    if isinstance(error, sqlite3.Error):
        # A violated UNIQUE is a bug of this package, not of the data.
        extended = getattr(error, "sqlite_errorcode", None)
        return extended in _REFUSED_DATA_CODES or isinstance(error, sqlite3.DataError)
    return isinstance(error, ValueError | OverflowError)


def is_refused(error: BaseException) -> bool:
    """Return whether the file's own rules refuse this row: its types, a CHECK, an application's trigger."""
    return isinstance(error, sqlite3.IntegrityError) or is_refused_data(error)


def concerns_call(error: Exception) -> bool:
    """Return whether the error concerns the whole call, not a row: an error of the file, or of other code.

    No trigger of an application can raise the file's errors. The connection decodes a text that is not UTF-8 leniently
    (sqlite_connection.py). ``error``: SQLite's, or ours with SQLite's as its cause.
    """
    cause = error.__cause__ if isinstance(error, StoreError) else error
    if isinstance(cause, sqlite3.Error):
        return code(cause) in _FILE_CODES or is_undecodable(cause)
    return not isinstance(cause, ValueError | OverflowError)


def message_of(error: Exception) -> str:
    """Return SQLite's own message."""
    return str(error.__cause__ if isinstance(error, StoreError) else error)


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """Convert an error of SQLite to ours, with advice."""
    if is_busy(error):
        return StoreUnreachable(f"{path}: could not be written for too long; {lock_holder(path)}")
    if code(error) in DAMAGE_CODES:
        return StoreError(f"{path}: {error}. It is not, or no longer, a valid SQLite file; restore it from a backup")
    if (advice := _ADVICE_BY_CODE.get(code(error))) is None:
        return StoreError(f"{path}: {error}")
    return StoreUnreachable(f"{path}: {error}; {advice}")


def is_client_error(error: sqlite3.Error) -> bool:
    """Return whether Python's module raised it, not SQLite: a closed connection, values that cannot be bound."""
    return code(error) == 0 and not is_undecodable(error)


def find_damage(connection: sqlite3.Connection) -> list[str]:
    """Return the damage that SQLite's own check reports. Severe damage stops the check after its first error."""
    try:
        return [line for (line,) in connection.execute("PRAGMA quick_check") if line != "ok"]
    except sqlite3.DatabaseError as error:
        if code(error) not in DAMAGE_CODES:
            raise
        return [str(error)]


def lock_holder(path: Path) -> str:
    """Describe the process that has the write lock, if the kernel shows it (Linux; this machine only)."""
    pids = _lock_holders(path.with_name(path.name + "-shm"), _WAL_WRITE_LOCK) or _lock_holders(path, _RESERVED_LOCK)
    if not pids:
        return (
            "another program has its write lock: look for a transaction left open (`fuser` names who has the file open)"
        )
    processes = ", ".join(f"process {pid} ({_command(pid)})" for pid in pids)
    return f"its write lock is held by {processes}; is a transaction left open there?"


_WAL_WRITE_LOCK = 120
"""The lock's byte in the -shm file."""
_RESERVED_LOCK = 0x40000001
"""The lock's byte in the file itself, in the mode of a rollback journal."""


def _lock_holders(path: Path, byte: int) -> list[int]:
    try:
        status = path.stat()
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except OSError:
        return []
    identity = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    locks = [line.split() for line in lines if "->" not in line]
    return sorted(
        int(fields[4])
        for fields in locks
        if fields[3] == "WRITE" and fields[5] == identity and _covers(fields[6], fields[7], byte) and int(fields[4]) > 0
    )


def _covers(start: str, end: str, byte: int) -> bool:
    return int(start) <= byte and (end == "EOF" or int(end) >= byte)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "exited"
