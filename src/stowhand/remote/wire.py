"""Messages of the HTTP store in both directions: JSON over HTTP/1.1, with ``Authorization: Bearer <token>``.

The table ``VERBS`` at the end lists all calls. In addition there are ``GET /healthz``, ``/readyz`` and ``/metrics``.

An error is an ``ErrorReply`` with 400 malformed, 401 missing or wrong token, 403 out of scope, 404 unknown, 405 wrong
method, 408 too slow, 409 lease lost, 413 too large, 429 too many, 431 headers too large, or 503 the lent store does not
answer. The reply to a batch is 200 with a verdict for each item. A batch contains at most 1000 items.

A lease contains the claim token that the client has generated. A server with worker tokens derives another token from
both, and passes it to the store. So a stolen claim token is useless to another worker, even after a server restart.
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
from stowhand.jobs.task_limits import LimitValues, TaskLimits
from stowhand.protocols.producer import JobStatus
from stowhand.protocols.queue_store import Failures
from stowhand.protocols.workflows import NewStep, RecordedStep

MAX_WAIT_SECONDS = 30.0
"""Maximum duration of a poll."""
MAX_LEASE_SECONDS = 86_400.0
MAX_BODY_BYTES = 1024 * 1024
"""Maximum size of a request."""
MAX_ITEMS = 1000
"""Maximum length of a list in a request: leases, settlements, jobs, log entries or ids."""
ITEM_LIMIT = msgspec.Meta(max_length=MAX_ITEMS)

Q = TypeVar("Q")
A = TypeVar("A")
LeaseSeconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_LEASE_SECONDS)]
JobNumber = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a request or reply.

    A request with an unknown field is refused, since a misspelled field would be ignored silently
    (``server/bodies.py``). Unknown fields of a reply are ignored, since a later version may add some.
    """


class RemoteClaimRequest(Message, frozen=True):
    worker: str
    token: str
    """UUID, new for every claim: a token that was already used is refused (``used``). If the reply to a claim is lost,
    release its token (``ReleaseRequest.token``), and claim with a new one."""
    limit: Annotated[int, msgspec.Meta(ge=0)]
    """Maximum number of records. A reply contains at most 500 records."""
    lease: LeaseSeconds
    tasks: tuple[str, ...] | None = None
    forbidden_flags: tuple[str, ...] = ()
    queues: Queues = ALL_QUEUES
    """The queues whose jobs to claim."""
    suspects: bool = False
    conditions: tuple[Where, ...] = ()
    free_slots: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """How many of the records the worker starts at once; ``None``: all. Jobs with a rate are not claimed ahead."""
    task_rooms: Annotated[dict[str, Annotated[int, msgspec.Meta(ge=0)]], ITEM_LIMIT] = {}
    """For tasks with a limit in each worker: the number of jobs that this worker may still claim."""


class ClaimedRecord(Message, frozen=True):
    """One record under a lease."""

    lease: Lease
    authorization: str
    """Proof, with the lease, that this worker holds the claim. Every later call about the lease contains it."""
    record: msgspec.Raw
    """JSON of any type."""
    kind: str
    """Type of ``record``: ``job``, ``record`` (a row), or ``unreadable`` (then ``record`` is the reason, a text)."""
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
    """Progress of one attempt."""

    proof: Proof
    done: float
    """Completed share of the work, 0 to 1."""
    text: str | None = None


class ProgressRequest(Message, frozen=True):
    notes: Annotated[tuple[ProgressNote, ...], ITEM_LIMIT]


class ProgressReply(Message, frozen=True):
    """Reply to progress. Progress is dropped if the lent store does not answer at once."""

    lost: tuple[Pair, ...] = ()
    """Leases that this token does not hold."""


class ProvedSettlement(Message, frozen=True):
    """Settlement of a proved lease.

    If its result, payload or following jobs cannot be stored, the verdict is ``unwritten``. A state that contradicts
    ``ended`` is an error of the whole call.
    """

    proof: Proof
    settlement: Settlement


