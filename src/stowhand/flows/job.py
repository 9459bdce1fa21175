"""Jobs of a flow, as worker functions and creators see them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from stowhand.errors import StowhandError
from stowhand.protocols.attempt import Attempt


class FlowJob(Mapping[str, Any]):
    """Attributes of a job (``attributes_to_get``), decoded: ``job["userId"]``. A listed attribute may be ``None``.

    ``job.ctx`` is the attempt: ``ctx.logger``, ``ctx.canceled``, the lease.
    """

    __slots__ = ("_values", "correlation_id", "ctx", "flow", "id", "priority", "queue", "retries")

    def __init__(
        self,
        id: str,  # noqa: A002 - the document's word
        flow: str,
        queue: str,
        values: Mapping[str, Any],
        ctx: Attempt[Any],
        *,
        priority: int = 1,
        correlation_id: str | None = None,
        retries: int = 0,
    ) -> None:
        self.id = id
        self.flow = flow
        self.queue = queue
        self.ctx = ctx
        self._values = values
        self.priority = priority
        """1 is served first."""
        self.correlation_id = correlation_id
        self.retries = retries
        """Number of retries in this queue."""

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            # The message becomes the job's failure, and the name of the attribute alone would not explain it.
            raise KeyError(f"{name}: no attribute of this job, or not in attributes_to_get of {self.queue}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"FlowJob({self.id!r}, {self.queue!r}, {dict(self._values)!r})"


class Stage(StrEnum):
    """State of a flow's job."""

    WAITING = "waiting"
    PROCESSING = "processing"
    DELAYED = "delayed"
    PARKED = "parked"
    """A parent that waits for its children."""
    LOST = "lost"
    """Redis: no list of its queue contains the job, so no worker will run it. A retry puts it back."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def has_ended(self) -> bool:
        """Whether the job will not run again unless it is retried."""
        return self in (Stage.COMPLETED, Stage.FAILED, Stage.CANCELED)


class FlowJobView(msgspec.Struct, frozen=True, kw_only=True):
    """State and attributes of one job."""

    id: str
    state: Stage
    queue: str | None
    """Queue in which the job is or has ended; ``None``: unknown."""
    attributes: dict[str, Any]
    """Attributes of the job and results of its steps, decoded."""
    failure: str | None = None
    """Reason why the job failed, was canceled or is lost."""
    created_at: datetime | None = None
    ready_at: datetime | None = None
    """Time at which a delayed job may start."""
    ended_at: datetime | None = None
    """Time of the end; ``None`` also if the store does not record it."""


class FlowJobFailed(StowhandError):
    """A job of a flow has failed, was canceled, or does not exist (then ``job`` is ``None``)."""

    def __init__(self, message: str, job: FlowJobView | None) -> None:
        super().__init__(message)
        self.job = job


def created_at(job_id: str) -> datetime | None:
    """Return the creation time in the id (UUID version 7); ``None`` for an id of another program."""
    try:
        unique = uuid.UUID(job_id.rpartition(":")[2])
    except ValueError:
        return None
    return datetime.fromtimestamp((unique.int >> 80) / 1000, UTC) if unique.version == 7 else None
