"""Choosing jobs and claiming them, inside a write transaction: no other claim chooses at the same time.

Waiting jobs are a set of sorted streams (one for each task, and one of the heads of its serial keys); a claim merges
them and stops at its limit, so its cost depends on the jobs claimed alone. Looking for streams is a loose scan: a
million jobs that are not due, or of other tasks, or behind a busy serial key, are stepped over in one seek each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from heapq import merge
from typing import Any

from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.text import clean
from stowhand.protocols.store import Claim, ClaimRequest
from stowhand.stores.database.sqlite_connection import attempt
from stowhand.stores.passed_over import PassedOver
from stowhand.stores.sqlite.queue.cancellation import expire
from stowhand.stores.sqlite.queue.moment import micros
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.transaction import Transaction

Candidate = tuple[int, int, int, str | None]
"""(priority, run_at, id, serial): the order in which jobs are claimed."""

BELOW_ALL = -(2**31) - 1
"""A priority that comes before any."""

ABANDONED = 1
RECHECKS = 500
"""Heads looked at again in one transaction: a few milliseconds, so that other writers wait no longer."""
MAX_ROUNDS = 60
"""Choices in one transaction, while each job that was chosen is refused."""
REASON_LIMIT = 1000


def claim(tx: Transaction, request: ClaimRequest, passed: PassedOver) -> list[Claim[Job]] | None:
    """Take up to ``limit`` due jobs. The heads of the serial keys must be fresh: see ``refresh_heads``.
    Jobs that the file refuses to change are passed over.

    ``None``: first some were canceled that had expired, so the heads have changed: ask again.
    """
    if hindrance := tx.row("is_abandoned", token=request.token):
        if hindrance[0] == ABANDONED:
            return []
        if expire(tx):
            return None
    for _ in range(MAX_ROUNDS):
        chosen = choose(tx, request, {int(key) for key in passed.current()})
        rows, refused = _take(tx, request, chosen)
        is_store_at_fault = len(refused) > 1 and not rows
        for job_id, error in refused.items():
            passed.refused(str(job_id), clean(str(error), REASON_LIMIT), report=not is_store_at_fault)
        if is_store_at_fault:
            raise next(iter(refused.values()))
        if rows or not refused:
            return [_to_claim(row, request.token) for row in rows]
    return []


def _take(tx: Transaction, request: ClaimRequest, chosen: Sequence[int]) -> tuple[list[Any], dict[int, Exception]]:
    """Rows of those that are claimed, in order, and why the others are refused. After an error each is tried alone."""
    lease_until = tx.now.ticks + micros(request.lease)
    rows: dict[int, Any] = {}

    def take(*ids: int) -> None:
        taken = tx.rows("take", ids=as_json(ids), token=request.token, worker=request.worker, lease_until=lease_until)
        if len(taken) < len(ids):
            raise sqlite3.IntegrityError("a trigger keeps it as it is")
        rows.update((row[0], row) for row in taken)

    refused: dict[int, Exception] = {}
    if chosen and attempt(tx.raw, partial(take, *chosen)) is not None:
        for job_id in chosen:
            if (error := attempt(tx.raw, partial(take, job_id))) is not None:
                refused[job_id] = error
    return [rows[job_id] for job_id in chosen if job_id in rows], refused


def choose(tx: Transaction, request: ClaimRequest, passed: Container[int]) -> list[int]:
    """Ids in order, of each serial key one at most; without those that are passed over."""
    chosen: list[int] = []
    serials: set[str] = set()
    with closing(_candidates(tx, request)) as candidates:
        for _, _, job_id, serial in candidates:
            if job_id in passed:
                continue
            if serial is not None:
                if serial in serials:
                    continue
                serials.add(serial)
            chosen.append(job_id)
            if len(chosen) == request.limit:
                break
    return chosen


def _candidates(tx: Transaction, request: ClaimRequest) -> Generator[Candidate, None, None]:
    if request.limit < 1:
        return
    forbidden = as_json(request.forbidden_flags) if request.forbidden_flags else None
    if request.suspects:
        tasks = None if request.tasks is None else as_json(request.tasks)
        yield from tx.run("due_suspects", tasks=tasks, forbidden=forbidden or "[]")
        return
    paused = _paused_tasks(tx)
    free = _tasks(tx, request.tasks, "next_task", paused)
    serial = _tasks(tx, request.tasks, "next_serial_task", paused)
    streams = [*(_due(tx, task, forbidden) for task in free), *(_heads(tx, task, forbidden) for task in serial)]
    yield from streams[0] if len(streams) == 1 else merge(*streams)


def _paused_tasks(tx: Transaction) -> set[str]:
    return {*tx.column("pauses")}


def _tasks(tx: Transaction, wanted: tuple[str, ...] | None, step: str, paused: set[str]) -> list[str]:
    """The tasks that have something waiting: of those wanted, and not paused."""
    first = tx.row(step, task="")
    if first is None:
        return []
    if wanted is not None:
        return [task for task in dict.fromkeys(wanted) if task not in paused]
    found: list[str] = []
    while first is not None:
        found.append(first[0])
        first = tx.row(step, task=first[0])
    return [task for task in found if task not in paused]


def _due(tx: Transaction, task: str, forbidden: str | None) -> Iterator[Candidate]:
    """Due jobs of one task without a serial key, priority by priority; read lazily."""
    priority, statement = BELOW_ALL, "due" if forbidden is None else "due_and_allowed"
    while level := tx.row("next_level", task=task, priority=priority):
        priority, first_due = level
        if first_due <= tx.now.wall:
            yield from tx.run(statement, task=task, priority=priority, forbidden=forbidden)


def _heads(tx: Transaction, task: str, forbidden: str | None) -> Iterator[Candidate]:
    """The first due job of this task in each free serial key."""
    heads = tx.run("heads", task=task)
    if forbidden is None:
        yield from heads
        return
    allowed = (tx.row("first_allowed", task=task, forbidden=forbidden, serial=head[3]) for head in heads)
    yield from sorted(first for first in allowed if first is not None)


def refresh_heads(tx: Transaction) -> bool:
    """Look again at heads whose time has come, a bounded number; False when there may be more."""
    stale = tx.rows("heads_to_recheck", limit=RECHECKS)
    for serial, task in stale:
        _refresh_head(tx, serial, task)
    return len(stale) < RECHECKS


def _refresh_head(tx: Transaction, serial: str, task: str) -> None:
    priority, run_at, job_id, recheck_at = BELOW_ALL, None, None, None
    while job_id is None and (level := tx.row("next_serial_level", serial=serial, task=task, priority=priority)):
        priority, at, found = level
        if at <= tx.now.wall:
            run_at, job_id = at, found
        else:
            recheck_at = at if recheck_at is None else min(recheck_at, at)
    if job_id is None and recheck_at is None:
        tx.run("drop_head", serial=serial, task=task)
    else:
        head = {"priority": priority, "run_at": run_at, "id": job_id, "recheck_at": recheck_at}
        tx.run("set_head", serial=serial, task=task, **head)


def next_due(tx: Transaction, tasks: tuple[str, ...] | None) -> float | None:
    """Seconds until the first waiting job is due that is not paused, whether or not something else holds it up; or one
    of any task expires."""
    found = [
        due
        for task in _tasks(tx, tasks, "next_task", _paused_tasks(tx))
        for due in _levels(tx, "next_level", task=task)
    ]
    wanted = None if tasks is None else as_json(tasks)
    found += [known for known in tx.column("first_head", tasks=wanted) if known is not None]
    for serial, task in tx.run("unknown_heads", tasks=wanted):
        found += _levels(tx, "next_serial_level", serial=serial, task=task)
    found += [suspect for suspect in tx.column("first_suspect", tasks=wanted) if suspect is not None]
    found += tx.column("next_expiry")
    return max(min(found) - tx.now.wall, 0) / 1_000_000 if found else None


def _levels(tx: Transaction, step: str, **place: str) -> Iterator[int]:
    """When the first job of each priority is due."""
    priority = BELOW_ALL
    while level := tx.row(step, **place, priority=priority):
        priority = level[0]
        yield level[1]


def _to_claim(row: tuple[Any, ...], token: str) -> Claim[Job]:
    job = to_job(row[:-1])
    return Claim(Lease(job.id, token, row[-1]), job, job.task, job.attempts, job.max_attempts, job.serial, job.resets)
