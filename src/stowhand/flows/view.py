"""A job of a flow as whoever created it sees it: where it stands, and what has become of it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from stowhand.errors import StowhandError


class Stage(StrEnum):
    """Where a job stands."""

    WAITING = "waiting"
    PROCESSING = "processing"
    DELAYED = "delayed"
    PARKED = "parked"
    """A parent that waits for its children."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def has_ended(self) -> bool:
        """It will run no more by itself."""
        return self in (Stage.COMPLETED, Stage.FAILED, Stage.CANCELED)


class FlowJobView(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one job."""

    id: str
    state: Stage
    queue: str | None
    """Where it stands, or where it has ended; ``None``: that is not known."""
    attributes: dict[str, Any]
    """Everything that the job and its steps have left, decoded."""
    failure: str | None = None
    """Why it has failed, or was canceled."""
    created_at: datetime | None = None
    ready_at: datetime | None = None
    """Of a delayed one."""
    ended_at: datetime | None = None
    """Where the store knows it."""


class FlowJobFailed(StowhandError):
    """A job of a flow has failed, or was canceled, or is not there; ``job`` is what is known of it."""

    def __init__(self, message: str, job: FlowJobView | None) -> None:
        super().__init__(message)
        self.job = job


def created_at(job_id: str) -> datetime | None:
    """By its id, which begins with that moment (UUID version 7); ``None``: somebody else has made it."""
    try:
        made = uuid.UUID(job_id.rpartition(":")[2])
    except ValueError:
        return None
    return datetime.fromtimestamp((made.int >> 80) / 1000, UTC) if made.version == 7 else None