class SettleRequest(Message, frozen=True):
    batch: Annotated[tuple[ProvedSettlement, ...], ITEM_LIMIT]
    repeat: bool = False


class Difference(Message, frozen=True, omit_defaults=True):
    """Settlement that was recorded instead of the one in the request, or the reason why none was recorded."""

    place: int
    """Position in the batch, from 0."""
    recorded: Settlement | None = None
    """Recorded settlement without its result, payload and following jobs."""
    unwritten: str | None = None
    """Reason why no settlement was recorded."""


class SettleReply(Message, frozen=True, omit_defaults=True):
    verdicts: tuple[str, ...]
    differences: tuple[Difference, ...] = ()


class TasksRequest(Message, frozen=True, omit_defaults=True):
    """Queues and limits that the tasks of a starting worker declare."""

    queues: Annotated[dict[str, str], ITEM_LIMIT]
    """Queue by task, for jobs whose producer names no queue and does not know the task."""
    tasks: Annotated[dict[str, TaskLimits], ITEM_LIMIT] = {}
    """The names of the limits of each task that has some."""
    limits: Annotated[dict[str, LimitValues], ITEM_LIMIT] = {}
    """The values of these limits, by name."""


class TasksReply(Message, frozen=True):
    left_out: tuple[str, ...] = ()
    """Tasks that were not recorded: the token does not allow the task, its queue, or to change a limit that other tasks
    may share."""


class ReleaseRequest(Message, frozen=True):
    leases: Annotated[tuple[Proof, ...], ITEM_LIMIT] = ()
    token: str | None = None
    """Token of a claim whose reply was lost: its jobs return to the queue, and the token can never claim again."""


class ReleaseReply(Message, frozen=True):
    busy: tuple[Pair, ...] = ()
    """Leases that are not released yet: try again."""
    lost: tuple[Pair, ...] = ()
    """Leases that this token does not hold: nothing was changed."""
    abandoned: bool = True
    """False if the claim token could not be released yet: try again."""


class ResetRequest(Message, frozen=True):
    leases: Annotated[tuple[Proof, ...], ITEM_LIMIT] = ()
    """Leases of jobs whose worker process, or child process, has died."""
    worker: str | None = None
    """Name of a dead worker: all jobs that it claimed with the same worker token are reset."""


class ResetReply(Message, frozen=True):
    jobs: tuple[ResetJob, ...] = ()
    """Jobs that were reset. Each counts one reset."""


class LogRequest(Message, frozen=True):
    proof: Proof
    add: Annotated[tuple[ExecutionLogEntry, ...], ITEM_LIMIT] = ()
    update: Annotated[tuple[tuple[int, ExecutionLogEntry], ...], ITEM_LIMIT] = ()


class LogReply(Message, frozen=True):
    numbers: tuple[int, ...]


class EnqueueRequest(Message, frozen=True, omit_defaults=True):
    """Jobs to enqueue in one transaction: all of them, or none."""

    jobs: Annotated[tuple[NewJob, ...], ITEM_LIMIT]
    bare: bool = False
    """Whether the reply contains ids only."""


class EnqueueReply(Message, frozen=True):
    """Enqueued jobs, in the order of the request."""

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
    """Question when a job is due; with ``wait``, a request to wait for a wake-up.

    The server counts the lent store's wake-ups. It answers at once if its count differs from ``wake_count``, otherwise
    as soon as the count changes, or after ``wait`` seconds. A client sends the count from before its last claim, so
    that no wake-up between claim and poll is missed.
    """

    tasks: tuple[str, ...] | None = None
    queues: Queues = ALL_QUEUES
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0.0
    """Seconds, at most ``MAX_WAIT_SECONDS``. 0: answer at once."""
    wake_count: str | None = None
    """Count from an earlier reply. Required with ``wait``."""


