"""Jobs and their states. Frozen data: no I/O, no clock, no policy."""

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
    """An attempt failed, and the job waits for the next one."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def terminal(self) -> bool:
        """True for completed, failed and canceled. Only an explicit, recorded call leaves such a state."""
        return self in (State.COMPLETED, State.FAILED, State.CANCELED)


class KeyMode(StrEnum):
    """The effect of enqueueing with a key on the job that already holds the key."""

    REPLACE = "replace"
    """Replaces every field (debounce)."""
    PRESERVE_RUN_AT = "preserve_run_at"
    """Replaces every field except ``run_at`` (throttle)."""
    UNSAFE_DEDUPE = "unsafe_dedupe"
    """Changes nothing, even if the job is running or has failed."""
    UNIQUE = "unique"
    """Changes nothing if the job waits or runs; replaces every field of a failed job (once)."""


DROPPED_RESULT = " null"
"""``result_text`` of a result that the store could not keep. Readers see null. No real result starts with a space."""
EXPIRED_ERROR = "it expired before its first attempt"
"""The error of a job that ``NewJob.expires`` canceled."""
DEFAULT_MAX_ATTEMPTS = 25
"""The default, unless the store's schema has its own."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, metaclass=SuggestingMeta):
    """A job to enqueue. ``None`` means the store's default."""

    task: str
    payload: str = "{}"
    """Strict JSON text within the limits."""
    serial: str | None = None
    """Jobs with the same serial key run one at a time."""
    queue: str | None = None
    """The class of work. ``None``: the queue that workers declare for the task, else ``default``."""
    run_at: datetime | None = None
    """Aware. ``None``: now, by the store's clock."""
    delay: float | None = None
    """Seconds from now by the store's clock. It excludes ``run_at``."""
    priority: int = 0
    """Smaller runs first. 32 bits."""
    max_attempts: int | None = None
    """``None``: the default of the store's schema, else 25."""
    max_resets: int | None = None
    """Maximum number of resets. ``None``: 5, or 0 if ``max_attempts`` is 1."""
    key: str | None = None
    key_mode: KeyMode = KeyMode.REPLACE
    flags: tuple[str, ...] = ()
    on_failure: NewJob | None = None
    """A job to enqueue when this job permanently fails, with a ``Failure`` as its payload. It has no payload of its
    own, no key, and no ``on_failure``."""
    expires: float | None = None
    """Seconds after ``run_at`` until the job is canceled, unless a worker has claimed it by then."""
    unique_period: float | None = None
    """With the key mode ``unique``: for this many seconds after the first job was enqueued, a repeat returns that job,
    even if it has completed."""


class Job(msgspec.Struct, frozen=True, dict=True):
    """One job, as its store returned it.

    ``payload`` and ``result`` are values, decoded at the first access, which raises UndecodablePayload if a text cannot
    be decoded. ``payload_text`` and ``result_text`` are the stored texts.
    ``task_identifier``, ``queue_name``, ``locked_at`` and ``locked_by`` are graphile-worker's names, for reading.
    """

    id: int
    task: str
    payload_text: str = msgspec.field(name="payload")
    """JSON as the producer wrote it, with its spelling of numbers and its order of keys."""
    state: State
    serial: str | None
    priority: int
    run_at: datetime
    attempts: int
    """Started attempts, including the running one."""
    max_attempts: int
    created_at: datetime
    resets: int = 0
    max_resets: int | None = None
    key: str | None = None
    flags: tuple[str, ...] = ()
    last_error: str | None = None
    """The error of the last failed attempt: the title on the first line, then the traceback."""
    revision: int = 0
    updated_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    """The worker that runs it, while it is processing."""
    cancel_requested: bool = False
    result_text: str | None = msgspec.field(default=None, name="result")
    """The result as JSON text."""
    last_worker: str | None = None
    """The worker that holds or last held the job. It is kept over retries and after the job's end."""
    progress: float | None = None
    """0 to 1, from the handler's last ``ctx.progress``. It is kept over retries and cleared at the end."""
    progress_text: str | None = None
    queue: str = DEFAULT_QUEUE
    """The class of work: workers choose which queues they serve."""
    parent_id: int | None = None
    """The workflow that has created the job."""
    waits_for: str | None = None
    """What a workflow waits for: ``event:NAME``, ``children:STEP`` or ``time:STEP``. The last wait, while it runs."""

    @cached_property
    def payload(self) -> Any:
        """The decoded payload; ``None`` if a store over HTTP does not reveal it."""
        return strict_json.decode(self.payload_text) if self.payload_text else None

    @cached_property
    def result(self) -> Any:
        """The value that the handler returned; ``None`` without a result."""
        return None if self.result_text is None else strict_json.decode(self.result_text)

    @property
    def task_identifier(self) -> str:
        """Alias of ``task``."""
        return self.task

    @property
    def queue_name(self) -> str | None:
        """Alias of ``serial``."""
        return self.serial

    @property
    def locked_at(self) -> datetime | None:
        """The time of the current claim; ``None`` unless the job is processing."""
        return self.started_at if self.state is State.PROCESSING else None

    @property
    def locked_by(self) -> str | None:
        """Alias of ``worker``."""
        return self.worker
