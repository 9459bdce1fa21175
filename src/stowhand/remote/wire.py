"""The messages of the HTTP store, in both directions: JSON over HTTP/1.1, ``Authorization: Bearer <token>``.

The calls are the table ``VERBS``, at the end. Beside them: ``GET /healthz``, ``/readyz`` and ``/metrics``.

Errors are an ``ErrorReply`` with 400 malformed, 401 no or wrong token, 403 out of scope, 404 unknown, 405 method, 408
too slow, 409 lease lost, 413 too large, 429 too many, 431 headers too large, 503 the lent store does not answer.
Batches answer 200 with a verdict per item, and hold at most 1000 items.

A lease contains the claim token that the client made. Where the server has worker tokens, the store knows the claim by
another token, derived from both: a stolen claim token is useless to another worker, also after a restart of the server.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from stowhand.jobs.conditions import Where
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job, NewJob
from stowhand.jobs.lease import Lease, Pair, ResetJob
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.producer import JobStanding
from stowhand.protocols.queue_store import Failures

MAX_WAIT_SECONDS = 30.0
"""How long a poll may wait."""


MAX_LEASE_SECONDS = 86_400.0
"""Seconds."""
MAX_BODY_BYTES = 1024 * 1024
"""Bytes of one request."""
MAX_ITEMS = 1000
"""Items in one list of a request: leases, settlements, jobs, entries of a log, ids."""
ITEM_LIMIT = msgspec.Meta(max_length=MAX_ITEMS)

Q = TypeVar("Q")
A = TypeVar("A")
LeaseSeconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_LEASE_SECONDS)]
JobNumber = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One body. In a request an unknown field is an error at every level, since a mistyped one would be ignored in
    silence (``server/bodies.py``). In a reply it is ignored, since a later version may add some.
    """


class RemoteClaimRequest(Message, frozen=True):
    worker: str
    token: str
    """A uuid, new for every claim: one that was used is refused (``used``). Where the reply to a claim is lost, release
    its token (``Release.token``), and claim with another one."""
    limit: Annotated[int, msgspec.Meta(ge=0)]
    """A reply has at most 500 records."""
    lease: LeaseSeconds
    tasks: tuple[str, ...] | None = None
    forbidden_flags: tuple[str, ...] = ()
    queues: Queues = ALL_QUEUES
    """The queues whose jobs to claim."""
    suspects: bool = False
    conditions: tuple[Where, ...] = ()


class ClaimedRecord(Message, frozen=True):
    """One record under a lease."""

    lease: Lease
    authorization: str
    """Proves, with the lease, that this claim was answered to this worker. Sent with every later call about it."""
    record: msgspec.Raw
    """JSON. A value of any type can be encoded here."""
    kind: str
    """``job``, ``record``, or ``unreadable`` (``record`` is the reason, a text): how ``record`` is to be read."""
    task: str
    attempts: int
    max_attempts: int
    serial: str | None = None
    resets: int = 0


class ClaimReply(Message, frozen=True):
    claims: tuple[ClaimedRecord, ...]


class Proof(Message, frozen=True):
    """A lease, and the authorization that proves that the caller holds it."""

    lease: Lease
    authorization: str


class HeartbeatRequest(Message, frozen=True, omit_defaults=True):
    leases: Annotated[tuple[Proof, ...], ITEM_LIMIT]
    lease: LeaseSeconds | None = None
    """``None``: renew nothing, and reply only with cancellation requests."""


class HeartbeatReply(Message, frozen=True):
    lost: tuple[Pair, ...] = ()
    canceled: tuple[Pair, ...] = ()
    busy: tuple[Pair, ...] = ()
    lease_until: datetime | None = None


class ProgressNote(Message, frozen=True, omit_defaults=True):
    """The progress of one attempt."""

    proof: Proof
    done: float
    """0 to 1."""
    text: str | None = None


class ProgressRequest(Message, frozen=True):
    notes: Annotated[tuple[ProgressNote, ...], ITEM_LIMIT]


class ProgressReply(Message, frozen=True):
    """The reply to progress, which is dropped if the lent store does not answer at once."""

    lost: tuple[Pair, ...] = ()
    """Leases that were not lent under this token."""


class ProvedSettlement(Message, frozen=True):
    """If its result, payload or following jobs cannot be stored, the verdict is ``unwritten``. A state that contradicts
    ``ended`` is an error of the whole call."""

    proof: Proof
    settlement: Settlement


class SettleRequest(Message, frozen=True):
    batch: Annotated[tuple[ProvedSettlement, ...], ITEM_LIMIT]
    repeat: bool = False


