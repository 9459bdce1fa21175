"""Choosing jobs and claiming them, inside a write transaction: no other claim chooses at the same time.

Waiting jobs are a set of sorted streams (one for each task, and one of the heads of its queues); a claim merges them
and stops at its limit, so its cost depends on the jobs claimed alone. Looking for streams is a loose scan: a million
jobs that are not due, or of other tasks, or behind a busy queue, are stepped over in one seek each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing
from heapq import merge
from typing import Any

from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import may_make_way
from stowhand.protocols.store import Claim, ClaimRequest
from stowhand.stores.sqlite.queue.moment import Moment, micros
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.statements import load

SQL = load("claim")

Candidate = tuple[int, int, int, str | None]
"""(priority, run_at, id, queue): the order in which jobs are claimed."""

BELOW_ALL = -(2**31) - 1
"""A priority that comes before any."""

RECHECKS = 500
"""Heads looked at again in one transaction: a few milliseconds, so that other writers wait no longer."""


def claim(connection: sqlite3.Connection, now: Moment, request: ClaimRequest) -> list[Claim[Job]]:
    """Take up to ``limit`` due jobs. The heads of the queues must be fresh: see ``refresh_heads``."""
    if connection.execute(SQL["is_abandoned"], {"token": request.token}).fetchone():
        return []
    chosen = choose(connection, now, request)
    if not chosen or (request.overdue is not None and not _may_make_way(connection, request.worker)):
        return []
    rows = connection.execute(
        SQL["take"],
        {
            "ids": as_json(chosen),
            "token": request.token,
            "worker": request.worker,
            "now": now.wall,
            "boot": now.boot,
            "lease_until": now.ticks + micros(request.lease),
        },
    ).fetchall()
    taken = {row[0]: row for row in rows}
    return [_to_claim(taken[job_id], request.token) for job_id in chosen]


def _may_make_way(connection: sqlite3.Connection, worker: str) -> bool:
    suspects, others = connection.execute(SQL["holders"], {"worker": worker}).fetchone()
    return may_make_way(suspects, others + 1)


def choose(connection: sqlite3.Connection, now: Moment, request: ClaimRequest) -> list[int]:
    """Ids in order, of each queue one at most."""
    chosen: list[int] = []
    queues: set[str] = set()
    with closing(_candidates(connection, now, request)) as candidates:
        for _, _, job_id, queue in candidates:
            if queue is not None:
                if queue in queues:
                    continue
                queues.add(queue)
            chosen.append(job_id)
            if len(chosen) == request.limit:
                break
    return chosen


def _candidates(connection: sqlite3.Connection, now: Moment, request: ClaimRequest) -> Generator[Candidate, None, None]:
    if request.limit < 1:
        return
    forbidden = as_json(request.forbidden_flags) if request.forbidden_flags else None
    if request.suspects:
        tasks = None if request.tasks is None else as_json(request.tasks)
        due = now.wall - micros(request.overdue or 0.0)
        given = {"now": due, "tasks": tasks, "forbidden": forbidden or "[]"}
        yield from connection.execute(SQL["due_suspects"], given)
        return
    paused = _paused(connection)
    free = _free_tasks(connection, request.tasks, paused)
    ready = [_due(connection, now, task, forbidden) for task in free]
    serial = [
        _heads(connection, now, task, forbidden)
        for task in _tasks(connection, request.tasks, "next_serial_task", paused)
    ]
    streams = ready + serial
    yield from streams[0] if len(streams) == 1 else merge(*streams)


def _paused(connection: sqlite3.Connection) -> set[str]:
    """Tasks; the empty name: jobs without a queue."""
    return {task for (task,) in connection.execute(SQL["pauses"])}


def _free_tasks(connection: sqlite3.Connection, wanted: tuple[str, ...] | None, paused: set[str]) -> list[str]:
    return [] if "" in paused else _tasks(connection, wanted, "next_task", paused)


def _tasks(connection: sqlite3.Connection, wanted: tuple[str, ...] | None, step: str, paused: set[str]) -> list[str]:
    """The tasks that have something waiting: of those wanted, and not paused."""
    first = connection.execute(SQL[step], {"task": ""}).fetchone()
    if first is None:
        return []
    if wanted is not None:
        return [task for task in dict.fromkeys(wanted) if task not in paused]
    found: list[str] = []
    while first is not None:
        found.append(first[0])
        first = connection.execute(SQL[step], {"task": first[0]}).fetchone()
    return [task for task in found if task not in paused]


def _due(connection: sqlite3.Connection, now: Moment, task: str, forbidden: str | None) -> Iterator[Candidate]:
    """Due jobs of one task without a queue, priority by priority; read lazily."""
    given: dict[str, Any] = {"task": task, "priority": BELOW_ALL, "now": now.wall, "forbidden": forbidden}
    statement = SQL["due"] if forbidden is None else SQL["due_and_allowed"]
    while level := connection.execute(SQL["next_level"], given).fetchone():
        given["priority"], first_due = level
        if first_due <= now.wall:
            yield from connection.execute(statement, given)


def _heads(connection: sqlite3.Connection, now: Moment, task: str, forbidden: str | None) -> Iterator[Candidate]:
    """The first due job of this task in each free queue."""
    heads = connection.execute(SQL["heads"], {"task": task})
    if forbidden is None:
        yield from heads
        return
    given = {"task": task, "now": now.wall, "forbidden": forbidden}
    allowed = (connection.execute(SQL["first_allowed"], {**given, "queue": head[3]}).fetchone() for head in heads)
    yield from sorted(first for first in allowed if first is not None)


def refresh_heads(connection: sqlite3.Connection, now: Moment) -> bool:
    """Look again at heads whose time has come, a bounded number; False when there may be more."""
    given = {"now": now.wall, "limit": RECHECKS}
    stale = connection.execute(SQL["heads_to_recheck"], given).fetchall()
    for queue, task in stale:
        _refresh_head(connection, now, queue, task)
    return len(stale) < RECHECKS


def _refresh_head(connection: sqlite3.Connection, now: Moment, queue: str, task: str) -> None:
    given: dict[str, Any] = {"queue": queue, "task": task, "priority": BELOW_ALL, "run_at": None, "id": None}
    recheck_at: int | None = None
    while level := connection.execute(SQL["next_serial_level"], given).fetchone():
        if level[1] <= now.wall:
            given["priority"], given["run_at"], given["id"] = level
            break
        given["priority"] = level[0]
        recheck_at = level[1] if recheck_at is None else min(recheck_at, level[1])
    if given["id"] is None and recheck_at is None:
        connection.execute(SQL["drop_head"], given)
    else:
        connection.execute(SQL["set_head"], {**given, "recheck_at": recheck_at})


def next_due(connection: sqlite3.Connection, now: Moment, tasks: tuple[str, ...] | None) -> float | None:
    """Seconds until the first waiting job is due that is not paused, whether or not something else holds it up."""
    found = [due for task in _free_tasks(connection, tasks, _paused(connection)) for due in _levels(connection, task)]
    given = {"tasks": None if tasks is None else as_json(tasks)}
    found += _serial_levels(connection, given)
    (suspect,) = connection.execute(SQL["first_suspect"], given).fetchone()
    if suspect is not None:
        found.append(suspect)
    return max(min(found) - now.wall, 0) / 1_000_000 if found else None


def _levels(connection: sqlite3.Connection, task: str) -> Iterator[int]:
    given = {"task": task, "priority": BELOW_ALL}
    while level := connection.execute(SQL["next_level"], given).fetchone():
        given["priority"] = level[0]
        yield level[1]


def _serial_levels(connection: sqlite3.Connection, given: dict[str, Any]) -> Iterator[int]:
    known = connection.execute(SQL["first_head"], given).fetchone()[0]
    if known is not None:
        yield known
    for queue, task in connection.execute(SQL["unknown_heads"], given):
        place = {"queue": queue, "task": task, "priority": BELOW_ALL}
        while level := connection.execute(SQL["next_serial_level"], place).fetchone():
            place["priority"] = level[0]
            yield level[1]


def _to_claim(row: tuple[Any, ...], token: str) -> Claim[Job]:
    job = to_job(row)
    return Claim(Lease(job.id, token, row[22]), job, job.task, job.attempts, job.max_attempts, job.queue, job.resets)
