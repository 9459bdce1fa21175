"""The protocols between a worker and the store of its jobs. (Those of a queue store are in queue_store.py.)

    Store         claim, settle, wait: the calls of a worker's loop         (on the loop's own connections)
    Heartbeats    beat, release, reset: the calls that keep leases valid    (in another thread, on its own connection)

Claims and settlements are batches, for throughput. Every write after a claim is guarded by the *pair* (id, token). A
write whose pair is no longer valid changes nothing and reports it.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from stowhand.errors import ConfigurationError, a_type
from stowhand.jobs.fields import MAX_INT32
from stowhand.jobs.job import NewJob
from stowhand.jobs.lease import JobId, Lease, Pair, ResetJob
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.option_struct import SuggestingMeta
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.options import IntegerOption, Option, Seconds, Switch, Text, read_fields
from stowhand.retry import AnyBackoff

if TYPE_CHECKING:
    from stowhand.protocols.handler import EnclosingStore

R = TypeVar("R")


class Claim(msgspec.Struct, Generic[R], frozen=True):
    """A record under a lease, with the values that ``lifecycle`` needs to settle its attempt."""

    lease: Lease
    record: R
    task: str
    attempts: int
    """The number of the attempt that this claim started: 1, 2, …"""
    max_attempts: int
    serial: str | None = None
    resets: int = 0
    """How often a worker was lost while running the record, since the last recorded attempt."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One claim call."""

    worker: str
    token: str
    limit: int
    lease: float
    """Seconds until the store may give the jobs to another worker."""
    tasks: tuple[str, ...] | None = None
    """Claim only jobs of these tasks; ``None``: of any."""
    forbidden_flags: tuple[str, ...] = ()
    queues: Queues = ALL_QUEUES
    """Claim only jobs of these queues. Stores of records without queues ignore it."""
    suspects: bool = False
    """True: claim only suspects (jobs with two or more resets). False: claim only other jobs."""
    conditions: tuple[Any, ...] = ()
    """Conditions that all must hold: ``Where``, ``Sql``, or expressions of the store's driver. A store that supports
    none raises ConfigurationError."""
    free_slots: int | None = None
    """Number of jobs that the worker starts at once, of ``limit``; the others are claimed ahead. ``None``: all. Jobs
    with a rate are claimed only for free slots."""
    task_rooms: Mapping[str, int] = {}
    """For tasks with a limit in each worker: the number of jobs that this worker may still claim."""
    own_leases: tuple[Lease, ...] | None = None
    """The leases that the worker renews. If no job is due, ``Store.foreign`` reports others. ``None``: no report."""


class Verdict(StrEnum):
    """Result of one settlement."""

    SETTLED = "settled"
    ALREADY_SETTLED = "already settled"
    """An earlier call, whose reply was lost, has recorded this settlement. Equivalent to settled."""
    LOST = "lost"
    """The lease is no longer valid; nothing was changed."""
    BUSY = "busy"
    """Another open transaction locks the row; the lease is valid. The caller must retry this settlement."""
    UNKNOWN = "unknown"
    """A repeated call found no trace of the first one, whose reply was lost. Counted; never reported as a success."""
    UNWRITTEN = "unwritten"
    """The store refused the settlement; nothing was changed. Stores reply with ``RefusedSettlement`` and the reason."""


class RefusedSettlement(msgspec.Struct, frozen=True):
    """The database refuses to write this settlement (a CHECK, a trigger, a value that it cannot store).

    Nothing was changed, and the lease is still valid. The worker, not the store, decides what is settled instead.
    """

    reason: str


Reply = Verdict | Settlement | RefusedSettlement
"""A store's reply to one settlement. A ``Settlement`` is the one that the store has recorded instead."""


class RecordedSettlement(msgspec.Struct, frozen=True):
    """The settlement that a store has recorded, with its verdict.

    Events, metrics, throughput, the audit and HTTP replies use only this value. It may differ from the settlement that
    was sent.
    """

    verdict: Verdict
    settlement: Settlement | None = None
    """The recorded settlement, with the jobs that were enqueued with it (``then``). ``None``: nothing was recorded."""
    reason: str = ""
    """The reason, if the store refused to write the settlement."""

    @classmethod
    def of(cls, sent: Settlement, reply: Reply) -> RecordedSettlement:
        """Return the settlement that a store's reply reports."""
        match reply:
            case Settlement():
                return cls(Verdict.SETTLED, reply)
            case RefusedSettlement(reason):
                return cls(Verdict.UNWRITTEN, reason=reason)
            case Verdict.SETTLED | Verdict.ALREADY_SETTLED:
                return cls(reply, sent)
            case _:
                return cls(reply)