class Difference(Message, frozen=True, omit_defaults=True):
    """The settlement recorded instead of the one sent, or why none was."""

    place: int
    """Position in the batch, from 0."""
    recorded: Settlement | None = None
    """Without its result, payload and following jobs."""
    unwritten: str | None = None


class SettleReply(Message, frozen=True, omit_defaults=True):
    verdicts: tuple[str, ...]
    differences: tuple[Difference, ...] = ()


class QueuesRequest(Message, frozen=True):
    """The queues that the tasks of a worker declare, as it starts."""

    task_queues: Annotated[dict[str, str], ITEM_LIMIT]
    """By task, for jobs whose producer names no queue and does not know the task."""


class QueuesReply(Message, frozen=True):
    left_out: tuple[str, ...] = ()
    """Tasks that are outside the token's tasks, or whose queue is outside its queues."""


class ReleaseRequest(Message, frozen=True):
    leases: Annotated[tuple[Proof, ...], ITEM_LIMIT] = ()
    token: str | None = None
    """A claim token whose reply never arrived: its jobs return to the queue, and it can never claim again."""


class ReleaseReply(Message, frozen=True):
    busy: tuple[Pair, ...] = ()
    """Leases that are not released yet: try again."""
    lost: tuple[Pair, ...] = ()
    """Leases that were not lent under this token: nothing was changed."""
    abandoned: bool = True


class ResetRequest(Message, frozen=True):
    leases: Annotated[tuple[Proof, ...], ITEM_LIMIT] = ()
    """Leases of jobs whose worker process, or child process, has died."""
    worker: str | None = None
    """The name of a worker that has died: everything lent to it under the same worker token is reset."""


class ResetReply(Message, frozen=True):
    jobs: tuple[ResetJob, ...] = ()
    """The jobs that were reset. Each counts one reset."""


class LogRequest(Message, frozen=True):
    proof: Proof
    add: Annotated[tuple[ExecutionLogEntry, ...], ITEM_LIMIT] = ()
    update: Annotated[tuple[tuple[int, ExecutionLogEntry], ...], ITEM_LIMIT] = ()


class LogReply(Message, frozen=True):
    numbers: tuple[int, ...]


class EnqueueRequest(Message, frozen=True, omit_defaults=True):
    """All of these jobs are enqueued in one transaction, or none."""

    jobs: Annotated[tuple[NewJob, ...], ITEM_LIMIT]
    bare: bool = False
    """The answer contains ids only."""


class EnqueueReply(Message, frozen=True):
    """In the order of the jobs that were sent."""

    ids: tuple[int, ...]
    jobs: tuple[Job, ...] = ()


class TermsReply(Message, frozen=True):
    name: str
    kind: str
    lease: float | None = None
    heartbeat_interval: float | None = None
    cancel_interval: float | None = None
    retry_after: float | None = None
    polls: bool = False
    logs: bool = False


class DueRequest(Message, frozen=True):
    """Asks when a job is due, and, with ``wait``, waits for a wake-up.

    The server counts the lent store's wake-ups. It answers at once when its count differs from ``wake_count``, else as
    soon as the count changes, or after ``wait`` seconds. A client sends the count that it knew before its last claim:
    then a wake-up between claim and poll is not missed.
    """

    tasks: tuple[str, ...] | None = None
    queues: Queues = ALL_QUEUES
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0.0
    """Seconds, at most ``LONGEST_WAIT``. 0: answer at once."""
    wake_count: str | None = None
    """The count in an earlier reply. Required with ``wait``."""


class DueReply(Message, frozen=True):
    seconds: float | None = None
    """Seconds until the earliest waiting job of these tasks is due. Only where ``wait`` is 0."""
    wake_count: str = ""
    """The count now, prefixed with an id of this server process: after a restart it differs from every earlier one."""
    is_listening: bool = True
    """``store.is_listening`` of the lent store: the server is receiving wake-ups."""


class ResultsRequest(Message, frozen=True):
    """Asks how jobs ended."""

    job_ids: Annotated[tuple[JobNumber, ...], ITEM_LIMIT]


class ResultsReply(Message, frozen=True):
    ended: tuple[JobStanding, ...] = ()
    """The jobs that have finished, were replaced, or do not exist."""
    left_out: tuple[int, ...] = ()
    """Ids of finished jobs that the reply has no room for: ask about these again."""
    retention: float | None = None
    """How long the lent store keeps the outcome of a job, in seconds; ``None``: not at all."""


