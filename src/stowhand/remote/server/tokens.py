"""Worker tokens, their rights, and the tokens file: JSON with mode 0600, which contains the SHA-256 of each token.

    {"version": 1, "tokens": [{"id": "…", "name": "ci", "sha256": "…", "scopes": ["claim"], …}]}

The file ``<file>.secret`` beside it contains the key of the leases' proofs, so that they survive a restart.
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
from stowhand.jobs import limits
from stowhand.jobs.conditions import Where
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.queues import Queues
from stowhand.remote.server.refusals import forbidden, missing_scope, outside_limit
from stowhand.remote.wire import Scope

DEFAULT_FILE = ".stowhand/tokens.json"
TOKEN_PREFIX = "stow"
MAX_TOKENS = 10_000
"""Maximum number of tokens in one file, including revoked and expired ones."""
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_WORKER_NAME_CHARACTERS = 255
DASHBOARD_ONLY_SCOPES = frozenset({Scope.ACT, Scope.ADD})


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Rights of a worker token. A limit of ``None`` means no limit."""

    id: str
    """Id of the token, for the audit; empty if the server has no tokens."""
    name: str = ""
    scopes: frozenset[str] = frozenset()
    tasks: tuple[str, ...] | None = None
    serials: tuple[str, ...] | None = None
    """Serial keys whose jobs may be enqueued and read. A claim cannot be limited by serial key: see
    ``check_limits``."""
    queues: tuple[str, ...] | None = None
    """Queues whose jobs may be claimed, enqueued and read."""
    conditions: tuple[str, ...] | None = ()
    """Columns that a claim's conditions may compare."""

    @property
    def sees_all(self) -> bool:
        """Whether the token sees every job."""
        return self.tasks is None and self.queues is None and self.serials is None

    def need(self, scope: Scope) -> None:
        """Raise Refused unless the token has the scope."""
        if scope not in self.scopes:
            raise missing_scope(scope, self.name)

    def worker_in_store(self, worker: str) -> str:
        """Return the store's name for a worker of this token. It contains the token's id. Raises InvalidJob."""
        limits.check_name("worker", worker, MAX_WORKER_NAME_CHARACTERS)
        return f"{worker}@{self.id}" if self.id else worker

    def tasks_of_claim(self, requested: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return the allowed tasks of a claim for these tasks (``None``: any). Raises InvalidJob, Refused."""
        if requested is not None:
            requested = limits.read_names("tasks", requested)
        if self.tasks is None:
            return requested
        if requested is None:
            return self.tasks
        allowed = tuple(task for task in requested if task in self.tasks)
        if requested and not allowed:
            raise outside_limit("task", requested[0], "--task")
        return allowed

    def queues_of_claim(self, requested: Queues) -> Queues:
        """Return the queues whose jobs a claim for these queues may return. Raises InvalidJob, Refused."""
        only = None if requested.only is None else limits.read_names("queues", requested.only)
        excluded = limits.read_names("queues", requested.excluded)
        if self.queues is None:
            return Queues(only, excluded)
        allowed = self.queues if only is None else tuple(queue for queue in only if queue in self.queues)
        if only and not allowed:
            raise outside_limit("queue", only[0], "--queue")
        return Queues(allowed, excluded)

    def check_conditions(self, conditions: tuple[Where, ...]) -> None:
        """Raise Refused for a column that is not allowed: a comparison reveals the column's values."""
        if self.conditions is None:
            return
        for condition in conditions:
            if condition.column not in self.conditions:
                raise outside_limit("condition column", condition.column, "--condition")

    def check_enqueue(self, job: NewJob) -> None:
        """Raise Refused unless the token may enqueue this job."""
        self.need(Scope.ENQUEUE)
        if self.tasks is not None and job.task not in self.tasks:
            raise outside_limit("task", job.task, "--task")
        if self.serials is not None and job.serial not in self.serials:
            raise outside_limit("serial", job.serial or "", "--serial")
        if self.queues is not None and job.queue not in self.queues:
            if job.queue is None:
                names = ", ".join(map(repr, self.queues))
                raise forbidden("this token is limited to some queues", f"set the job's queue to one of: {names}")
            raise outside_limit("queue", job.queue, "--queue")
        if job.on_failure is not None:
            self.check_enqueue(job.on_failure)

    def shown(self, job: Job) -> Job:
        """Return the job in the form that this token may see: payload and result only with the scope payload."""
        if Scope.PAYLOAD in self.scopes:
            return job
        return msgspec.structs.replace(job, payload_text="", result_text=None)

    def sees(self, job: Job) -> bool:
        """Return whether the job is within the token's tasks, queues and serial keys."""
        return self.covers(job.task, job.queue) and (self.serials is None or job.serial in self.serials)

    def runs(self, job: Job) -> bool:
        """Return whether a worker of this token runs the job."""
        return job.state is State.PROCESSING and (not self.id or (job.worker or "").endswith(f"@{self.id}"))

    def covers(self, task: str, queue: str) -> bool:
        """Return whether the token allows this task and this queue."""
        return (self.tasks is None or task in self.tasks) and (self.queues is None or queue in self.queues)


UNLIMITED_GRANT = Grant(id="", name="", scopes=frozenset(Scope), conditions=None)
"""Grant of every request to a server without tokens, which accepts only local programs."""


def check_limits(record: TokenRecord) -> None:
    """Raise ConfigurationError for limits that are not enforced."""
    scopes = frozenset(record.scopes)
    if DASHBOARD_ONLY_SCOPES & scopes and not record.grant().sees_all:
        raise ConfigurationError(
            "act and add are scopes of the dashboard, which shows every task, queue and serial key: omit --task,"
            " --queue and --serial, or make two tokens"
        )
    if record.serials is not None and Scope.CLAIM in scopes:
        raise ConfigurationError(
            "a claim cannot be limited by serial key, only by task and queue: omit --serial, or make two tokens:"
            " one with --scope claim --task …, one with --scope enqueue --serial …"
        )


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored token."""

    id: str
    name: str
    sha256: str
    scopes: tuple[str, ...]
    tasks: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    serials: tuple[str, ...] | None = None
    conditions: tuple[str, ...] = ()
    made: datetime
    expires: datetime | None = None
    revoked: datetime | None = None

    def standing(self, now: datetime) -> str:
        """Return ``active``, ``expired`` or ``revoked``."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"

    def grant(self) -> Grant:
        """Return the rights of the token."""
        return Grant(
            id=self.id,
            name=self.name,
            scopes=frozenset(self.scopes),
            tasks=self.tasks,
            queues=self.queues,
            serials=self.serials,
            conditions=self.conditions,
        )


class _Tokens(msgspec.Struct, frozen=True):
    version: int
    tokens: tuple[TokenRecord, ...]


def new_token() -> tuple[str, str, str]:
    """Return a token with 256 random bits, its id, and its hash. The id is a part of the token that is not secret."""
    token_id = secrets.token_hex(6)
    token = f"{TOKEN_PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
    return token, token_id, hash_of(token)


def hash_of(token: str) -> str:
    """Return the stored hash of a token. A plain hash is enough: 2^256 tokens cannot be searched."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def id_of(token: str) -> str:
    """Return the id within a token; empty if it has none."""
    prefix, _, rest = token.partition("_")
    return rest.partition("_")[0] if prefix == TOKEN_PREFIX else ""


class TokenFile:
    """Tokens file. Its methods raise ConfigurationError if it is unusable."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Return whether the file exists, so a token was made before."""
        return self.path.exists()

    def stamp(self) -> tuple[int, ...] | None:
        """Return a value that changes with the file's content and mode, so that a changed file is read again."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size

    def read(self) -> tuple[TokenRecord, ...]:
        """Read all tokens; none if the file is missing."""
        raw = _read_private(self.path, MAX_FILE_BYTES)
        if raw is None:
            return ()
        try:
            content = msgspec.json.decode(raw, type=_Tokens)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"{self.path}: not a tokens file ({error}); move it away and make new tokens: stowhand tokens make"
            ) from None
        if content.version != 1:
            raise ConfigurationError(f"{self.path}: written by a later version; upgrade this package")
        return content.tokens

    def change(self, changed: Callable[[tuple[TokenRecord, ...]], tuple[TokenRecord, ...]]) -> None:
        """Replace the tokens under a lock, so that concurrent changes are not lost."""
        with self._locked():
            tokens = changed(self.read())
            if len(tokens) > MAX_TOKENS:
                raise ConfigurationError(f"{self.path}: {len(tokens)} tokens, the limit is {MAX_TOKENS}")
            body = msgspec.json.format(msgspec.json.encode(_Tokens(1, tokens)), indent=2)
            write_private(self.path, body + b"\n")

    def secret(self) -> bytes:
        """Return the key of the leases' proofs. It is generated at the first use."""
        key_path = self.path.with_name(self.path.name + ".secret")
        with self._locked():
            if (key := _read_private(key_path, 1024)) is not None:
                if len(key) < 32:
                    raise ConfigurationError(f"{key_path}: too short for a key; remove it to generate a new one")
                return key
            new_key = secrets.token_hex(32).encode()
            write_private(key_path, new_key)
            return new_key

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise ConfigurationError(f"{folder}: {error.strerror}; choose another location with --tokens") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise ConfigurationError(f"{self.path}: {error.strerror}; choose another location with --tokens") from None
        finally:
            os.close(handle)


def _read_private(path: Path, limit: int) -> bytes | None:
    """Return the content of a file that only its owner may read; ``None`` if it is missing."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise ConfigurationError(
                    f"{path}: other users can open it (mode {mode & 0o777:o}); run: chmod 600 {path}"
                )
            raw = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    if len(raw) > limit:
        raise ConfigurationError(f"{path}: more than {limit} bytes, so it is not a tokens file")
    return raw


def write_private(path: Path, body: bytes) -> None:
    """Write a file of mode 0600 atomically. Create its folder if necessary."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # the mode is 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
