"""What a job is. Frozen data: no I/O, no clock, no policy."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec

from stowhand.jobs import strict_json
from stowhand.jobs.option_struct import SuggestingMeta
from stowhand.jobs.queues import DEFAULT_QUEUE


class State(StrEnum):
    """The state of a job, spelled as in users' tables."""

    QUEUED = "queued"
    PROCESSING = "processing"
    ERRORED = "errored"
    """It failed and waits for a retry."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def terminal(self) -> bool:
        """Only an explicit, recorded call leaves a terminal state."""
        return self in (State.COMPLETED, State.FAILED, State.CANCELED)


class KeyMode(StrEnum):
    """What a keyed enqueue does with a job that already holds the key."""

    REPLACE = "replace"
    """Every detail takes its new value (debounce)."""
    PRESERVE_RUN_AT = "preserve_run_at"
    """Every detail but ``run_at`` (throttle)."""
    UNSAFE_DEDUPE = "unsafe_dedupe"
    """Nothing changes, even if the job is running or has failed."""
    UNIQUE = "unique"
    """Nothing changes if the job waits or is running; one that has failed takes every detail anew (once)."""


DROPPED_RESULT = " null"
"""A result that could not be kept, as ``result_text``: null to every reader, with a space that no result has."""
EXPIRED_ERROR = "it expired before its first attempt"
"""The error of a job that was canceled because of ``NewJob.expires``."""
DEFAULT_MAX_ATTEMPTS = 25
"""The default, where the store's schema has no other."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, metaclass=SuggestingMeta):
    """A job to enqueue. ``None`` means the store's default."""

    task: str
    payload: str = "{}"
    """Strict JSON text, already checked against the limits."""
    serial: str | None = None
    """Jobs of one serial key run one after another."""
    queue: str | None = None
    """The class of work. ``None``: the queue that a worker has declared for the task, else ``default``."""
    run_at: datetime | None = None
    """Aware. ``None``: now, by the store's clock."""
    delay: float | None = None
    """Seconds from now by the store's clock. Not together with ``run_at``."""
    priority: int = 0
    """Smaller runs first. 32 bits."""
    max_attempts: int | None = None
    """``None``: 25, or what the store's schema says."""
    max_resets: int | None = None
    """How often a worker may die while running it. ``None``: 5, or 0 where ``max_attempts`` is 1."""
    key: str | None = None
    key_mode: KeyMode = KeyMode.REPLACE
    flags: tuple[str, ...] = ()
    on_failure: NewJob | None = None
    """Enqueued when this job has failed for good, with a ``Failure`` as its payload: so it has no payload of its own
    here, no key, and no ``on_failure``."""
    expires: float | None = None
    """Seconds from ``run_at`` after which it is canceled, unless a worker has claimed it by then."""
    unique_period: float | None = None
    """With the key mode ``unique``: so many seconds after the first was enqueued, a repeat gives that one also where it
    has completed."""


class Job(msgspec.Struct, frozen=True, dict=True):
    """One job as its store knows it.

    ``payload`` and ``result`` are values, decoded at the first access, which raises UndecodablePayload for a text that
    cannot be decoded; ``payload_text`` and ``result_text`` are the texts as the store has them.
    ``task_identifier``, ``queue_name``, ``locked_at`` and ``locked_by`` are graphile-worker's names, for reading.
    """

    id: int
    task: str
    payload_text: str = msgspec.field(name="payload")
    """JSON, as it was written: numbers and the order of keys are the writer's."""
    state: State
    serial: str | None
    priority: int
    run_at: datetime
    attempts: int
    """Attempts begun, the running one included."""
    max_attempts: int
    created_at: datetime
    resets: int = 0
    max_resets: int | None = None
    key: str | None = None
    flags: tuple[str, ...] = ()
    last_error: str | None = None
    revision: int = 0
    updated_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    """The worker that is running it, while it is processing."""
    cancel_requested: bool = False
    result_text: str | None = msgspec.field(default=None, name="result")
    """JSON."""
    last_worker: str | None = None
    """The worker that holds it, or held it last: it outlives retries and the job's end."""
    progress: float | None = None
    """0 to 1, as its handler said last (``ctx.progress``): kept over retries, and cleared at the end."""
    progress_text: str | None = None
    queue: str = DEFAULT_QUEUE
    """The class of work: workers choose which queues they serve."""

    @cached_property
    def payload(self) -> Any:
        """The value; ``None`` where a store that is reached over HTTP does not reveal it."""
        return strict_json.decode(self.payload_text) if self.payload_text else None

    @cached_property
    def result(self) -> Any:
        """What the handler returned; ``None``: no result."""
        return None if self.result_text is None else strict_json.decode(self.result_text)

    @property
    def task_identifier(self) -> str:
        """The same as ``task``."""
        return self.task

    @property
    def queue_name(self) -> str | None:
        """The same as ``serial``."""
        return self.serial

    @property
    def locked_at(self) -> datetime | None:
        """When the current attempt was claimed; ``None`` unless the job is processing."""
        return self.started_at if self.state is State.PROCESSING else None

    @property
    def locked_by(self) -> str | None:
        """The same as ``worker``."""
        return self.worker
