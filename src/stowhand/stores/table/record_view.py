"""A record as the table's own columns show it: for people, who look at it and act on it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId

PAGE_SIZE = 100
MAX_PAGE_SIZE = 10_000
"""Records in one page."""
LIVE = (State.QUEUED, State.ERRORED, State.PROCESSING, State.FAILED)
"""What is looked at where no state is named."""
FIELDS = (
    *("id", "state", "num_failures", "num_resets", "queued_at", "started_at", "finished_at", "process_after"),
    *("last_heartbeat_at", "worker_hostname", "failure_message", "cancel"),
)
"""Documented names, in the order of the statements' columns."""


class ShownRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record. Moments are aware; ``None`` where the column is NULL, absent, or holds no moment."""

    id: JobId
    state: str
    """A ``State``, or any other text written there."""
    num_failures: int
    num_resets: int
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    process_after: datetime | None
    last_heartbeat_at: datetime | None
    worker: str
    """The worker that claimed it last, without the claim's token, which is secret."""
    failure_message: str | None
    cancel: bool


def shown(values: tuple[Any, ...]) -> ShownRecord:
    """Of a row of ``FIELDS``; moments as datetimes or as microseconds since 1970."""
    row = dict(zip(FIELDS, values, strict=True))
    moments = {name: _moment(row[name]) for name in FIELDS if name.endswith(("_at", "_after"))}
    return ShownRecord(
        id=row["id"],
        state=str(row["state"]),
        num_failures=row["num_failures"] or 0,
        num_resets=row["num_resets"] or 0,
        worker=row["worker_hostname"] or "",
        failure_message=row["failure_message"],
        cancel=bool(row["cancel"]),
        **moments,
    )


def _moment(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    try:
        return None if value is None else datetime.fromtimestamp(value / 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
