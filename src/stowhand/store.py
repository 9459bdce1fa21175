"""The seams between a worker and wherever its jobs live.

    Store       claim, settle, wait: what a worker's loop needs            (async, the loop's own connections)
    Heart       beat, release, reset: what keeps leases true               (blocking, one other thread, own connection)
    Producer    enqueue one, many, or inside the caller's own transaction
    Inspector   look at jobs, and act on them one by one: retry, cancel, remove
    Schema      install, check, plan, uninstall

Claims and settlements are plural from the first day: speed comes from there. Every write after a claim is guarded by
the *pair* (id, token); a write whose pair no longer holds changes nothing and says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

import msgspec

from stowhand.job import Job, NewJob, State
from stowhand.lifecycle import Settlement

R = TypeVar("R")


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The proof of a claim."""

    job_id: int
    token: str
    """A uuid4 made by the worker *before* the claim call; one per call."""
    epoch: int
    """+1 at every claim and every take-away, never reset: what outside systems compare."""


class Claim(msgspec.Struct, Generic[R], frozen=True):
    """A record held under a lease, with the facts that the law needs to judge its attempt."""

    lease: Lease
    record: R
    task: str
    attempts: int
    """The attempt that this claim began: 1, 2, …"""
    max_attempts: int
    queue: str | None = None


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


class Pulse(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: pairs (job id, token), never ids alone. What is in none of them was renewed."""

    lost: frozenset[tuple[int, str]] = frozenset()
    canceled: frozenset[tuple[int, str]] = frozenset()
    """Renewed, and asked to cancel."""
    busy: frozenset[tuple[int, str]] = frozenset()
    """Ours, but locked by somebody's open transaction: alive, not renewed."""


class ResetJob(msgspec.Struct, frozen=True):
    """A job taken from a worker that is gone."""

    job_id: int
    task: str
    state: State
    """What it became: ``queued``, ``failed`` or ``canceled``."""
    worker: str | None = None


class Store(Protocol[R]):
    """Where jobs are kept and how they are claimed and settled."""

    async def open(self) -> None:
        """Connect, and check the schema. Raises StoreUnreachable, SchemaError."""

    async def close(self) -> None:
        """Let every connection go. Harmless when repeated."""

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[R]]:
        """Move up to ``limit`` due jobs to processing, in the order (priority, run_at, id)."""

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Verdict]:
        """Record how jobs left processing; verdicts in the order of the batch.

        One settlement never sinks another: what the store cannot write of one job is settled as failed, with the
        reason. ``repeat`` says that an earlier call had no reply, so that *no trace* is Unknown and not Lost.
        Raises StoreUnreachable when the outcome of the call is not known; it may be repeated as it is.
        """

    async def next_due(self, tasks: tuple[str, ...] | None) -> float | None:
        """Seconds until the earliest waiting job of these tasks is due (0 if one is); ``None`` if none waits."""

    async def wait(self, timeout: float) -> bool:
        """Return True when there may be new work, False after ``timeout`` seconds. A hint, never the only way."""

    @property
    def hears(self) -> bool:
        """Wake-ups are known to arrive just now (a listening connection has answered), so polls may be rarer."""

    def heart(self) -> Heart:
        """A blocking connection of its own, to be used from one other thread."""


class Heart(Protocol):
    """What keeps leases true while the loop is busy. Blocking; every method raises StoreUnreachable."""

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew them for ``lease`` seconds from now, by the store's clock."""

    def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent: queued, due at once, attempts − 1, nothing else. Gives those that are busy: try again."""

    def abandon(self, token: str) -> bool:
        """Let this token claim nothing more, and give back whatever it holds. False: some of it is busy, try again."""

    def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back jobs whose lease ended more than ``slack`` seconds ago. Called again while it returns any."""

    def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back at once what this worker holds: somebody saw it die."""

    def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one job: the child that ran it died."""

    def maintain(self) -> None:
        """Prune the history and whatever else must stay bounded. Cheap when there is nothing to do."""

    def close(self) -> None:
        """Let the connection go."""


