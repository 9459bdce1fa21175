"""A job of a flow, as its creator sees it: state, attributes, failure."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from stowhand.errors import StowhandError


class Stage(StrEnum):
    """The state of a flow's job."""

    WAITING = "waiting"
    PROCESSING = "processing"
    DELAYED = "delayed"
    PARKED = "parked"
    """A parent that waits for its children."""
    LOST = "lost"
    """Redis: no list of its queue has it, so no worker will run it. ``retry`` puts it back."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def has_ended(self) -> bool:
        """The job will not run again unless it is retried."""
        return self in (Stage.COMPLETED, Stage.FAILED, Stage.CANCELED)


class FlowJobView(msgspec.Struct, frozen=True, kw_only=True):
    """State and attributes of one job."""

    id: str
    state: Stage
    queue: str | None
    """The queue in which it is, or in which it ended; ``None``: unknown."""
    attributes: dict[str, Any]
    """The job's attributes and the results of its steps, decoded."""
    failure: str | None = None
    """Why it failed, was canceled or is lost."""
    created_at: datetime | None = None
    ready_at: datetime | None = None
    """When a delayed job may start."""
    ended_at: datetime | None = None
    """``None`` also where the store does not record it."""


class FlowJobFailed(StowhandError):
    """A job of a flow has failed, was canceled, or does not exist (then ``job`` is ``None``)."""

    def __init__(self, message: str, job: FlowJobView | None) -> None:
        super().__init__(message)
        self.job = job


def created_at(job_id: str) -> datetime | None:
    """The time in the id (UUID version 7); ``None``: an id that was not made here."""
    try:
        made = uuid.UUID(job_id.rpartition(":")[2])
    except ValueError:
        return None
    return datetime.fromtimestamp((made.int >> 80) / 1000, UTC) if made.version == 7 else None
