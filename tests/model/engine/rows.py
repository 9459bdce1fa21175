"""Everything the model keeps: the rows of jobs with the fence that guards them, and what lies beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Literal, NamedTuple

from stowhand.jobs.failed_attempts import (
    MAX_ERROR_CLASS_CHARACTERS,
    MAX_KEPT_ATTEMPTS,
    AttemptEnd,
    FailedAttempt,
    last_frames,
)
from stowhand.jobs.job import DEFAULT_MAX_ATTEMPTS, Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import WAITING_STATES
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.protocols.queue_store import KnownItem, LedgerEntry
from stowhand.protocols.store import SECONDS_PER_DAY

IN_TURN = attrgetter("priority", "run_at", "id")
"""The order in which rows are claimed."""

LosesRetries = Literal["replaced", "removed"]
"""Why a running job lost its key: a newer job took it, or a caller removed it."""


@dataclass
class Row:
    """A job as a store keeps it: what a ``Job`` shows, and the lease, which stays inside."""

    id: int
    task: str
    payload: str
    serial: str | None
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
    last_worker: str | None = None
    progress: float | None = None
    progress_text: str | None = None
    round: int = 1
    """Of the entries that its attempts will leave."""
    replaced: int | None = None
    """The revision at which another job last took its place under its key."""
    on_failure: NewJob | None = None
    expires_at: datetime | None = None
    """Then it is canceled, unless it is claimed before; ``None`` once an attempt has begun."""
    queue: str = DEFAULT_QUEUE
    parent_id: None = None
    """Workflows are not modelled."""
    waits_for: None = None
    settled_token: str | None = None
    """The lease under which it was last settled, so that a repeat is known as one."""

    def waits(self) -> bool:
        """It may be claimed when it is due."""
        return self.state in WAITING_STATES

    def lease(self) -> Lease:
        """Of a row that is processing."""
        return Lease(self.id, str(self.token), self.epoch)

    def job(self) -> Job:
        """Without the lease."""
        fields = zip(Job.__struct_fields__, Job.__struct_encode_fields__, strict=True)
        return Job(**{name: getattr(self, said) for name, said in fields})


class Taken(NamedTuple):
    """By a job that was enqueued with ``unique_period``, for that long."""

    job_id: int
    enqueued_at: datetime
    until: datetime


class Rows:
    """The one state of a model. Jobs are live, or in the history once they completed or were canceled."""

    def __init__(self, history: float | None = SECONDS_PER_DAY, max_attempts: int | None = None) -> None:
        self.max_attempts = max_attempts or DEFAULT_MAX_ATTEMPTS
        """Of jobs that do not set it."""
        self.retention = history
        """Seconds that the history is kept; ``None``: not at all."""
        self.now = datetime.min.replace(tzinfo=UTC)
        """The time of the transaction that is open, or was last."""
        self.live: dict[int, Row] = {}
        self.history: dict[int, Row] = {}
        self.tries: dict[int, list[FailedAttempt]] = {}
        """By job, live or in the history: what its last attempts left that did not complete."""
        self.last_id = 0
        self.expiring: set[int] = set()
        """Ids of those that have, or had, a moment at which they expire."""
        self.uniques: dict[str, Taken] = {}
        """By key: which job took it for a period, also where it has completed."""
        self.abandoned: set[str] = set()
        """Tokens that may never claim again."""

        self.known: dict[str, KnownItem] = {}
        """The items of crontabs, by identifier."""
        self.ledger: dict[tuple[str, datetime], LedgerEntry] = {}
        """Every tick that was scheduled: one entry, and so one job, for each (identifier, moment)."""
        self.paused_serials: dict[str, datetime] = {}
        self.paused_queues: set[str] = set()
        """By name, since when."""

    def every(self) -> list[Row]:
        """Live, and in the history."""
        return [*self.live.values(), *self.history.values()]

    def insert(self, row: Row) -> None:
        self.last_id = row.id
        self.live[row.id] = row

    def revive(self, row: Row) -> bool:
        """Out of the history, with its key unless another job has taken it; False if one has."""
        keeps_key = row.key is None or self.holder(row.key) is None
        if not keeps_key:
            row.key = None
        self.live[row.id] = self.history.pop(row.id)
        return keeps_key

    def forget(self, rows: Iterable[Row]) -> None:
        """Delete them, live or in the history."""
        for row in rows:
            if row.state is not State.COMPLETED:
                self.free_key(row)
            for kept in (self.live, self.history, self.tries):
                kept.pop(row.id, None)

    def free_key(self, row: Row) -> None:
        """It did not complete: whatever is left of the period for which it took its key, another job may take it."""
        for key in [key for key, taken in self.uniques.items() if taken.job_id == row.id]:
            del self.uniques[key]

    def is_paused(self, row: Row) -> bool:
        """Its serial key or its queue is."""
        return row.serial in self.paused_serials or row.queue in self.paused_queues

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
        """The live row with this key; there is at most one."""
        return next((row for row in self.live.values() if row.key == key), None)

    def running(self) -> list[Row]:
        """In processing, in id order."""
        return sorted((row for row in self.live.values() if row.token is not None), key=attrgetter("id"))

    def running_serials(self) -> set[str | None]:
        """Serial keys that a running job blocks."""
        return {row.serial for row in self.running()}

    def end_lease(self, row: Row, state: State) -> None:
        """To this state; the row no longer blocks its serial key."""
        row.state = state
        row.token = row.lease_until = row.worker = None

    def finish(self, row: Row, state: State, at: datetime | None = None) -> None:
        """In a terminal state. A failed job stays live: keys and administration still address it."""
        self.end_lease(row, state)
        row.finished_at = at or self.now
        row.progress = row.progress_text = None
        if state is State.FAILED:
            if row.loses_retries is not None:
                row.attempts = row.max_attempts
            return
        if state is State.CANCELED:
            self.free_key(row)
        del self.live[row.id]
        if self.retention is not None:
            self.history[row.id] = row
        else:
            self.tries.pop(row.id, None)

    def keep_try(self, row: Row, outcome: AttemptEnd, error_class: str | None, error: str | None) -> None:
        """Of a row that its end has not changed yet."""
        entry = FailedAttempt(
            number=row.attempts,
            round=row.round,
            worker=row.worker,
            started_at=None if row.worker is None else row.started_at,
            ended_at=self.now,
            outcome=outcome,
            error_class=error_class and error_class[:MAX_ERROR_CLASS_CHARACTERS],
            error=error and last_frames(error),
        )
        self.tries[row.id] = [*self.tries.get(row.id, ()), entry][-MAX_KEPT_ATTEMPTS:]

    def begin_round(self, row: Row) -> None:
        """It is tried anew, by hand or because of its key. Only where it has entries is that another round."""
        row.round = max((one.round for one in self.tries.get(row.id, ())), default=0) + 1

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """An error undoes every change to jobs and the timetable."""
        live = {row.id: copy(row) for row in self.live.values()}
        history = {row.id: copy(row) for row in self.history.values()}
        known, ledger, tries = dict(self.known), dict(self.ledger), dict(self.tries)
        uniques = dict(self.uniques)
        try:
            yield
        except BaseException:
            self.live = live
            self.history = history
            self.known = known
            self.ledger = ledger
            self.tries = tries
            self.uniques = uniques
            raise


Transaction = Callable[[], AbstractContextManager[Rows]]
"""The rows, for one caller at a time."""