class DueReply(Message, frozen=True):
    seconds: float | None = None
    """Seconds until the earliest waiting job of these tasks is due. Set only if ``wait`` is 0."""
    wake_count: str = ""
    """Current count, prefixed with an id of this server process: after a restart it differs from all earlier counts."""
    is_listening: bool = True
    """``is_listening`` of the lent store: whether the server receives wake-ups."""


class ResultsRequest(Message, frozen=True):
    """Question how jobs ended."""

    job_ids: Annotated[tuple[JobNumber, ...], ITEM_LIMIT]


class ResultsReply(Message, frozen=True):
    ended: tuple[JobStatus, ...] = ()
    """Jobs that have finished, were replaced, or do not exist."""
    left_out: tuple[int, ...] = ()
    """Ids of finished jobs that do not fit into the reply: request them again."""
    retention: float | None = None
    """Seconds for which the lent store keeps the outcome of a job; ``None``: it keeps none."""


class ProvedStep(Message, frozen=True):
    """Step to record under a proved lease."""

    proof: Proof
    step: NewStep


class RecordRequest(Message, frozen=True):
    """Steps to record in one transaction."""

    steps: Annotated[tuple[ProvedStep, ...], ITEM_LIMIT]


class RecordReply(Message, frozen=True):
    is_held: tuple[bool, ...]
    """For each step, whether its lease holds the job; otherwise the step is not recorded."""


class StepsRequest(Message, frozen=True, omit_defaults=True):
    """Question for the recorded steps of a job that the caller runs."""

    proof: Proof
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of the first steps to leave out, which earlier replies contained."""


class StepsReply(Message, frozen=True):
    steps: tuple[RecordedStep, ...]
    """Steps in the order in which they were recorded, as many as fit into a reply."""
    total: int
    """Number of steps of the job."""


class EmitRequest(Message, frozen=True, omit_defaults=True):
    """Event to emit, for all jobs or for one."""

    event: str
    payload: str = "null"
    """JSON text."""
    job_id: JobNumber | None = None


class EmitReply(Message, frozen=True):
    is_first: bool
    """Whether it is the first event with this name. Only that one counts."""


class EmittedRequest(Message, frozen=True, omit_defaults=True):
    """Question whether an event was emitted, for all jobs or for one."""

    event: str
    job_id: JobNumber | None = None


class EmittedReply(Message, frozen=True):
    is_emitted: bool


class ErrorKind(StrEnum):
    """Kind of an error, for programs."""

    MALFORMED = "malformed"
    """400: not JSON, or not of the expected shape."""
    INVALID_JOB = "invalid job"
    """400: InvalidJob, with its message."""
    REFUSED = "refused"
    """400: the lent store refuses a setting (ConfigurationError), such as conditions for a queue."""
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
    """409: LogRefused: the entry does not exist, or the attempt has ended."""
    USED = "used"
    """409: the claim token was already used. Release it, and claim with a new one."""
    TOO_LARGE = "too large"
    """413"""
    TOO_MANY = "too many"
    """429, with Retry-After"""
    OUTCOME_UNKNOWN = "outcome unknown"
    """503: OutcomeUnknown: it is unknown whether the lent store has the jobs."""
    UNREACHABLE = "unreachable"
    """503, with Retry-After: the lent store does not answer, its schema is unsuitable, or the server is stopping."""
    BROKEN = "broken"
    """500: a bug in the server."""


class ErrorReply(Message, frozen=True):
    error: str
    """An ``ErrorKind``; a later version may add more."""
    message: str
    fix: str = ""
    """What the caller should do next."""


class Scope(StrEnum):
    """Right of a token."""

    CLAIM = "claim"
    """Claim, renew, log and settle, as a worker does."""
    ENQUEUE = "enqueue"
    """Enqueue jobs, including those that a settlement enqueues, and emit events."""
    READ = "read"
    """Read jobs and metrics."""
    PAYLOAD = "payload"
    """Read payload and result of jobs that were not claimed with this token."""
    ACT = "act"
    """Change jobs and serial keys on the dashboard."""
    ADD = "add"
    """Enqueue jobs from the dashboard."""


class Verb(msgspec.Struct, Generic[Q, A], frozen=True, eq=False):
    """Call of the protocol."""

    name: str
    """Name in metrics, log and audit."""
    path: str
    request: type[Q] | None
    """Type of the body; ``None`` for a GET."""
    response: type[A]
    scopes: tuple[Scope, ...] = ()
    """Scopes that a token needs; all are required."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return "GET" if self.request is None else "POST"


