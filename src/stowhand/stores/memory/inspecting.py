"""Shows what there is in the memory store: jobs, counts, queues, workers, and why a job does not run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from stowhand.jobs.job import Job, State
from stowhand.protocols.figures import COUNTED, Amount, Figures, Pauses, Tallies
from stowhand.protocols.operating import (
    HELD_SHOWN,
    MAX_OVERDUE_JOBS,
    OVERDUE_SECONDS,
    AppVersion,
    Explanation,
    Held,
    QueueRow,
    TaskRow,
    WorkerRow,
)
from stowhand.protocols.queue_store import FAILURES_MOST, NEWEST, Failures, JobFilter
from stowhand.protocols.searching import ANY, NOTHING, Found, Search
from stowhand.protocols.throughput import MINUTE, MOST_TASKS, Period
from stowhand.protocols.validation import validate_filter, validate_id, validate_search, validate_step
from stowhand.stores.explaining import explain
from stowhand.stores.known_tasks import COUNTED_FOR, known_tasks
from stowhand.stores.memory import operating, searching, throughput
from stowhand.stores.memory.rows import Row, Rows, Transaction
from stowhand.stores.periods import periods

LISTED = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
"""What a list shows unless a state is named."""


class Inspector:
    """For people."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def list(self, wanted: JobFilter = NEWEST) -> Sequence[Job]:
        with self._transaction() as rows:
            wanted = validate_filter(wanted)
            ordered = sorted(rows.every(), key=lambda row: row.id, reverse=wanted.newest_first)
            return [row.job() for row in ordered if matches(row, wanted)][: wanted.limit]

    async def search(self, wanted: Search = ANY) -> Found:
        with self._transaction() as rows:
            valid = validate_search(wanted)
            return searching.search(rows, valid) if valid is not None else NOTHING

    async def failures(self) -> Sequence[Failures]:
        with self._transaction() as rows:
            failed = [(at(row), row.id, row) for row in rows.live.values() if row.state is State.FAILED]
            groups: dict[tuple[str, str | None], list[Row]] = {}
            for _, _, row in sorted(failed, reverse=True)[:FAILURES_MOST]:
                tries = rows.tries.get(row.id)
                groups.setdefault((row.task, tries[-1].error_class if tries else None), []).append(row)
            is_cut = len(failed) > FAILURES_MOST
            found = [
                Failures(*names, len(some), some[0].id, at(some[0]), some[0].last_error, at(some[-1]), is_cut)
                for names, some in groups.items()
            ]
            return sorted(found, key=lambda one: (one.jobs, one.latest_at, one.latest), reverse=True)

    async def counts(self) -> dict[State, int]:
        with self._transaction() as rows:
            states = [row.state for row in rows.every()]
            return {state: states.count(state) for state in State}

    async def amounts(self) -> dict[State, Amount]:
        return await self._amounts(COUNTED)

    async def _amounts(self, most: int) -> dict[State, Amount]:
        return {state: Amount.up_to(most, number) for state, number in (await self.counts()).items()}

    async def oldest_due(self) -> float:
        with self._transaction() as rows:
            waiting = (row for row in rows.live.values() if row.waits() and not rows.is_paused(row))
            waited = [(rows.now - row.run_at).total_seconds() for row in waiting]
            return max([0.0, *waited])

    async def overdue(self, tasks: Sequence[str] | None, seconds: float = OVERDUE_SECONDS) -> Sequence[int]:
        with self._transaction() as rows:
            busy = {row.queue for row in rows.live.values() if row.state is State.PROCESSING and row.queue is not None}
            found = sorted(
                (row.run_at, row.id)
                for row in rows.live.values()
                if row.waits() and not rows.is_paused(row) and row.queue not in busy
                if (tasks is None or row.task in tasks) and (rows.now - row.run_at).total_seconds() > seconds
            )
            return [job_id for _, job_id in found[:MAX_OVERDUE_JOBS]]

    async def pauses(self) -> Pauses:
        with self._transaction() as rows:
            return operating.pauses(rows)

    async def queues(self, *, paused: bool = False) -> Sequence[QueueRow]:
        """By name: those with live jobs, and the paused ones."""
        with self._transaction() as rows:
            names = {row.queue for row in rows.live.values() if row.queue is not None and not paused}
            return [operating.queue_row(rows, name) for name in sorted(names | rows.paused_queues.keys())]

    async def workers(self) -> Sequence[WorkerRow]:
        with self._transaction() as rows:
            return operating.workers(rows)

    async def held(self, each: int = HELD_SHOWN) -> Sequence[Held]:
        with self._transaction() as rows:
            return operating.held(rows, each)

    async def app_versions(self) -> Sequence[AppVersion]:
        with self._transaction() as rows:
            return [AppVersion(version, since) for version, since, _ in rows.app_versions]

    async def tasks(self) -> Sequence[TaskRow]:
        by_task = Tallies()
        with self._transaction() as rows:
            for row in rows.live.values():
                count(by_task, row.task, row, rows)
            now = rows.now.timestamp()
            counted = [task for _, _, task, _ in throughput.read(rows, now - COUNTED_FOR, now + MINUTE, None)]
            return known_tasks(by_task.live(MOST_TASKS), counted, operating.workers(rows), operating.pauses(rows))

    async def explain(self, job_id: int) -> Explanation | None:
        with self._transaction() as rows:
            row = rows.find(validate_id(job_id))
            return None if row is None else explain(operating.facts(rows, row))

    async def throughput(
        self, since: datetime, until: datetime, *, step: float = 60.0, task: str | None = None, by_task: bool = True
    ) -> Sequence[Period]:
        length = validate_step(since, until, step)
        with self._transaction() as rows:
            found = throughput.read(rows, since.timestamp(), until.timestamp(), task)
            return periods(found, length, by_task=by_task)

    async def figures(self, most: int = COUNTED) -> Figures:
        """Live jobs are counted exactly, whatever ``most`` is."""
        states = await self._amounts(most)
        by_task, by_queue, by_worker = Tallies(), Tallies(), Tallies()
        with self._transaction() as rows:
            for row in rows.live.values():
                worker = row.worker if row.state is State.PROCESSING else None
                for tallies, name in ((by_task, row.task), (by_queue, row.queue), (by_worker, worker)):
                    if name is not None:
                        count(tallies, name, row, rows)
            return Figures(
                states=states,
                tasks=by_task.live(),
                queues=by_queue.live(),
                workers=by_worker.live(),
                paused=dict(sorted(rows.paused_queues.items())),
                pauses=operating.pauses(rows),
            )


def count(tallies: Tallies, name: str, row: Row, rows: Rows) -> None:
    """A live job, under this name."""
    tallies.add(name, row.state.value, Amount(1))
    tallies.add(name, "due", Amount(int(row.waits() and row.run_at <= rows.now)))


def matches(row: Row, wanted: JobFilter) -> bool:
    """Whether it is one of the jobs to list."""
    below = wanted.newest_first and wanted.after > 0
    return (
        (row.id < wanted.after if below else wanted.newest_first or row.id > wanted.after)
        and row.state in (wanted.states or LISTED)
        and wanted.task in (None, row.task)
        and wanted.queue in (None, row.queue)
        and wanted.key in (None, row.key)
        and wanted.worker in (None, row.worker)
        and (wanted.error is None or wanted.error.lower() in (row.last_error or "").lower())
        and (wanted.since is None or at(row) >= wanted.since)
        and (wanted.until is None or at(row) < wanted.until)
    )


def at(row: Row) -> datetime:
    """When it ended; where it has not: when it was enqueued."""
    return row.finished_at or row.created_at
