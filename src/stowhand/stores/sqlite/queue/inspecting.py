"""Shows what there is: jobs, counts, queues, workers, and why a job does not run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Any

import msgspec

from stowhand.jobs.job import Job, State
from stowhand.protocols.figures import COUNTED, Amount, Figures, Pauses
from stowhand.protocols.operating import (
    HELD_SHOWN,
    MAX_OVERDUE_JOBS,
    MOST_AHEAD,
    OVERDUE_SECONDS,
    AppVersion,
    Explanation,
    Held,
    QueueRow,
    TaskRow,
    WorkerCard,
    WorkerRow,
    worker_row,
)
from stowhand.protocols.queue_store import FAILURES_MOST, NEWEST, Failures, JobFilter
from stowhand.protocols.searching import ANY, NOTHING, Found, Search
from stowhand.protocols.throughput import MINUTE, Period
from stowhand.protocols.validation import validate_filter, validate_search, validate_step
from stowhand.stores.explaining import Busy, Facts, Holder, claim_scope, explain
from stowhand.stores.known_tasks import COUNTED_FOR, known_tasks
from stowhand.stores.periods import periods
from stowhand.stores.sqlite.queue import counting, searching, throughput
from stowhand.stores.sqlite.queue.connections import Connections
from stowhand.stores.sqlite.queue.moment import Moment, micros, to_datetime, to_micros
from stowhand.stores.sqlite.queue.producing import get
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.transaction import Transaction

ABOVE_ALL = 2**63 - 1
LISTED = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
"""What a list shows unless a state is named."""

_decoder = msgspec.json.Decoder(tuple[str, ...])


class Inspector:
    """Reads, which wait for no write."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        """In id order, rising or falling."""
        wanted = validate_filter(wanted)
        newest = wanted.newest_first
        given = msgspec.structs.asdict(wanted) | {
            "states": as_json(wanted.states or LISTED),
            "since": None if wanted.since is None else to_micros(wanted.since),
            "until": None if wanted.until is None else to_micros(wanted.until),
            "after": wanted.after or (ABOVE_ALL if newest else 0),
        }
        kept = ["live", "past"] if set(wanted.states) & {State.COMPLETED, State.CANCELED} else ["live"]

        def find(tx: Transaction) -> Sequence[Job]:
            parts = (tx.run(f"{'newest' if newest else 'list'}_{table}", **given) for table in kept)
            rows = merge(*parts, key=lambda row: row[0], reverse=newest)
            return [to_job(row) for row in islice(rows, wanted.limit)]

        return await self._connections.read(find)

    async def search(self, wanted: Search = ANY) -> Found:
        """Piece by piece, beside all other reads."""
        valid = validate_search(wanted)
        return NOTHING if valid is None else await self._connections.read_all(lambda tx: searching.search(tx, valid))

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

    async def workers(self) -> Sequence[WorkerRow]:
        """By name."""
        return await self._connections.read(_workers)

    async def held(self, each: int = HELD_SHOWN) -> Sequence[Held]:
        """By worker."""
        return await self._connections.read(lambda tx: counting.held(tx, each))

    async def app_versions(self) -> Sequence[AppVersion]:
        """By time."""
        found = await self._connections.read(lambda tx: tx.rows("app_versions"))
        return [AppVersion(version, to_datetime(since)) for version, since in found]

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