class ErrorKind(StrEnum):
    """The kind of an error, for programs."""

    MALFORMED = "malformed"
    """400: not JSON, or not of the expected shape."""
    INVALID_JOB = "invalid job"
    """400: InvalidJob, with its message."""
    REFUSED = "refused"
    """400: the lent store refuses a setting (ConfigurationError), as conditions where it takes none."""
    UNAUTHORIZED = "unauthorized"
    """401"""
    OUT_OF_SCOPE = "out of scope"
    """403"""
    UNKNOWN = "unknown"
    """404"""
    METHOD = "method"
    """405"""
    LEASE_LOST = "lease lost"
    """409"""
    LOG_REFUSED = "log refused"
    """409: LogRefused: no such entry, or the attempt is over."""
    USED = "used"
    """409: the claim token was used before. Release it, and claim with a new one."""
    TOO_LARGE = "too large"
    """413"""
    TOO_MANY = "too many"
    """429, with Retry-After"""
    OUTCOME_UNKNOWN = "outcome unknown"
    """503: OutcomeUnknown: the jobs may be in the lent store or not."""
    UNREACHABLE = "unreachable"
    """503, with Retry-After: the lent store does not answer, its schema does not fit, or the server is stopping."""
    BROKEN = "broken"
    """500: a bug in the server."""


class ErrorReply(Message, frozen=True):
    error: str
    """One of ``Kind``; a later version may add more."""
    message: str
    fix: str = ""


class Scope(StrEnum):
    """A right of a token."""

    CLAIM = "claim"
    """Claim, renew, log and settle, as a worker does."""
    ENQUEUE = "enqueue"
    """Enqueue jobs, including those that a settlement enqueues."""
    READ = "read"
    """Read jobs and metrics."""
    PAYLOAD = "payload"
    """Read payload and result of jobs that were not claimed with it."""
    ACT = "act"
    """Change jobs and serial keys on the dashboard."""
    ADD = "add"
    """Enqueue jobs from the dashboard."""


class Verb(msgspec.Struct, Generic[Q, A], frozen=True, eq=False):
    """One call of the protocol."""

    name: str
    """The name in metrics, the log and the audit."""
    path: str
    request: type[Q] | None
    """The body; ``None`` of a GET."""
    response: type[A]
    scopes: tuple[Scope, ...] = ()
    """The scopes that a token needs, all of them."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return "GET" if self.request is None else "POST"


CLAIM = Verb("claim", "/v1/claim", RemoteClaimRequest, ClaimReply, (Scope.CLAIM,))
HEARTBEAT = Verb("heartbeat", "/v1/heartbeat", HeartbeatRequest, HeartbeatReply, (Scope.CLAIM,))
PROGRESS = Verb("progress", "/v1/progress", ProgressRequest, ProgressReply, (Scope.CLAIM,))
SETTLE = Verb("settle", "/v1/settle", SettleRequest, SettleReply, (Scope.CLAIM,))
RESET = Verb("reset", "/v1/reset", ResetRequest, ResetReply, (Scope.CLAIM,))
RELEASE = Verb("release", "/v1/release", ReleaseRequest, ReleaseReply, (Scope.CLAIM,))
QUEUES = Verb("queues", "/v1/queues", QueuesRequest, QueuesReply, (Scope.CLAIM,))
LOGS = Verb("logs", "/v1/logs", LogRequest, LogReply, (Scope.CLAIM,))
ENQUEUE = Verb("enqueue", "/v1/enqueue", EnqueueRequest, EnqueueReply, (Scope.ENQUEUE,))
DUE = Verb("due", "/v1/due", DueRequest, DueReply, (Scope.CLAIM,))
ENDS = Verb("ends", "/v1/ends", ResultsRequest, ResultsReply, (Scope.READ, Scope.PAYLOAD))
JOB: Verb[None, Job] = Verb("jobs", "/v1/jobs/{id}", None, Job, (Scope.READ,))
TRIES: Verb[None, list[FailedAttempt]] = Verb("tries", "/v1/jobs/{id}/tries", None, list[FailedAttempt], (Scope.READ,))
FAILURES: Verb[None, list[Failures]] = Verb("failures", "/v1/failures", None, list[Failures], (Scope.READ,))
TERMS: Verb[None, TermsReply] = Verb("terms", "/v1/terms", None, TermsReply)

VERBS: tuple[Verb[Any, Any], ...] = (
    *(CLAIM, HEARTBEAT, PROGRESS, SETTLE, RESET, RELEASE, QUEUES, LOGS),
    *(ENQUEUE, DUE, ENDS, JOB, TRIES, FAILURES, TERMS),
)
"""Every call of a lent store, in the order of the page docs/reference/http.md."""