class Producer(Protocol):
    """Enqueueing. Jobs are checked before they come here; a store refuses what its own limits forbid."""

    async def enqueue(self, job: NewJob) -> Job:
        """Commit one job and wake a worker. Raises OutcomeUnknown, SchemaMissing, StoreUnreachable."""

    async def enqueue_many(self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> list[int]:
        """Enqueue any number in one transaction, streamed; their ids in the order given. All of them, or none."""

    def enqueue_in(self, connection: object, job: NewJob) -> object:
        """Enqueue inside the caller's transaction; the job is there when, and only if, the caller commits.

        Gives the ``Job``, or an awaitable of it when the connection is asynchronous.
        """


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list. Live and failed ones, unless a state says otherwise."""

    states: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    key: str | None = None
    after: int = 0
    """Keyset: only ids above this."""
    limit: int = 100


class Done(StrEnum):
    """What an action on a job did."""

    DONE = "done"
    ASKED = "asked"
    """A running job was asked to cancel; its worker hears it at the next beat."""
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    """Not in this state; the answer's ``why`` says what to do instead."""
    MISSING = "missing"


class Answer(msgspec.Struct, frozen=True):
    """What became of one asked-for action."""

    job_id: int | None
    done: Done
    why: str = ""


class Inspector(Protocol):
    """Looking at jobs, and acting on single ones."""

    async def get(self, job_id: int) -> Job | None:
        """Live, or in the history."""

    async def list(self, wanted: JobFilter) -> Sequence[Job]:
        """In id order."""

    async def counts(self) -> dict[State, int]:
        """Live jobs and history by state; every state is a key."""

    async def retry(self, job_id: int) -> Answer:
        """Due now, attempts and resets 0. Refused while processing and when completed."""

    async def cancel(self, job_id: int) -> Answer:
        """At once, or asked of its worker."""

    async def remove(self, job_id: int) -> Answer:
        """Delete. Refused while processing (cancel instead) and when completed."""

    async def remove_key(self, key: str) -> Answer:
        """Delete the job that holds the key; a running one loses it and will not run again."""


class SchemaStatus(msgspec.Struct, frozen=True):
    """How the installed schema compares with this package's."""

    installed: int | None
    """Its number; ``None`` when there is none."""
    expected: int
    breaking: bool = False
    """It is newer, and this package cannot work with it."""


class Schema(Protocol):
    """The store's tables."""

    async def install(self) -> SchemaStatus:
        """Install or upgrade. Safe when many do it at once; resumable."""

    async def status(self) -> SchemaStatus:
        """What is there."""

    async def plan(self) -> str:
        """The statements that ``install`` would run, for reading."""

    async def uninstall(self) -> None:
        """Remove everything of ours."""


class QueueStore(Store[Job], Producer, Inspector, Schema, Protocol):
    """A store we own whole: everything above at once."""

    @property
    def description(self) -> str:
        """Where it is, for people; never with a password."""


DAY = 86_400.0
RESERVED_CONNECTIONS = 4
"""PostgreSQL: what one worker process keeps for itself: claims, settlements, listening, heartbeats."""


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a store of ours is opened. Options that a store has no use for are ignored by it, and the docs say which."""

    schema: str = "stowhand"
    """PostgreSQL: the schema that holds everything of ours."""
    history: float | None = DAY
    """Seconds that completed and canceled jobs are kept; ``None``: completed jobs are deleted at once."""
    pool_size: int = 10
    """PostgreSQL: connections at most, the reserved ones of a worker included."""
    prepared_statements: bool = True
    """PostgreSQL: off for poolers in transaction mode that do not know them."""
    listen_url: str | None = None
    """PostgreSQL: a direct connection for LISTEN when the other one goes through a transaction pooler."""
    synchronous: str = "FULL"
    """SQLite: FULL, or NORMAL (a power failure may lose the last commits; a crash of the process never does)."""
    pinned: Callable[[], datetime] | None = None
    """Tests only: the store's idea of now."""
