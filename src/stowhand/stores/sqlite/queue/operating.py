"""What operators ask of a file: pause, purge, who works, why a job does not run. Each inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from stowhand.jobs.job import State
from stowhand.protocols.operating import (
    MOST_AHEAD,
    Explanation,
    QueueChange,
    QueueRow,
    TaskChange,
    WorkerCard,
    WorkerRow,
    worker_row,
)
from stowhand.stores.explaining import Busy, Facts, Holder, claim_scope, explain
from stowhand.stores.sqlite.queue import counting, inspector
from stowhand.stores.sqlite.queue.moment import Moment, micros, to_datetime, to_micros
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.statements import load

SQL = load("operations")
PURGE_AT_ONCE = 2000
"""Rows deleted in one transaction: well under 50 ms, so that other writers get their turn."""
BELOW_ALL = -(2**63)
"""A moment before any."""

_names = msgspec.json.Decoder(tuple[str, ...])


def pause(connection: sqlite3.Connection, now: Moment, queue: str) -> QueueChange:
    """Its heads are busy from now on; a running job goes on."""
    return QueueChange(queue, connection.execute(SQL["pause"], {"queue": queue, "now": now.wall}).rowcount > 0)


def resume(connection: sqlite3.Connection, queue: str) -> QueueChange:
    """Its heads are as free as its running job leaves them."""
    return QueueChange(queue, connection.execute(SQL["resume"], {"queue": queue}).rowcount > 0)


def pause_task(connection: sqlite3.Connection, now: Moment, task: str) -> TaskChange:
    """The empty name: jobs without a queue."""
    done = connection.execute(SQL["pause_task"], {"task": task, "now": now.wall})
    return TaskChange(task or None, done.rowcount > 0)


def resume_task(connection: sqlite3.Connection, task: str) -> TaskChange:
    """The empty name: jobs without a queue."""
    return TaskChange(task or None, connection.execute(SQL["resume_task"], {"task": task}).rowcount > 0)


def retry_failed(connection: sqlite3.Connection, now: Moment, job_ids: Sequence[int]) -> list[int]:
    """Only those that have failed; their ids."""
    given = {"ids": as_json(job_ids), "now": now.wall}
    return sorted(job_id for (job_id,) in connection.execute(SQL["retry_failed"], given).fetchall())


def queues(connection: sqlite3.Connection, now: Moment) -> list[QueueRow]:
    """By name."""
    return [
        QueueRow(
            name=name,
            paused_since=None if since is None else to_datetime(since),
            held_by=held_by,
            waiting=waiting,
            due=due,
            running=running,
            failed=failed,
        )
        for name, since, held_by, waiting, due, running, failed in connection.execute(SQL["queues"], {"now": now.wall})
    ]


def workers(connection: sqlite3.Connection, now: Moment) -> list[WorkerRow]:
    """By name."""
    return [_worker(row, now) for row in connection.execute(SQL["workers"])]


def worker_seen(connection: sqlite3.Connection, now: Moment, card: WorkerCard) -> None:
    """Enter it in the list of workers, or note that it still runs."""
    tasks = None if card.tasks is None else as_json(card.tasks)
    flags = None if card.forbidden_flags is None else as_json(card.forbidden_flags)
    given = msgspec.structs.asdict(card) | {"tasks": tasks, "forbidden_flags": flags, "now": now.wall}
    connection.execute(SQL["worker_seen"], given)


def worker_gone(connection: sqlite3.Connection, name: str) -> None:
    """Remove it from the list of workers."""
    connection.execute(SQL["worker_gone"], {"name": name})


def explain_job(connection: sqlite3.Connection, now: Moment, job_id: int) -> Explanation | None:
    """All facts of one moment."""
    job = inspector.get(connection, job_id)
    if job is None:
        return None
    found = connection.execute(SQL["circumstances"], {"id": job.id}).fetchone()
    moment = to_datetime(now.wall)
    if found is None:  # it is over
        return explain(Facts(job=job, now=moment))
    boot, until, paused, holder, worker, since, its_boot, its_until = found
    place = {"queue": job.queue, "priority": job.priority, "run_at": to_micros(job.run_at), "id": job.id}
    registered, pauses = workers(connection, now), counting.pauses(connection)
    ahead = 0
    if (scope := claim_scope(job, registered, pauses)) is not None:
        tasks = None if scope.tasks is None else as_json(scope.tasks)
        bound = {"now": now.wall, "most": MOST_AHEAD + 1, "tasks": tasks, "forbidden": as_json(scope.forbidden)}
        (ahead,) = connection.execute(SQL["ahead"], place | bound).fetchone()
    return explain(
        Facts(
            job=job,
            now=moment,
            lease_until=_lease_end(now, boot, until),
            paused_since=None if paused is None else to_datetime(paused),
            pauses=pauses,
            holder=None
            if holder is None
            else Holder(holder, worker, to_datetime(since), _lease_end(now, its_boot, its_until)),
            ahead=ahead,
            workers=registered,
            busy={
                worker: Busy(jobs, oldest, task, to_datetime(since))
                for worker, jobs, oldest, task, since in connection.execute(SQL["busy"])
            },
        )
    )


def _lease_end(now: Moment, boot: str | None, until: int | None) -> datetime | None:
    """By the wall clock. One of another boot ended with that boot, at an unknown time."""
    if until is None:
        return None
    return to_datetime(now.wall + (until - now.ticks) if boot == now.boot else 0)


def purge(
    connection: sqlite3.Connection, now: Moment, state: State, age: float, since: int = BELOW_ALL
) -> tuple[int, int | None]:
    """A page of one state: how many were deleted, and where the next page begins; ``None``: that was the last."""
    given = {"state": state.value, "since": since, "before": now.wall - micros(age), "limit": PURGE_AT_ONCE}
    name = "purge_failed" if state is State.FAILED else "purge_history"
    gone = [at for (at,) in connection.execute(SQL[name], given).fetchall()]
    return len(gone), max(gone) if len(gone) == PURGE_AT_ONCE else None


def purgeable(connection: sqlite3.Connection, now: Moment, state: State, age: float) -> int:
    """How many would be deleted."""
    name = "purgeable_failed" if state is State.FAILED else "purgeable_history"
    (number,) = connection.execute(SQL[name], {"state": state.value, "before": now.wall - micros(age)}).fetchone()
    return int(number)


def _worker(row: Sequence[Any], now: Moment) -> WorkerRow:
    name, host, pid, version, tasks, concurrency, stopping, flags, started_at, seen_at = row
    card = WorkerCard(
        name=name,
        host=host,
        pid=pid,
        version=version,
        tasks=None if tasks is None else _names.decode(tasks),
        concurrency=concurrency,
        stopping=bool(stopping),
        forbidden_flags=None if flags is None else _names.decode(flags),
    )
    return worker_row(card, to_datetime(started_at), to_datetime(seen_at), to_datetime(now.wall))