CLAIM_VERB = Verb("claim", "/v1/claim", RemoteClaimRequest, ClaimReply, (Scope.CLAIM,))
HEARTBEAT_VERB = Verb("heartbeat", "/v1/heartbeat", HeartbeatRequest, HeartbeatReply, (Scope.CLAIM,))
PROGRESS_VERB = Verb("progress", "/v1/progress", ProgressRequest, ProgressReply, (Scope.CLAIM,))
SETTLE_VERB = Verb("settle", "/v1/settle", SettleRequest, SettleReply, (Scope.CLAIM,))
RESET_VERB = Verb("reset", "/v1/reset", ResetRequest, ResetReply, (Scope.CLAIM,))
RELEASE_VERB = Verb("release", "/v1/release", ReleaseRequest, ReleaseReply, (Scope.CLAIM,))
TASKS_VERB = Verb("tasks", "/v1/tasks", TasksRequest, TasksReply, (Scope.CLAIM,))
LOGS_VERB = Verb("logs", "/v1/logs", LogRequest, LogReply, (Scope.CLAIM,))
RECORD_VERB = Verb("record", "/v1/record", RecordRequest, RecordReply, (Scope.CLAIM,))
STEPS_VERB = Verb("steps", "/v1/steps", StepsRequest, StepsReply, (Scope.CLAIM,))
ENQUEUE_VERB = Verb("enqueue", "/v1/enqueue", EnqueueRequest, EnqueueReply, (Scope.ENQUEUE,))
EMIT_VERB = Verb("emit", "/v1/emit", EmitRequest, EmitReply, (Scope.ENQUEUE,))
EMITTED_VERB = Verb("emitted", "/v1/emitted", EmittedRequest, EmittedReply, (Scope.READ,))
DUE_VERB = Verb("due", "/v1/due", DueRequest, DueReply, (Scope.CLAIM,))
ENDS_VERB = Verb("ends", "/v1/ends", ResultsRequest, ResultsReply, (Scope.READ, Scope.PAYLOAD))
JOB_VERB: Verb[None, Job] = Verb("jobs", "/v1/jobs/{id}", None, Job, (Scope.READ,))
TRIES_VERB: Verb[None, list[FailedAttempt]] = Verb(
    "tries", "/v1/jobs/{id}/tries", None, list[FailedAttempt], (Scope.READ,)
)
FAILURES_VERB: Verb[None, list[Failures]] = Verb("failures", "/v1/failures", None, list[Failures], (Scope.READ,))
TERMS_VERB: Verb[None, TermsReply] = Verb("terms", "/v1/terms", None, TermsReply)

VERBS: tuple[Verb[Any, Any], ...] = (
    *(CLAIM_VERB, HEARTBEAT_VERB, PROGRESS_VERB, SETTLE_VERB, RESET_VERB, RELEASE_VERB, TASKS_VERB, LOGS_VERB),
    *(RECORD_VERB, STEPS_VERB, ENQUEUE_VERB, EMIT_VERB, EMITTED_VERB),
    *(DUE_VERB, ENDS_VERB, JOB_VERB, TRIES_VERB, FAILURES_VERB, TERMS_VERB),
)
"""All calls of a lent store, in the order of the page docs/reference/http.md."""
