"""The seams between a worker and wherever its jobs live. (Those of a store that we own whole: queue_store.py.)

    Store    claim, settle, wait: what a worker's loop needs           (async, the loop's own connections)
    Heartbeats    beat, release, reset: what keeps leases true              (blocking, one other thread, own connection)

Claims and settlements are plural from the first day: speed comes from there. Every write after a claim is guarded by
the *pair* (id, token); a write whose pair no longer holds changes nothing and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import NewJob
from stowhand.jobs.lease import JobId, Lease, ResetJob
from stowhand.jobs.lifecycle import Backoff, Settlement
from stowhand.jobs.limits import INT32

R = TypeVar("R")


class Claim(msgspec.Struct, Generic[R], frozen=True):
    """A record held under a lease, with the facts that the law needs to judge its attempt."""

    lease: Lease
    record: R
    task: str
    attempts: int
    """The attempt that this claim began: 1, 2, …"""
    max_attempts: int
    queue: str | None = None
    resets: int = 0
    """How often a worker has died under it since an attempt was last recorded."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for."""

    worker: str
    token: str
    limit: int
    lease: float
    """Seconds until the store may give the jobs away."""
    tasks: tuple[str, ...] | None = None
    """Only these; ``None``: any. A task that this worker lacks is never claimed."""
    forbidden_flags: tuple[str, ...] = ()
    suspects: bool = False
    """Only jobs reset twice or more, instead of only the others."""
    overdue: float | None = None
    """Of suspects those due for so many seconds, and only while ``lifecycle.may_make_way`` allows it: the worker will
    make way for it."""
    conditions: tuple[Any, ...] = ()
    """All of them must hold: ``Where``, ``Sql``, or what the store's driver composes. Stores that take none refuse."""
    ours: tuple[Lease, ...] | None = None
    """What the worker renews: if nothing is found, ``Store.foreign`` is to tell of all others. ``None``: need not."""


class Verdict(StrEnum):
    """What became of one settlement."""

    SETTLED = "settled"
    ALREADY_SETTLED = "already settled"
    """A repeat of a settlement whose reply was lost. As good as settled."""
    LOST = "lost"
    """The lease is no longer valid; nothing was changed."""
    BUSY = "busy"
    """Somebody's open transaction holds the row; the lease is intact. Try this one again."""
    UNKNOWN = "unknown"
    """Repeated after a cut connection, and no trace of it either way. Counted; never called a success."""


class Unwritten(msgspec.Struct, frozen=True):
    """The database refuses to write this settlement (a CHECK, a trigger, a value that it cannot hold).

    Nothing was changed, and the lease holds. The worker decides what is settled instead: stores never decide.
    """

    why: str


Reply = Verdict | Settlement | Unwritten
"""What became of one settlement. A ``Settlement``: it is settled, and recorded like this instead of as asked."""


class Pulse(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: pairs (job id, token), never ids alone. What is in none of them was renewed."""

    lost: frozenset[tuple[JobId, str]] = frozenset()
    canceled: frozenset[tuple[JobId, str]] = frozenset()
    """Renewed, and asked to cancel."""
    busy: frozenset[tuple[JobId, str]] = frozenset()
    """Ours, but locked by somebody's open transaction: alive, not renewed."""
    refused: frozenset[tuple[JobId, str]] = frozenset()
    """Ours, but the database refuses to renew it: left to its lease (``Heartbeats.refused`` says why)."""


class Refusal(msgspec.Struct, frozen=True):
    """The database refuses to change one job; the others of the call are none the worse."""

    job_id: JobId
    doing: str
    """beat, release, reset."""
    why: str


class Foreign(msgspec.Struct, frozen=True):
    """What a store sees of *foreign* leases: those that the asking worker does not renew, its own orphans included."""

    late: bool = False
    """One ended more than the slack ago: there is something to take back."""
    ends_in: float | None = None
    """Seconds until the first of the others has been over for as long as the slack; ``None``: there is no other."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a store lays down for whoever works on it, because it stands in the store's own options."""

    lease: float
    """Seconds until the store may give a job away; the worker's ``lease`` does not count."""
    heartbeat_interval: float | None = None
    """Where the worker does not say."""
    cancel_interval: float | None = None
    """A running handler is to hear of a cancellation so soon: whatever is said of heartbeats, they are no rarer."""
    backoff: Backoff | None = None
    """Where the handler's policy does not say."""
    polls: bool = False
    """No wake-ups are to be expected: it is polled, and that is no trouble."""


class Store(Protocol[R]):
    """Where jobs are kept and how they are claimed and settled."""

    async def open(self) -> None:
        """Connect, and check the schema. Raises StoreUnreachable, SchemaError."""

    async def close(self) -> None:
        """Let every connection go. Harmless when repeated."""

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[R]]:
        """Move up to ``limit`` due jobs to processing, in the order (priority, run_at, id)."""

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record how jobs left processing; replies in the order of the batch.

        One settlement never sinks another: what the store cannot write of one job is ``Unwritten``, with the reason.
        Only the row knows that its cancellation was asked for or that its key is gone: what was written instead of
        what was asked is the reply then. ``repeat`` says that an earlier call had no reply, so that *no trace* is
        Unknown and not Lost.
        Raises StoreUnreachable when the outcome of the call is not known; it may be repeated as it is.
        """

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Seconds until the earliest waiting job of these tasks is due (0 if one is); ``None`` if none waits."""

    def foreign(self) -> Foreign | None:
        """What was seen of foreign leases when a claim with ``ours`` found nothing and ``next_due`` was asked then.

        Told once; ``None`` where nothing was asked, or where the store leaves this to its heart. Counted with
        ``lifecycle.slack``; ``late`` is never set: what is past would hurry every idle worker in vain.
        """

    async def wait(self, timeout: float) -> bool:
        """Return True when there may be new work, False after ``timeout`` seconds. A hint, never the only way."""

    @property
    def is_listening(self) -> bool:
        """Wake-ups are known to arrive just now (a listening connection has answered), so polls may be rarer."""

    def heartbeats(self) -> Heartbeats:
        """A blocking connection of its own, to be used from one other thread."""


