"""The rows of the memory store: what a job's row holds, where it lies, and the fence that guards it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import WAITING
from stowhand.protocols.operating import WorkerCard
from stowhand.protocols.queue_store import Entered, KnownItem
from stowhand.protocols.store import DAY, Refusal

LosesRetries = Literal["replaced", "removed"]
"""Why a running job lost its key: a newer job took it, or somebody removed it."""

Refuses = Callable[[int, State], str | None]
"""Stands for a CHECK or a trigger of an application's: why the job may not go to that state; ``None``: it may.
``processing``: its lease is to be renewed."""


@dataclass
class Row:
    """A job as a store keeps it: what everybody may see, and the lease that nobody else may."""

    id: int
    task: str
    payload: str
    queue: str | None
    priority: int
    run_at: datetime
    max_attempts: int
    max_resets: int | None
    key: str | None
    flags: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    state: State = State.QUEUED
    attempts: int = 0
    resets: int = 0
    revision: int = 0
    last_error: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: str | None = None
    cancel_requested: bool = False
    loses_retries: LosesRetries | None = None
    worker: str | None = None
    epoch: int = 0
    token: str | None = None
    lease_until: datetime | None = None
    settled_token: str | None = None
    """The lease under which it was last settled, so that a repeat is known as one."""

    def waits(self) -> bool:
        """It may be claimed when it is due."""
        return self.state in WAITING

    def job(self) -> Job:
        """What everybody may see."""
        return Job(**{name: getattr(self, name.removesuffix("_text")) for name in Job.__struct_fields__})


class Rows:
    """Live rows, and the history of what completed or was canceled."""

    def __init__(self, history: float | None = DAY, max_attempts: int | None = None) -> None:
        self.max_attempts = max_attempts
        """Of jobs that do not say."""
        self.live: dict[int, Row] = {}
        self.history: dict[int, Row] = {}
        self.kept = history
        """Seconds that the history is kept; ``None``: not at all."""
        self.known: dict[str, KnownItem] = {}
        """The items of crontabs, by identifier."""
        self.ledger: dict[tuple[str, datetime], Entered] = {}
        """Every tick that was scheduled: one line, and so one job, for each (identifier, moment)."""
        self.last_id = 0
        self.abandoned: set[str] = set()
        """Tokens that may never claim again."""
        self.paused: dict[str, datetime] = {}
        """Queues that are paused, and since when."""
        self.pauses: dict[str, datetime] = {}
        """Tasks that are; the empty name stands for the jobs without a queue."""
        self.roll: dict[str, tuple[WorkerCard, datetime, datetime]] = {}
        """Workers by name: what they say of themselves, when they started, when they were last seen."""
        self.refuses: Refuses = lambda job_id, state: None
        self.refused: list[Refusal] = []
        """By a heart, and not told yet."""
        self.news = False
        """Something became claimable: whoever sleeps should hear of it."""

    def is_paused(self, row: Row) -> bool:
        """Its queue, its task, or all jobs without a queue."""
        if row.queue is None and "" in self.pauses:
            return True
        return row.task in self.pauses or row.queue in self.paused

    def check(self, job_id: int, state: State) -> None:
        """Raises InvalidJob where the job may not go there."""
        why = self.refuses(job_id, state)
        if why is not None:
            raise InvalidJob(why)

    def may(self, job_id: int, state: State, doing: str) -> bool:
        """The same for a heart, which notes why not."""
        why = self.refuses(job_id, state)
        if why is not None:
            self.refused.append(Refusal(job_id, doing, why))
        return why is None

    def held(self, lease: Lease) -> Row | None:
        """The fence. The row, if this very lease still holds it; every write after a claim passes through here."""
        row = self.live.get(lease.job_id)
        if row is None or row.state is not State.PROCESSING or row.token != lease.token:
            return None
        return row

    def find(self, job_id: int) -> Row | None:
        """Live, or in the history."""
        return self.live.get(job_id) or self.history.get(job_id)

    def holder(self, key: str) -> Row | None:
        """The live row that a key names; there is at most one."""
        return next((row for row in self.live.values() if row.key == key), None)

    def running_queues(self) -> set[str]:
        """Named queues that a running job blocks."""
        return {row.queue for row in self.live.values() if row.queue is not None and row.state is State.PROCESSING}

    def leave_processing(self, row: Row, state: State) -> None:
        """No lease guards it any more; neither does it block its queue."""
        self.news = self.news or state in WAITING or row.queue is not None
        row.state = state
        row.token = row.lease_until = row.worker = None

    def finish(self, row: Row, state: State, now: datetime) -> None:
        """A terminal state. What failed stays live, because keys and people still address it."""
        self.leave_processing(row, state)
        row.finished_at = now
        if state is State.FAILED:
            return
        del self.live[row.id]
        if self.kept is not None:
            self.history[row.id] = row

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """An error leaves every row as it was."""
        live = {row.id: copy(row) for row in self.live.values()}
        history = {row.id: copy(row) for row in self.history.values()}
        known, ledger = dict(self.known), dict(self.ledger)
        try:
            yield
        except BaseException:
            self.live, self.history, self.known, self.ledger = live, history, known, ledger
            raise
