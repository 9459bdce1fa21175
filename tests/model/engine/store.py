"""The specification as an example: a queue in dicts, which the stores are compared with.

The rules are plain functions over the one state, ``rows.Rows``: ``enqueueing``, ``leasing`` (claim, settle, beat,
reset), ``acting`` (what each call does in each state), ``timetable`` and ``operating``. It shares no code with the
stores, is for one thread, and has only what the comparisons use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import datetime

from stowhand.clock import wall_clock
from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.jobs.queues import ALL_QUEUES, Queues
from stowhand.protocols.store import Capabilities, Claim, ClaimRequest, Reply, StoreOptions
from tests.model.engine import leasing
from tests.model.engine.acting import Administrator
from tests.model.engine.enqueueing import Producer
from tests.model.engine.heartbeats import ModelHeartbeats
from tests.model.engine.inspecting import Inspector
from tests.model.engine.operating import Operator
from tests.model.engine.results import Results
from tests.model.engine.rows import Row, Rows
from tests.model.engine.timetable import Timetable


class ModelStore:
    """Jobs in dicts."""

    capabilities = Capabilities(has_queues=True)

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._rows = Rows(options.history, options.max_attempts)
        self.jobs = Producer(self.transaction)
        self.inspect = Inspector(self.transaction)
        self.admin = Administrator(self.transaction)
        self.operate = Operator(self.transaction)
        self.timetable = Timetable(self.transaction)
        self.results = Results(self.transaction)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def claim(self, request: ClaimRequest) -> Sequence[Claim[Job]]:
        with self.transaction() as rows:
            return [claimed(row) for row in leasing.claim(rows, request)]

    async def settle(self, batch: Sequence[tuple[Lease, Settlement]], *, repeat: bool = False) -> Sequence[Reply]:
        with self.transaction() as rows:
            return [leasing.settle(rows, lease, what, repeat=repeat) for lease, what in batch]

    async def next_due(self, tasks: tuple[str, ...] | None, queues: Queues = ALL_QUEUES) -> float | None:
        with self.transaction() as rows:
            waiting = [row for row in rows.live.values() if row.waits() and (tasks is None or row.task in tasks)]
            due = [row.run_at for row in waiting if row.queue in queues and not rows.is_paused(row)]
            if rows.expiring:
                due += leasing.expiries(rows)
            return max((min(due) - rows.now).total_seconds(), 0.0) if due else None

    def heartbeats(self) -> ModelHeartbeats:
        return ModelHeartbeats(self.transaction)

    def rows(self) -> Sequence[Row]:
        """Copies of all rows, those in the history too, leases included."""
        with self.transaction() as rows:
            return [copy(row) for row in rows.every()]

    @contextmanager
    def transaction(self) -> Iterator[Rows]:
        """The rows, at this moment."""
        self._rows.now = self._now()
        yield self._rows

    def _now(self) -> datetime:
        return wall_clock() if self._options.pinned is None else self._options.pinned()


def claimed(row: Row) -> Claim[Job]:
    """What a worker receives."""
    lease = Lease(row.id, str(row.token), row.epoch)
    return Claim(lease, row.job(), row.task, row.attempts, row.max_attempts, row.serial, row.resets)
