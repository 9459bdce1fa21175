"""The protocols between a worker and the place where its jobs are kept. (Those of a queue store: queue_store.py.)

    Store         claim, settle, wait: what a worker's loop needs    (the loop's own connections)
    Heartbeats    beat, release, reset: what keeps leases valid      (a loop in another thread, a connection of its own)

Claims and settlements are batches: throughput comes from there. Every write after a claim is guarded by the *pair*
(id, token); a write whose pair is no longer valid changes nothing and reports it.
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
    """A record under a lease, with the facts that ``lifecycle`` needs to judge its attempt."""

    lease: Lease
    record: R
    task: str
    attempts: int
    """The attempt that this claim began: 1, 2, …"""
    max_attempts: int
    serial: str | None = None
    resets: int = 0
    """How often a worker has died while running it since an attempt was last recorded."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One claim call."""

    worker: str
    token: str
    limit: int
    lease: float
    """Seconds until the store may give the jobs to another worker."""
    tasks: tuple[str, ...] | None = None
    """Only these; ``None``: any. A task that the worker does not have is never claimed."""
    forbidden_flags: tuple[str, ...] = ()
    queues: Queues = ALL_QUEUES
    """Only jobs of these. Stores of records without queues ignore it."""
    suspects: bool = False
    """Only jobs reset twice or more, instead of only the others."""
    conditions: tuple[Any, ...] = ()
    """All of them must hold: ``Where``, ``Sql``, or what the store's driver composes. Stores that take none refuse."""
    own_leases: tuple[Lease, ...] | None = None
    """The leases that the worker renews: if nothing is due, ``Store.foreign`` reports the others. ``None``: no need."""


class Verdict(StrEnum):
    """Result of one settlement."""

    SETTLED = "settled"
    ALREADY_SETTLED = "already settled"
    """A repeat of a settlement whose reply was lost. As good as settled."""
    LOST = "lost"
    """The lease is no longer valid; nothing was changed."""
    BUSY = "busy"
    """Another open transaction locks the row; the lease is valid. Try this one again."""
    UNKNOWN = "unknown"
    """A repeat after a cut connection found no trace of the first call. Counted; never reported as a success."""
    UNWRITTEN = "unwritten"
    """The store refuses to write it; nothing was changed. Stores reply with ``RefusedSettlement``, with the reason."""


class RefusedSettlement(msgspec.Struct, frozen=True):
    """The database refuses to write this settlement (a CHECK, a trigger, a value that it cannot hold).

    Nothing was changed, and the lease is still valid. The worker decides what is settled instead: stores never decide.
    """

    reason: str


Reply = Verdict | Settlement | RefusedSettlement
"""A store's answer to one settlement. A ``Settlement`` is what the store recorded instead of the requested one."""


class RecordedSettlement(msgspec.Struct, frozen=True):
    """The settlement that a store has recorded, with its verdict.

    Events, metrics, throughput, the audit and HTTP replies report a settlement from this alone. It may differ from what
    was sent.
    """

    verdict: Verdict
    settlement: Settlement | None = None
    """As recorded; its ``then`` are the jobs that were enqueued with it. ``None``: nothing was recorded."""
    reason: str = ""
    """The reason, if the store refused to write the settlement."""

    @classmethod
    def of(cls, sent: Settlement, reply: Reply) -> RecordedSettlement:
        """The meaning of a store's reply."""
        match reply:
            case Settlement():
                return cls(Verdict.SETTLED, reply)
            case RefusedSettlement(why):
                return cls(Verdict.UNWRITTEN, reason=why)
            case Verdict.SETTLED | Verdict.ALREADY_SETTLED:
                return cls(reply, sent)
            case _:
                return cls(reply)


