"""The proof of a claim, and what is known of a job whose lease ended without it."""

from __future__ import annotations

from typing import Any

import msgspec

from stowhand.jobs.job import State

JobId = Any
"""``int`` in the stores that we own; in a user's table, by its key, ``int`` or ``str`` (a uuid as text)."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The proof of a claim."""

    job_id: JobId
    token: str
    """A uuid4 made by the worker *before* the claim call; one per call."""
    epoch: int
    """+1 at every claim and every take-away, never reset: what outside systems compare."""


class ResetJob(msgspec.Struct, frozen=True):
    """A job taken from a worker that is gone."""

    job_id: JobId
    task: str
    state: State
    """What it became: ``queued``, ``failed`` or ``canceled``."""
    worker: str | None = None
    heartbeat_age: float | None = None
    """Seconds since its last heartbeat, by a table's own column; ``None``: there was none, or the store keeps none."""