class Heartbeats(Protocol):
    """What keeps leases true while the loop is busy. Blocking; every method raises StoreUnreachable."""

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew them for ``lease`` seconds from now, by the store's clock."""

    def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent: queued, due at once, attempts − 1, nothing else. Gives those that are busy: try again."""

    def abandon(self, token: str) -> bool:
        """Let this token claim nothing more, and give back whatever it holds. False: some of it is busy, try again."""

    def foreign(self, ours: Sequence[Lease], slack: float) -> Foreign | None:
        """All leases but these. One question where nothing is held; ``None``: only ``reset_stalled`` can tell."""

    def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back jobs whose lease ended more than ``slack`` seconds ago. Called again while it returns any."""

    def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back at once what this worker holds: somebody saw it die."""

    def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one job: the child that ran it died."""

    def refused(self) -> Sequence[Refusal]:
        """What the database refused to change since this was last asked. Each job is named once per kind of call."""

    def check(self) -> None:
        """Raises SchemaTooNew once somebody has upgraded the store's schema beyond what this version can work with."""

    def check_writable(self) -> None:
        """Raises StoreUnreachable where nothing can be written just now, as far as that can be told without changing
        anything or costing a round trip: a full disk below a file."""

    def maintain(self) -> None:
        """Prune the history and whatever else must stay bounded. Cheap when there is nothing to do."""

    def close(self) -> None:
        """Let the connection go."""


DAY = 86_400.0
LONGEST_HISTORY = 100 * 366 * DAY
RESERVED_CONNECTIONS = 5
"""PostgreSQL: what one worker process keeps for itself: claims, settlements, listening, heartbeats, and one for what is
enqueued and asked beside, which is the pool's own."""
POOL_SIZE = 10
"""PostgreSQL: connections of a process at most, where nobody says and no worker needs more."""


def pool_refusal(said: str, size: int) -> str | None:
    """Why a worker cannot work with so few; ``None``: it can. ``said``: how many, and in which words."""
    least = RESERVED_CONNECTIONS + 1
    if size >= least:
        return None
    return (
        f"{said}: a worker keeps {RESERVED_CONNECTIONS} connections for claiming, settling, listening, heartbeats and"
        f" enqueueing, and tasks need at least 1: {RESERVED_CONNECTIONS} + 1 = {least}; give {least} or more"
    )


def pool_shortage(said: str, size: int, slots: int) -> str | None:
    """What to say of a worker whose tasks have fewer connections than it has slots; ``None``: there are enough."""
    left, most = size - RESERVED_CONNECTIONS, slots + RESERVED_CONNECTIONS
    if left >= slots:
        return None
    return (
        f"{said}: {slots} jobs at once and {RESERVED_CONNECTIONS} connections that the worker keeps for itself are"
        f" {slots} + {RESERVED_CONNECTIONS} = {most}, so tasks have {left} for {slots} jobs. One that finds none free"
        f" waits, 5 minutes at most, and then goes back unspent; give {most} or more, or leave it out"
    )


