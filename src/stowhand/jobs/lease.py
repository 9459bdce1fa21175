"""Leases, unreadable records, and reset jobs."""

from __future__ import annotations

from typing import Any

import msgspec

from stowhand.jobs.job import State

JobId = Any
"""``int`` in queue stores. In a user's table the row's key: ``int``, or ``str`` (a uuid as text)."""
Pair = tuple[JobId, str]
"""A job's id and the token of its claim. It identifies a lease when both sides know the epoch."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The proof of a claim."""

    job_id: JobId
    token: str
    """A uuid4 that the worker makes *before* the claim call, one per call."""
    epoch: int
    """Grows by 1 at every claim and reset, and never decreases, so that other systems can compare it."""

    @property
    def pair(self) -> Pair:
        return self.job_id, self.token


class ResetJob(msgspec.Struct, frozen=True):
    """A job that was reset because its worker was lost."""

    job_id: JobId
    task: str
    state: State
    """The state after the reset: ``queued``, ``failed`` or ``canceled``."""
    worker: str | None = None
    heartbeat_age: float | None = None
    """In a user's table: seconds since its last heartbeat. ``None`` without one, or if the store keeps none."""


class Unreadable(msgspec.Struct, frozen=True):
    """A claimed record that could not be read. Its attempt fails with that error and is retried like any other: the row
    may be repaired, or another version of the program may be able to read it. Other records of the claim are not
    affected."""

    error: str
    """The reason: one line, safe to store."""