class Pulse(msgspec.Struct, frozen=True):
    """The reply to a heartbeat: pairs (job id, token), never ids alone. A pair that is in no set was renewed."""

    lost: frozenset[Pair] = frozenset()
    canceled: frozenset[Pair] = frozenset()
    """Renewed leases of jobs with a cancellation request."""
    busy: frozenset[Pair] = frozenset()
    """Valid leases that were not renewed, because another open transaction locks their rows."""
    refused: frozenset[Pair] = frozenset()
    """Valid leases that the database refuses to renew, so they will expire (``Heartbeats.refused`` has the reasons)."""


class RefusedChange(msgspec.Struct, frozen=True):
    """The database refuses to change one job; the other jobs of the call are not affected."""

    job_id: JobId
    operation: str
    """``beat``, ``release`` or ``reset``; for a table also ``cancel``."""
    reason: str


class Foreign(msgspec.Struct, frozen=True):
    """The state of *foreign* leases: all that the calling worker does not renew, even if they have its name."""

    has_expired: bool = False
    """Whether a lease has been expired for longer than the slack, so that there is a job to reset."""
    expires_in: float | None = None
    """Seconds until the next lease has been expired for the slack; ``None`` without another lease."""
    none_expired: bool = False
    """In the reply of a claim: no lease has expired, so the heartbeats need not check. False: not known."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Options that a store prescribes to all of its workers."""

    lease: float
    """Seconds until the store may give a job to another worker; the worker's ``lease`` is not used."""
    heartbeat_interval: float | None = None
    """The default; the worker's own option takes precedence."""
    cancel_interval: float | None = None
    """Maximum seconds until a running handler is notified of a cancellation. Heartbeats are at least as frequent."""
    backoff: AnyBackoff | None = None
    """The default; the handler's policy takes precedence."""
    polls: bool = False
    """True if the store sends no wake-ups by design, so that workers poll it without a report."""


PART_OPERATIONS = {
    "jobs": "enqueueing jobs, and reading one",
    "transactions": "enqueueing inside a transaction of yours",
    "inspect": "reading jobs",
    "admin": "acting on jobs",
    "operate": "pausing, changing limits and purging",
    "timetable": "scheduling recurring jobs (a crontab)",
    "schema": "installing and checking a schema",
    "settings": "a default for jobs that SQL enqueues",
    "connections": "lending a connection",
    "flows": "working on a flow",
    "notices": "reporting notifications and warnings",
    "results": "waiting for the end of a job",
    "workflows": "recording the steps of a workflow",
}
"""The operation that needs each part (queue_store.py), for messages about an absent part."""
PART_NAMES = tuple(PART_OPERATIONS)