class Pulse(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: pairs (job id, token), never ids alone. A pair that is in no set was renewed."""

    lost: frozenset[Pair] = frozenset()
    canceled: frozenset[Pair] = frozenset()
    """Renewed; its cancellation was requested."""
    busy: frozenset[Pair] = frozenset()
    """Valid, but locked by another open transaction: not renewed."""
    refused: frozenset[Pair] = frozenset()
    """Valid, but the database refuses to renew it: left to its lease (``Heartbeats.refused`` says why)."""


class RefusedChange(msgspec.Struct, frozen=True):
    """The database refuses to change one job; the others of the call are not affected."""

    job_id: JobId
    operation: str
    """beat, release, reset."""
    reason: str


class Foreign(msgspec.Struct, frozen=True):
    """The state of *foreign* leases: those that the calling worker does not renew, including its own orphans."""

    has_expired: bool = False
    """At least one expired more than the slack ago, so there is a job to reset."""
    expires_in: float | None = None
    """Seconds until the next one has been expired for the slack; ``None``: there is no other lease."""
    none_expired: bool = False
    """In the answer of a claim: none is late, so the heartbeats need not look. Unset, it does not say."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Options that a store prescribes to all of its workers."""

    lease: float
    """Seconds until the store may give a job to another worker; the worker's ``lease`` is not used."""
    heartbeat_interval: float | None = None
    """The default; the worker's own option takes precedence."""
    cancel_interval: float | None = None
    """Seconds after which a running handler hears of a cancellation, at most: heartbeats are never rarer than that."""
    backoff: AnyBackoff | None = None
    """The default; the handler's policy takes precedence."""
    polls: bool = False
    """The store sends no wake-ups by design: it is polled, and nothing is reported about it."""


PART_OPERATIONS = {
    "jobs": "enqueueing jobs, and looking at one",
    "transactions": "enqueueing inside a transaction of yours",
    "inspect": "looking at jobs",
    "admin": "acting on jobs",
    "operate": "pausing and purging",
    "timetable": "scheduling recurring jobs (a crontab)",
    "schema": "installing and examining a schema",
    "settings": "a default for jobs that SQL enqueues",
    "connections": "lending a connection",
    "flows": "working on a flow",
    "notices": "reporting what it hears",
    "results": "waiting for the end of a job",
}
"""By part, which a store may offer beyond what a worker needs (queue_store.py): what is asked for."""
PART_NAMES = tuple(PART_OPERATIONS)


class SettleAndClaim(Protocol):
    """Settling that claims in the same transaction."""

    async def __call__(
        self, batch: Sequence[tuple[Lease, Settlement]], request: ClaimRequest
    ) -> tuple[Sequence[Reply], Sequence[Claim[Any]]]:
        """Settle as ``Store.settle`` does, and claim the next job of each serial key that this call frees.

        The claim uses the request's token. Nothing is claimed for a serial key that is paused or whose holder this call
        did not settle, or while a more urgent job is due. A claim that cannot be written leaves the settlements as they
        are. Raises StoreUnreachable when the outcome is unknown: the caller abandons the token, then repeats
        ``Store.settle``.
        """


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Capabilities that a store declares. They never change."""

    rations: bool = False
    """A claim may return fewer jobs than its limit though more are due."""
    lent: bool = False
    """The jobs are on a server, which also owns the schema and schedules cron items."""
    table: str | None = None
    """The table whose records these are; ``None``: they are jobs."""
    has_queues: bool = False
    """Each record is in a queue (``jobs/queues.py``), and a claim of some queues takes no other."""
    settle_and_claim: SettleAndClaim | None = None
    """Passes a serial key from one job to its next without a claim of its own; ``None``: each is claimed."""
    absent: Mapping[str, str] = {}
    """By each part (queue_store.py) that is ``None``: why, and what to do instead."""

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
        """Record how jobs left processing; replies in the order of the batch.

        One settlement never fails another: for a job that the store cannot write, the reply is ``RefusedSettlement``
        with the reason. Only the row knows that its cancellation was requested or that its key is gone: then the reply
        is the settlement that was written instead. ``repeat``: an earlier call had no reply, so *no trace* means
        UNKNOWN and not LOST.
        Raises StoreUnreachable when the outcome of the call is not known; the same call may be repeated.
        """

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        """Seconds until the earliest waiting job of these tasks and queues is due (0 if one is), or any job expires,
        for a claim to cancel it; ``None`` if there is neither."""

    def foreign(self) -> Foreign | None:
        """The foreign leases seen when a claim with ``own_leases`` found nothing and ``next_due`` was called after it.

        Each answer is returned once; ``None`` where there is none, or where the store leaves this to its
        ``Heartbeats``. Counted with ``lifecycle.slack``; ``late`` is never set: leases that are past would hurry every
        idle worker in vain.
        """

    async def wait(self, timeout: float) -> bool:
        """Return True when there may be new work, False after ``timeout`` seconds. A hint: workers poll besides."""

    @property
    def is_listening(self) -> bool:
        """Wake-ups are known to arrive at present (a listening connection has answered), so polls may be rarer."""

    def heartbeats(self) -> Heartbeats:
        """Return heartbeats with a connection of their own, which the first call opens on the calling loop."""


class Heartbeats(Protocol):
    """Calls that keep leases valid while the worker's loop is busy. They run on another loop, in a thread of its own.

    One call at a time, each bounded; it may block that thread. Every method raises StoreUnreachable, and is harmless
    when it was cancelled or its reply was lost, and when it is repeated.
    """

    async def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        """Renew these leases for ``lease`` seconds from now, by the store's clock."""

    async def release(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Hand back unspent: queued, due at once, attempts − 1, nothing else. Returns the busy ones: try again."""

    async def abandon(self, token: str) -> bool:
        """Let this token claim nothing more, and hand back its jobs. False: some of them are busy, try again."""

    async def foreign(self, own_leases: Sequence[Lease], slack: float) -> Foreign | None:
        """Find leases other than ``own_leases``; one query if none. ``None``: only ``reset_stalled`` can find them."""

    async def reset_stalled(self, slack: float) -> Sequence[ResetJob]:
        """Take back jobs whose lease ended more than ``slack`` seconds ago. Called again as long as it returns any."""

    async def reset_worker(self, worker: str) -> Sequence[ResetJob]:
        """Take back at once all jobs of this worker: its supervisor saw it die."""

    async def reset_lease(self, lease: Lease) -> Sequence[ResetJob]:
        """Take back this one job: the child that ran it died."""

    def refused(self) -> Sequence[RefusedChange]:
        """Return the changes that the database refused since the last call. Each job appears once per kind of call."""

    async def check(self) -> None:
        """Raise SchemaTooNew if the schema has been upgraded beyond what this version supports."""

    async def check_writable(self) -> None:
        """Raises StoreUnreachable where nothing can be written at present, as far as that can be seen without a change
        or a round trip: a full disk below a file."""

    async def maintain(self) -> None:
        """Prune the history and all else that must stay bounded. Cheap when there is nothing to do."""

    async def close(self) -> None:
        """Close the connection, on the loop of the calls. Nothing to do where none was made."""


@runtime_checkable
class CancellationFinder(Protocol):
    """Heartbeats that can look for cancellations between two beats. Raises StoreUnreachable.

    A worker asks after a wake-up while it runs jobs. The call must write nothing: on SQLite a write wakes every worker.
    """

    async def find_canceled(self, leases: Sequence[Lease]) -> frozenset[Pair]:
        """Return the given leases that are valid and whose jobs have a cancel request."""


def check_arguments(store: object, options: object, kind: type[msgspec.Struct]) -> None:
    """Check the arguments of a worker or a resetter. Raises ConfigurationError."""
    if isinstance(store, type) or not callable(getattr(store, "claim", None)):
        raise ConfigurationError(
            f"store: {reprlib.repr(store)} given; give a store: open_store(url), or a TableStore(url, TableOptions(…))"
        )
    check_store(store, Store, "store")
    if options is not None and not isinstance(options, kind):
        raise ConfigurationError(f"options: {a_type(options)} given; give {kind.__qualname__}(…)")


def check_store(store: object, protocol: type, option: str) -> None:
    """Check a store of a user's. Raises ConfigurationError with all that the protocol has and the store has not."""
    # A property is looked for and not read: it may raise before the store is open.
    absent = [name for name in public_members(protocol) if not (hasattr(type(store), name) or hasattr(store, name))]
    if absent:
        raise ConfigurationError(
            f"{option}: {type(store).__qualname__} has no {', '.join(absent)}; a store of your own has every member of"
            " stowhand.stores.api.Store, and for an App each part of a queue: see the CHANGELOG,"
            ' "a store\'s calls are in parts"'
        )


def heartbeats_of(store: Store[Any]) -> Heartbeats:
    """The store's heartbeats. Raises ConfigurationError where a method is missing, or blocking instead of ``async``."""
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
    """The public methods and properties of a protocol and of those that it extends, by name."""
    return {name: member for one in reversed(protocol.__mro__) for name, member in vars(one).items() if name[0] != "_"}


SECONDS_PER_DAY = 86_400.0
RESERVED_CONNECTIONS = 5
"""PostgreSQL: connections that one worker process reserves: claims, settlements, listening, heartbeats, and one for
enqueueing and inspection, which is the pool's own."""
DEFAULT_POOL_SIZE = 10
"""PostgreSQL: connections of a process at most, by default, unless a worker needs more."""


def pool_refusal(option: str, size: int) -> str | None:
    """Return why a worker cannot work with ``size`` connections, or None. ``option``: the setting, as written."""
    least = RESERVED_CONNECTIONS + 1
    if size >= least:
        return None
    return (
        f"{option}: a worker keeps {RESERVED_CONNECTIONS} connections for claiming, settling, listening, heartbeats and"
        f" enqueueing, and tasks need at least 1: {RESERVED_CONNECTIONS} + 1 = {least}; give {least} or more"
    )


def pool_shortage(option: str, size: int, slots: int) -> str | None:
    """The warning for a worker whose tasks have fewer connections than it has slots; ``None``: there are enough."""
    left, most = size - RESERVED_CONNECTIONS, slots + RESERVED_CONNECTIONS
    if left >= slots:
        return None
    return (
        f"{option}: {slots} jobs at once and {RESERVED_CONNECTIONS} connections that the worker keeps for itself are"
        f" {slots} + {RESERVED_CONNECTIONS} = {most}, so tasks have {left} for {slots} jobs. One that finds none free"
        f" waits, 5 minutes at most, and then goes back unspent; give {most} or more, or leave it out"
    )


def whole(job: NewJob, max_attempts: int | None) -> NewJob:
    """The job with ``max_attempts``, unless it has a number of its own; ``None``: the schema decides."""
    if max_attempts is None:
        return job
    if job.on_failure is not None:
        job = msgspec.structs.replace(job, on_failure=whole(job.on_failure, max_attempts))
    return job if job.max_attempts is not None else msgspec.structs.replace(job, max_attempts=max_attempts)


def batch_with_max_attempts(
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


def check_schema_name(text: str) -> str:
    """A name that PostgreSQL keeps whole: it cuts names at 63 bytes without a word. Raises ValueError."""
    if not text or "\x00" in text or len(text.encode()) > 63:
        raise ValueError(f"{text!r} is no schema name; 1 to 63 bytes")
    return text


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """How a queue store is opened. A store ignores the options that it has no use for; the docs say which."""

    token: Annotated[
        str | None,
        Text(
            "A lent store (https://…): the worker token that 'stowhand tokens make' showed. Better in the environment:"
            " other users of the machine see a command line.",
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
        Switch(
            "A lent store: send the token over http:// to another machine, readable to anyone on the way.", on="store"
        ),
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
            "PostgreSQL: for poolers that do not know prepared statements.",
            called="no_prepared_statements",
            negated=True,
            on="store",
        ),
    ] = True
    pool: Annotated[
        object | None,
        Option(
            "PostgreSQL: a `psycopg_pool.AsyncConnectionPool` of the application; enqueueing, inspection and tasks' own"
            " statements borrow from it. The connections that a worker reserves are made as the pool makes its own.",
            on="python",
        ),
    ] = None
    pool_size: Annotated[
        int | None,
        IntegerOption(
            "PostgreSQL: connections of one process at most, opened as they are needed,"
            f" the {RESERVED_CONNECTIONS} that a worker keeps for itself included: with a worker"
            f" {RESERVED_CONNECTIONS + 1} or more.",
            unset=f"--concurrency + {RESERVED_CONNECTIONS}",
            called="max_pool_size",
            short=("-m",),
            most=20_000,
        ),
    ] = None
    """``None``: 10, and more where a worker's slots and the reserved ones are more."""
    listen_url: Annotated[
        str | None,
        Text(
            "PostgreSQL: a direct connection for LISTEN, when the other goes through a transaction pooler.",
            metavar="URL",
        ),
    ] = None
    max_attempts: Annotated[
        int | None,
        IntegerOption(
            "How often a job is tried, where neither its enqueuer nor its task says.",
            unset="the schema's own, or 25",
            most=MAX_INT32,
            on="settings",
        ),
    ] = None
    history: Annotated[
        float | None,
        Seconds(
            "How long completed and canceled jobs are kept; none: not at all.",
            least=0,
            typed_least=1,
            metavar="DURATION",
            none="none",
        ),
    ] = SECONDS_PER_DAY
    failed_retention: Annotated[
        float | None,
        Seconds(
            "How long failed jobs are kept; handled: until they are retried or removed.",
            least=0,
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
        bool, Switch("For those who look: whatever is asked of the store, the database refuses to write.", on="python")
    ] = False
    read_timeout: Annotated[
        float, Seconds("With `read_only`: a question that takes longer raises `StoreTooSlow`.", on="python")
    ] = 5.0
    pinned: Callable[[], datetime] | None = None
    """Tests only: the store's idea of now."""

    def __post_init__(self) -> None:
        if problems := read_fields(self):
            raise ConfigurationError("; ".join(problems))

    def whole(self, job: NewJob) -> NewJob:
        """The job as it is made through this store: ``max_attempts``, if it has none, is the store's."""
        return whole(job, self.max_attempts)

    def __repr__(self) -> str:
        # Errors and debuggers print options; a token is a secret, and a URL may hold a password.
        option = {name: getattr(self, name) for name in self.__struct_fields__}
        secret = {name: "***" for name in ("token", "listen_url") if option[name] is not None}
        return f"StoreOptions({', '.join(f'{name}={value!r}' for name, value in (option | secret).items())})"
