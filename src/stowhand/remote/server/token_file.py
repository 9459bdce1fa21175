"""The file of worker tokens: JSON, mode 0600, written atomically. The token itself is not stored, only its SHA-256.

    {"version": 1, "tokens": [{"id": "…", "name": "ci", "sha256": "…", "scopes": ["claim"], …}]}

Beside it is ``<file>.secret``: the key of the leases' proofs, kept in a file so that they survive a restart.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.remote.server.grants import Grant

DEFAULT = ".stowhand/tokens.json"
PREFIX = "stow"
MOST = 10_000
"""Tokens in one file, revoked and expired ones included."""
SIZE_LIMIT = 16 * 1024 * 1024


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One token, as it is stored."""

    id: str
    name: str
    sha256: str
    scopes: tuple[str, ...]
    tasks: tuple[str, ...] | None = None
    serials: tuple[str, ...] | None = None
    conditions: tuple[str, ...] = ()
    made: datetime
    expires: datetime | None = None
    revoked: datetime | None = None

    def standing(self, now: datetime) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"

    def grant(self) -> Grant:
        """What the token may do."""
        return Grant(
            id=self.id,
            name=self.name,
            scopes=frozenset(self.scopes),
            tasks=self.tasks,
            serials=self.serials,
            conditions=self.conditions,
        )


class _Tokens(msgspec.Struct, frozen=True):
    version: int
    tokens: tuple[TokenRecord, ...]


def new_token() -> tuple[str, str, str]:
    """A token with 256 random bits, its id, and its hash. The id is part of the token, and not secret."""
    token_id = secrets.token_hex(6)
    token = f"{PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
    return token, token_id, hash_of(token)


def hash_of(token: str) -> str:
    """What is stored of the token. A plain hash is enough: 2^256 tokens cannot be searched."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def id_of(token: str) -> str:
    """The id within the token; empty where it has none."""
    prefix, _, rest = token.partition("_")
    return rest.partition("_")[0] if prefix == PREFIX else ""


class TokenFile:
    """Reads and writes the file. Raises ConfigurationError for an unusable one, and says how to mend it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Has a token ever been made here?"""
        return self.path.exists()

    def stamp(self) -> tuple[int, ...] | None:
        """Changes with the file's content and mode: a file that was refused is read again once its mode is mended."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size

    def read(self) -> tuple[TokenRecord, ...]:
        """All tokens; none where there is no file."""
        raw = _read_private(self.path, SIZE_LIMIT)
        if raw is None:
            return ()
        try:
            found = msgspec.json.decode(raw, type=_Tokens)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"{self.path}: no file of tokens ({error}); move it away and make new ones: stowhand tokens make"
            ) from None
        if found.version != 1:
            raise ConfigurationError(f"{self.path}: written by a later version; upgrade this package")
        return found.tokens

    def change(self, changed: Callable[[tuple[TokenRecord, ...]], tuple[TokenRecord, ...]]) -> None:
        """Replace the tokens, under a lock: of several programs none overwrites the change of another."""
        with self._locked():
            tokens = changed(self.read())
            if len(tokens) > MOST:
                raise ConfigurationError(f"{self.path}: {len(tokens)} tokens, the limit is {MOST}")
            body = msgspec.json.format(msgspec.json.encode(_Tokens(1, tokens)), indent=2)
            write_private(self.path, body + b"\n")

    def secret(self) -> bytes:
        """The key beside the file, generated at the first use."""
        place = self.path.with_name(self.path.name + ".secret")
        with self._locked():
            if (found := _read_private(place, 1024)) is not None:
                if len(found) < 32:
                    raise ConfigurationError(f"{place}: too short for a key; remove it, and another one is made")
                return found
            made = secrets.token_hex(32).encode()
            write_private(place, made)
            return made

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise ConfigurationError(f"{folder}: {error.strerror}; name another place with --tokens") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise ConfigurationError(f"{self.path}: {error.strerror}; name another place with --tokens") from None
        finally:
            os.close(handle)


def _read_private(path: Path, limit: int) -> bytes | None:
    """The bytes of a file that only its owner may read; ``None`` where it is missing."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise ConfigurationError(f"{path}: others may open it (mode {mode & 0o777:o}); chmod 600 {path}")
            raw = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    if len(raw) > limit:
        raise ConfigurationError(f"{path}: more than {limit} bytes, so it is no file of ours")
    return raw


def write_private(path: Path, body: bytes) -> None:
    """Write a file of mode 0600 atomically, in a folder that is made where there is none."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # creates it with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