class SettleAndClaim(Protocol):
    """Function that settles and claims in the same transaction."""

    async def __call__(
        self, batch: Sequence[tuple[Lease, Settlement]], request: ClaimRequest
    ) -> tuple[Sequence[Reply], Sequence[Claim[Any]]]:
        """Settle as ``Store.settle`` does, and claim the next job of each serial key that this call frees.

        The claim uses the request's token. Nothing is claimed for a serial key that is paused or whose running job this
        call did not settle, or while a more urgent job is due. If the claim cannot be written, the settlements are
        recorded nevertheless. Raises StoreUnreachable when the outcome is unknown: the caller abandons the token, then
        repeats ``Store.settle``.
        """


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Capabilities that a store declares. They never change."""

    rations: bool = False
    """Whether a claim may return fewer jobs than its limit although more are due."""
    lent: bool = False
    """Whether the jobs are on a server, which also owns the schema and schedules recurring jobs."""
    table: str | None = None
    """The name of a user's table, if the store is one; ``None``: a store of jobs."""
    has_queues: bool = False
    """Whether each record is in a queue (``jobs/queues.py``), by which claims can choose."""
    settle_and_claim: SettleAndClaim | None = None
    """Settles jobs, and claims the next jobs of their serial keys in the same call; ``None`` if it cannot."""
    absent: Mapping[str, str] = {}
    """By name of each part (queue_store.py) that is ``None``, the reason, and what to do instead."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "absent", MappingProxyType(dict(self.absent)))


class Store(Protocol[R]):
    """A store of jobs, from which workers claim and in which they record settlements."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the store."""

    @property
    def terms(self) -> Terms | None:
        """Options that the store prescribes to its workers, if any. They may be known only after the store is open."""

    @property
    def enclosing(self) -> EnclosingStore | None:
        """The part that prepares each attempt; ``None`` if the store has none."""

    async def open(self) -> None:
        """Connect and check the schema. Raises StoreUnreachable, SchemaError."""

    async def close(self) -> None:
        """Close every connection. May be repeated."""

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[R]]:
        """Move up to ``limit`` due jobs to processing, in the order (priority, run_at, id)."""

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        """Record the outcomes of attempts. Return the replies in the order of the batch.

        A settlement never fails because of another: for a job that the store cannot write, the reply is
        ``RefusedSettlement`` with the reason. If the row has a cancellation request or has lost its key, the store may
        record another settlement, which is then the reply.

        Args:
            batch: Leases and their settlements.
            repeat: An earlier call had no reply, so a job without a trace is UNKNOWN, not LOST.

        Raises:
            StoreUnreachable: The outcome of the call is not known. The same call may be repeated.

        """

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        """Return the seconds until the earliest waiting job of these tasks and queues is due; 0 if one is due.

        The expiry of any job counts too, because a claim cancels expired jobs. ``None`` without any such job.
        """

    def foreign(self) -> Foreign | None:
        """Return the foreign leases that ``next_due`` read after a claim with ``own_leases`` had found nothing.

        Each answer is returned once; ``None`` without an answer, or if the store leaves this to its ``Heartbeats``.
        Leases expire after ``lifecycle.slack``. ``has_expired`` is never set: every idle worker would check at once.
        """

    async def wait(self, timeout: float) -> bool:
        """Return True when there may be new work, False after ``timeout`` seconds. A hint: workers also poll."""

    @property
    def is_listening(self) -> bool:
        """Whether wake-ups are known to arrive (a listening connection has answered), so that polls may be rarer."""

    def heartbeats(self) -> Heartbeats:
        """Return heartbeats with their own connection, which the first call opens on the calling loop."""


class Heartbeats(Protocol):
    """Calls that keep leases valid while the worker's loop is busy. They run on another loop in their own thread.

    There is one call at a time, each with a time limit; it may block its thread. Every method raises StoreUnreachable.
    Repeated and cancelled calls, and calls whose reply was lost, do no harm.
    """

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew these leases for ``lease`` seconds from now, by the store's clock."""

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Return jobs to the queue without using an attempt: queued, due at once, attempts − 1.

        Returns the leases of jobs that other transactions lock. The caller must release these again.
        """

    async def abandon(self, token: str) -> bool:
        """Let this token claim nothing more, and release its jobs. False: some are locked, so repeat the call."""

    async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
        """Return the state of leases other than ``own_leases``. ``None``: only ``reset_stalled`` can find them."""

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Reset jobs whose lease expired more than ``slack`` seconds ago. Called again until it returns none."""

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Reset all jobs of this worker at once, because its supervisor has found it dead."""

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Reset this job, because the child process that ran it has died."""

    def refused(self) -> Sequence[RefusedChange]:
        """Return the changes that the database refused since the last call. Each job appears once per kind of call."""

    async def check(self) -> None:
        """Raise SchemaTooNew if the schema has been upgraded beyond what this version supports."""

    async def check_writable(self) -> None:
        """Raise StoreUnreachable if the store cannot be written now, such as a file on a full disk.

        It makes neither a change nor a round trip.
        """

    async def maintain(self) -> None:
        """Prune the history and other data of limited size. Cheap when there is nothing to prune."""

    async def close(self) -> None:
        """Close the connection, if there is one, on the loop of the calls."""


@runtime_checkable
class CancellationFinder(Protocol):
    """Heartbeats that can find cancellation requests between two beats. Raises StoreUnreachable.

    A worker calls this after a wake-up while it runs jobs. It must not write: in SQLite a write wakes every worker.
    """

    async def find_canceled(self, leases: Sequence[Lease]) -> frozenset[Pair]:
        """Return those of the leases that are valid and whose jobs have a cancellation request."""


def check_arguments(store: object, options: object, kind: type[msgspec.Struct]) -> None:
    """Check the arguments of a worker or a resetter. Raises ConfigurationError."""
    if isinstance(store, type) or not callable(getattr(store, "claim", None)):
        raise ConfigurationError(
            f"store: got {reprlib.repr(store)}; use a store: open_store(url), or a TableStore(url, TableOptions(…))"
        )
    check_store(store, Store, "store")
    if options is not None and not isinstance(options, kind):
        raise ConfigurationError(f"options: got {a_type(options)}; use {kind.__qualname__}(…)")


