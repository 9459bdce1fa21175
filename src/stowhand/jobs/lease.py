"""What a claim brings: the proof of it, or a record that cannot be read; and the report of a job that was reset."""

from __future__ import annotations

from typing import Any

import msgspec

from stowhand.jobs.job import State

JobId = Any
"""``int`` in queue stores; in a user's table, its key: ``int`` or ``str`` (a uuid as text)."""
Pair = tuple[JobId, str]
"""A job's id and the token of its claim: by these a lease is named where both sides know the epoch."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The proof of a claim."""

    job_id: JobId
    token: str
    """A uuid4 made by the worker *before* the claim call; one per call."""
    epoch: int
    """+1 at every claim and every take-away, never set back: outside systems compare it."""

    @property
    def pair(self) -> Pair:
        return self.job_id, self.token


class ResetJob(msgspec.Struct, frozen=True):
    """A job that was taken back from a dead worker."""

    job_id: JobId
    task: str
    state: State
    """What it became: ``queued``, ``failed`` or ``canceled``."""
    worker: str | None = None
    heartbeat_age: float | None = None
    """Seconds since its last heartbeat, in a user's table; ``None``: there was none, or the store keeps none."""


class Unreadable(msgspec.Struct, frozen=True):
    """An error of the attempt, retried by the rules: "the record could not be read: …". The row or the view
    may be repaired, and another version of the program may be able to read it. Other records of the claim are not
    affected."""

    error: str
    """Why; one line, safe to store."""