_NOTHING = type(None)
_TIME = ((int, float, _NOTHING), "a number of seconds, or None")
_TEXT = ((str, _NOTHING), "text, or None")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "schema": ((str,), "the name of a schema"),
    "history": _TIME,
    "failed_retention": _TIME,
    "pool_size": ((int, _NOTHING), "a whole number, or None"),
    "prepared_statements": ((bool,), "True or False"),
    "listen_url": _TEXT,
    "synchronous": ((str,), "FULL or NORMAL"),
    "token": _TEXT,
    "ca_file": _TEXT,
    "insecure": ((bool,), "True or False"),
    "max_attempts": ((int, _NOTHING), "a whole number, or None"),
}


def whole(job: NewJob, max_attempts: int | None) -> NewJob:
    """The job with so many attempts, where nobody has said how many; ``None``: what keeps it decides."""
    if max_attempts is None or job.max_attempts is not None:
        return job
    return msgspec.structs.replace(job, max_attempts=max_attempts)


def whole_batch(
    batch: Sequence[tuple[Lease, Settlement]], max_attempts: int | None
) -> Sequence[tuple[Lease, Settlement]]:
    """The same for the jobs that settlements enqueue."""
    if max_attempts is None:
        return batch
    return [
        (
            lease,
            one if not one.then else msgspec.structs.replace(one, then=tuple(whole(j, max_attempts) for j in one.then)),
        )
        for lease, one in batch
    ]


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a store of ours is opened. Options that a store has no use for are ignored by it, and the docs say which."""

    schema: str = "stowhand"
    """PostgreSQL: the schema that holds everything of ours."""
    history: float | None = DAY
    """Seconds that completed and canceled jobs are kept; ``None``: completed jobs are deleted at once."""
    failed_retention: float | None = None
    """Seconds that failed jobs are kept; ``None``: until somebody handles them."""
    pool_size: int | None = None
    """PostgreSQL: connections at most, the reserved ones of a worker included. They are opened as they are needed.
    ``None``: 10, and more where a worker's slots and the reserved ones are more."""
    prepared_statements: bool = True
    """PostgreSQL: off for poolers in transaction mode that do not know them."""
    pool: object | None = None
    """PostgreSQL: a ``psycopg_pool.AsyncConnectionPool`` of the application's; enqueueing, inspection and tasks' own
    statements borrow from it. The connections that a worker reserves are made as the pool makes its own."""
    listen_url: str | None = None
    """PostgreSQL: a direct connection for LISTEN when the other one goes through a transaction pooler."""
    synchronous: str = "FULL"
    """SQLite: FULL, or NORMAL (a power failure may lose the last commits; a crash of the process never does)."""
    token: str | None = None
    """HTTP: the worker token that ``stowhand tokens make`` showed."""
    ca_file: str | None = None
    """HTTP: certificates to trust instead of the public ones."""
    insecure: bool = False
    """HTTP: send the token over http:// to another machine, readable to whoever listens."""
    max_attempts: int | None = None
    """Of jobs that are made through this store and do not say; ``None``: the schema's default, or 25."""
    pinned: Callable[[], datetime] | None = None
    """Tests only: the store's idea of now."""

    def __post_init__(self) -> None:
        for name, (kinds, words) in _KINDS.items():
            given = getattr(self, name)
            # bool is an int to Python; True as a number of seconds is a mistake.
            if not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds):
                raise ConfigurationError(f"{name}: a {type(given).__qualname__} given; give {words}")
        for name, kept in (("history", self.history), ("failed_retention", self.failed_retention)):
            if kept is not None and not 0 <= kept <= LONGEST_HISTORY:
                raise ConfigurationError(f"{name}: {kept!r} s given; give 0 s to 100 years, or None")
        if self.pool_size is not None and self.pool_size < 1:
            raise ConfigurationError(f"pool_size: {self.pool_size} given, must be more than 0")
        if self.max_attempts is not None and not 1 <= self.max_attempts <= INT32:
            raise ConfigurationError(f"max_attempts: {self.max_attempts} given; the limits are 1 and {INT32}")
        if self.synchronous.upper() not in ("FULL", "NORMAL"):
            raise ConfigurationError(f"synchronous: {self.synchronous!r} given; there are: FULL, NORMAL")

    def whole(self, job: NewJob) -> NewJob:
        """The job as it is made through this store: a number of attempts that nobody has said is the store's."""
        return whole(job, self.max_attempts)

    def __repr__(self) -> str:
        # Errors and debuggers print options; a token is a secret, and a URL may hold a password.
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        secret = {name: "***" for name in ("token", "listen_url") if said[name] is not None}
        return f"StoreOptions({', '.join(f'{name}={value!r}' for name, value in (said | secret).items())})"