def check_store(store: object, protocol: type, option: str) -> None:
    """Raise ConfigurationError if a user's store lacks members of the protocol."""
    # Do not read properties: they may raise before the store is open.
    absent = [name for name in public_members(protocol) if not (hasattr(type(store), name) or hasattr(store, name))]
    if absent:
        raise ConfigurationError(
            f"{option}: {type(store).__qualname__} has no {', '.join(absent)}; a store of your own has every member of"
            " stowhand.stores.api.Store, and for an App each part of a queue: see the CHANGELOG,"
            ' "a store\'s calls are in parts"'
        )


def heartbeats_of(store: Store[Any]) -> Heartbeats:
    """Return the store's heartbeats. Raises ConfigurationError if a method is missing, or not ``async`` as required."""
    heartbeats = store.heartbeats()
    for name, expected in public_members(Heartbeats).items():
        method = getattr(heartbeats, name, None)
        is_async = inspect.iscoroutinefunction(expected)
        if not (inspect.iscoroutinefunction(method) if is_async else callable(method)):
            written = f"async def {name}(…)" if is_async else f"def {name}(…)"
            raise ConfigurationError(
                f"store: the heartbeats of {type(store).__qualname__} have no method '{written}'; every one of"
                " stowhand.stores.api.Heartbeats is needed"
            )
    return heartbeats


def public_members(protocol: type) -> dict[str, Any]:
    """Return the public methods and properties of a protocol and of its bases, by name."""
    return {
        name: member for base in reversed(protocol.__mro__) for name, member in vars(base).items() if name[0] != "_"
    }


SECONDS_PER_DAY = 86_400.0
RESERVED_CONNECTIONS = 5
"""PostgreSQL: connections that one worker process reserves for claims, settlements, listening and heartbeats, and one
of the pool for enqueueing and inspection."""
DEFAULT_POOL_SIZE = 10
"""PostgreSQL: default of the maximum number of connections of a process, unless a worker needs more."""


def pool_refusal(option: str, size: int) -> str | None:
    """Return why a worker cannot work with ``size`` connections; ``None`` if it can. ``option``: the setting's name."""
    least = RESERVED_CONNECTIONS + 1
    if size >= least:
        return None
    return (
        f"{option}: a worker keeps {RESERVED_CONNECTIONS} connections for claiming, settling, listening, heartbeats and"
        f" enqueueing, and tasks need at least 1: {RESERVED_CONNECTIONS} + 1 = {least}; use {least} or more"
    )


def pool_shortage(option: str, size: int, slots: int) -> str | None:
    """Return the warning for a worker with fewer connections for tasks than slots; ``None`` if there are enough."""
    task_connections, needed = size - RESERVED_CONNECTIONS, slots + RESERVED_CONNECTIONS
    if task_connections >= slots:
        return None
    return (
        f"{option}: {slots} jobs at once and {RESERVED_CONNECTIONS} connections that the worker reserves are"
        f" {slots} + {RESERVED_CONNECTIONS} = {needed}, so tasks have {task_connections} for {slots} jobs. A job that"
        " finds none free waits for at most 5 minutes and is then returned to the queue (attempt not counted);"
        f" use {needed} or more, or leave it out"
    )


def with_max_attempts(job: NewJob, max_attempts: int | None) -> NewJob:
    """Return the job with this ``max_attempts`` unless it has its own; ``None``: the schema decides."""
    if max_attempts is None:
        return job
    if job.on_failure is not None:
        job = msgspec.structs.replace(job, on_failure=with_max_attempts(job.on_failure, max_attempts))
    return job if job.max_attempts is not None else msgspec.structs.replace(job, max_attempts=max_attempts)


def batch_with_max_attempts(
    batch: Sequence[tuple[Lease, Settlement]], max_attempts: int | None
) -> Sequence[tuple[Lease, Settlement]]:
    """Return the batch with this ``max_attempts`` in the jobs that settlements enqueue, as by ``with_max_attempts``."""
    if max_attempts is None:
        return batch
    return [(lease, _with_max_attempts(settlement, max_attempts)) for lease, settlement in batch]


def _with_max_attempts(settlement: Settlement, max_attempts: int) -> Settlement:
    if settlement.then:
        then = tuple(with_max_attempts(job, max_attempts) for job in settlement.then)
        settlement = msgspec.structs.replace(settlement, then=then)
    if settlement.wait is not None and settlement.wait.children:
        children = tuple(with_max_attempts(job, max_attempts) for job in settlement.wait.children)
        wait = msgspec.structs.replace(settlement.wait, children=children)
        settlement = msgspec.structs.replace(settlement, wait=wait)
    return settlement


