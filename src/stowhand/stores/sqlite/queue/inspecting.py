"""Shows what there is: jobs, counts, queues, workers, and why a job does not run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from stowhand.jobs.job import State
from stowhand.protocols.figures import COUNTED, Amount, Figures, Pauses
from stowhand.protocols.operating import (
    MAX_OVERDUE_JOBS,
    MOST_AHEAD,
    OVERDUE_SECONDS,
    Explanation,
    QueueRow,
    TaskRow,
    WorkerCard,
    WorkerRow,
    worker_row,
)
from stowhand.protocols.queue_store import FAILURES_MOST, Failures
from stowhand.protocols.throughput import MINUTE, Period
from stowhand.protocols.validation import validate_step
from stowhand.stores.explaining import Busy, Facts, Holder, claim_scope, explain
from stowhand.stores.kernel.inspector import Inspector as KernelInspector
from stowhand.stores.known_tasks import COUNTED_FOR, known_tasks
from stowhand.stores.periods import periods
from stowhand.stores.sqlite.queue import counting, throughput
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import Moment, micros, to_datetime, to_micros
from stowhand.stores.sqlite.queue.producing import get
from stowhand.stores.sqlite.queue.reader import Reader
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction

_decoder = msgspec.json.Decoder(tuple[str, ...])


class Inspector(KernelInspector):
    """Reads, which wait for no write."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(Reader(connections))
        self._connections = connections

    async def failures(self) -> Sequence[Failures]:
        """By the last entry of each."""
        found, some = await self._connections.read_all(
            lambda tx: (tx.rows("failures", most=FAILURES_MOST), tx.row("some_failed", most=FAILURES_MOST + 1))
        )
        is_cut = some[0] > FAILURES_MOST
        return [
            Failures(task, kind, jobs, latest, to_datetime(at), error, to_datetime(since), is_cut)
            for task, kind, jobs, latest, at, error, since, _ in found
        ]

    async def counts(self) -> dict[State, int]:
        """Every state is a key."""
        found = dict(await self._connections.read_all(lambda tx: tx.rows("counts")))
        return {state: found.get(state.value, 0) for state in State}

    async def amounts(self) -> dict[State, Amount]:
        """Every state is a key."""
        return await self._connections.read_all(counting.amounts)

    async def oldest_due(self) -> float:
        """Seconds for which the job that is due longest could have run."""

        def find(tx: Transaction) -> float:
            first = tx.row("due_heads", before=tx.now.wall, tasks=None, held=True, limit=1)
            return 0.0 if first is None else (tx.now.wall - first[1]) / 1_000_000

        return await self._connections.read(find)

    async def overdue(self, tasks: Sequence[str] | None, seconds: float = OVERDUE_SECONDS) -> Sequence[int]:
        """Ids, the oldest first."""
        wanted = None if tasks is None else as_json(tasks)

        def find(tx: Transaction) -> Sequence[int]:
            before = tx.now.wall - micros(seconds)
            heads = tx.run("due_heads", before=before, tasks=wanted, held=False, limit=MAX_OVERDUE_JOBS)
            return [job_id for job_id, _ in heads]

        return await self._connections.read(find)

    async def queues(self, *, paused: bool = False) -> Sequence[QueueRow]:
        """By name."""

        def find(tx: Transaction) -> Sequence[QueueRow]:
            if paused and not tx.rows("paused"):
                return []
            return [
                QueueRow(name, _moment(since), held_by, waiting, due, running, failed, _moment(due_since))
                for name, since, held_by, waiting, due, running, failed, due_since in tx.rows(
                    "queues", most=FAILURES_MOST
                )
                if since is not None or not paused
            ]

        return await self._connections.read_all(find)

    async def figures(self, most: int = COUNTED) -> Figures:
        """By indexes."""
        return await self._connections.read_all(lambda tx: counting.figures(tx, most))

    async def throughput(
        self, since: datetime, until: datetime, *, step: float = 60.0, task: str | None = None, by_task: bool = True
    ) -> Sequence[Period]:
        """What ended in that time, by time and task."""
        length = validate_step(since, until, step)
        return await self._connections.read_all(
            lambda tx: periods(throughput.read(tx, since, until, task), length, by_task=by_task)
        )

    async def pauses(self) -> Pauses:
        """By name."""
        return await self._connections.read(counting.pauses)

    async def tasks(self) -> Sequence[TaskRow]:
        """By name."""

        def find(tx: Transaction) -> Sequence[TaskRow]:
            now = to_datetime(tx.now.wall)
            span = now - timedelta(seconds=COUNTED_FOR), now + timedelta(seconds=MINUTE)
            counted = throughput.read(tx, *span, None)
            names = {task for _, _, task, _ in counted}
            return known_tasks(counting.standing(tx), names, _workers(tx), counting.pauses(tx))

        return await self._connections.read_all(find)

    async def explain(self, job_id: int) -> Explanation | None:
        """Why it is not running: all facts of one moment."""
        return await self._connections.read(lambda tx: _explain(tx, job_id))


def _explain(tx: Transaction, job_id: int) -> Explanation | None:
    job = get(tx, job_id)
    if job is None:
        return None
    found = tx.row("circumstances", id=job.id)
    now = to_datetime(tx.now.wall)
    if found is None:  # it is over
        return explain(Facts(job=job, now=now))
    boot, until, paused, holder, worker, since, its_boot, its_until, expires_at, on_failure = found
    workers, pauses = _workers(tx), counting.pauses(tx)
    ahead = 0
    if (scope := claim_scope(job, workers, pauses)) is not None:
        (ahead,) = tx.row(
            "ahead",
            queue=job.queue,
            priority=job.priority,
            run_at=to_micros(job.run_at),
            id=job.id,
            most=MOST_AHEAD + 1,
            tasks=None if scope.tasks is None else as_json(scope.tasks),
            forbidden=as_json(scope.forbidden),
        )
    its_end = _lease_end(tx.now, its_boot, its_until)
    return explain(
        Facts(
            job=job,
            now=now,
            lease_until=_lease_end(tx.now, boot, until),
            paused_since=None if paused is None else to_datetime(paused),
            pauses=pauses,
            holder=None if holder is None else Holder(holder, worker, to_datetime(since), its_end),
            ahead=ahead,
            workers=workers,
            busy={name: Busy(jobs, oldest, task, to_datetime(at)) for name, jobs, oldest, task, at in tx.run("busy")},
            expires_at=None if expires_at is None else to_datetime(expires_at),
            on_failure=on_failure,
        )
    )


def _lease_end(now: Moment, boot: str | None, until: int | None) -> datetime | None:
    """By the wall clock. One of another boot ended with that boot, at an unknown time."""
    if until is None:
        return None
    return to_datetime(now.wall + (until - now.ticks) if boot == now.boot else 0)


def _workers(tx: Transaction) -> list[WorkerRow]:
    return [_worker(row, tx.now) for row in tx.run("workers")]


def _worker(row: Sequence[Any], now: Moment) -> WorkerRow:
    name, host, pid, version, tasks, concurrency, stopping, flags, app_version, threads, blocked, *moments = row
    card = WorkerCard(
        *(name, host, pid, version, _names(tasks), concurrency, bool(stopping), _names(flags), app_version),
        abandoned_threads=threads,
        blocked=bool(blocked),
    )
    started_at, seen_at = moments
    return worker_row(card, to_datetime(started_at), to_datetime(seen_at), to_datetime(now.wall))


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else _decoder.decode(text)


def _moment(stored: int | None) -> datetime | None:
    return None if stored is None else to_datetime(stored)