def check_schema_name(text: str) -> str:
    """Return the name if PostgreSQL does not truncate it: it silently truncates at 63 bytes. Raises ValueError."""
    if not text or "\x00" in text or len(text.encode()) > 63:
        raise ValueError(f"{text!r} is not a schema name; use 1 to 63 bytes")
    return text


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Options of a queue store. A store ignores options that it does not use; the docs list them."""

    token: Annotated[
        str | None,
        Text(
            "A lent store (https://…): the worker token that 'stowhand tokens make' printed. Prefer the environment:"
            " other users of the machine can see a command line.",
            metavar="TOKEN",
            on="store",
        ),
    ] = None
    ca_file: Annotated[
        str | None,
        Text("A lent store: certificates (PEM) to trust instead of the public ones.", metavar="FILE", on="store"),
    ] = None
    insecure: Annotated[
        bool,
        Switch("A lent store: send the token over http:// to another machine, where others can read it.", on="store"),
    ] = False
    schema: Annotated[
        str,
        Text(
            "PostgreSQL: the schema that holds the queue.",
            short=("-s",),
            metavar="NAME",
            check=check_schema_name,
            on="store",
        ),
    ] = "stowhand"
    prepared_statements: Annotated[
        bool,
        Switch(
            "PostgreSQL: for poolers that do not support prepared statements.",
            called="no_prepared_statements",
            negated=True,
            on="store",
        ),
    ] = True
    pool: Annotated[
        object | None,
        Option(
            "PostgreSQL: a `psycopg_pool.AsyncConnectionPool` of the application; enqueueing, inspection and tasks' own"
            " statements borrow from it. The connections that a worker reserves are opened with the pool's settings.",
            on="python",
        ),
    ] = None
    pool_size: Annotated[
        int | None,
        IntegerOption(
            "PostgreSQL: maximum number of connections of one process, opened as needed. It includes the"
            f" {RESERVED_CONNECTIONS} that a worker reserves, so a worker needs {RESERVED_CONNECTIONS + 1} or more.",
            unset=f"--concurrency + {RESERVED_CONNECTIONS}",
            called="max_pool_size",
            short=("-m",),
            maximum=20_000,
        ),
    ] = None
    """``None``: 10, or the sum of a worker's slots and reserved connections if that is more."""
    listen_url: Annotated[
        str | None,
        Text(
            "PostgreSQL: a direct connection for LISTEN, if the other one uses a transaction pooler.",
            metavar="URL",
        ),
    ] = None
    max_attempts: Annotated[
        int | None,
        IntegerOption(
            "Number of attempts of a job, unless its enqueuer or its task sets it.",
            unset="the schema's own, or 25",
            maximum=MAX_INT32,
            on="settings",
        ),
    ] = None
    history: Annotated[
        float | None,
        Seconds(
            "Time for which completed and canceled jobs are kept; none: not at all.",
            minimum=0,
            typed_least=1,
            metavar="DURATION",
            none="none",
        ),
    ] = SECONDS_PER_DAY
    failed_retention: Annotated[
        float | None,
        Seconds(
            "Time for which failed jobs are kept; handled: until they are retried or removed.",
            minimum=0,
            typed_least=1,
            metavar="DURATION",
            none="handled",
        ),
    ] = None
    synchronous: Annotated[
        str,
        Text(
            "SQLite: FULL, or NORMAL (a power failure may lose the last commits).",
            metavar="WORD",
            words=("FULL", "NORMAL"),
        ),
    ] = "FULL"
    read_only: Annotated[
        bool, Switch("Open the store for reading only: the database refuses every write.", on="python")
    ] = False
    read_timeout: Annotated[
        float, Seconds("With `read_only`: the limit of one read. A longer one raises `StoreTooSlow`.", on="python")
    ] = 5.0
    pinned: Callable[[], datetime] | None = None
    """For tests only: the store's clock."""

    def __post_init__(self) -> None:
        if problems := read_fields(self):
            raise ConfigurationError("; ".join(problems))

    def with_max_attempts(self, job: NewJob) -> NewJob:
        """Return the job with the store's ``max_attempts``, unless it has its own."""
        return with_max_attempts(job, self.max_attempts)

    def __repr__(self) -> str:
        # Errors and debuggers print options; a token is a secret, and a URL may hold a password.
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        secrets = {name: "***" for name in ("token", "listen_url") if values[name] is not None}
        return f"StoreOptions({', '.join(f'{name}={value!r}' for name, value in (values | secrets).items())})"
