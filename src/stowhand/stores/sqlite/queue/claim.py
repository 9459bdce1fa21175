"""Claims of jobs inside a write transaction, so that only one claim chooses at a time.

Waiting jobs form sorted streams: one for each task in each queue, and one of the heads of its serial keys. A claim
merges the streams and stops at its limit, so its cost depends only on the claimed jobs. A loose index scan finds the
streams: one seek skips all jobs that are not due, that have another task or queue, or that wait for a serial key.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from stowhand.jobs.job import Job
from stowhand.jobs.lease import Lease
from stowhand.jobs.limits import KEY_SEPARATOR
from stowhand.jobs.queues import DEFAULT_QUEUE, Queues
from stowhand.jobs.text import clean
from stowhand.protocols.store import Claim, ClaimRequest
from stowhand.stores.database.sqlite_connection import write_in_savepoint
from stowhand.stores.passed_over import PassedOver
from stowhand.stores.sqlite.queue.cancellation import expire
from stowhand.stores.sqlite.queue.limits import NEVER, Limits
from stowhand.stores.sqlite.queue.moment import micros
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.transaction import Transaction
from stowhand.stores.sqlite.queue.waits import NEVER_MICROS

Candidate = tuple[int, int, int, str | None]
"""(priority, run_at, id, serial), in the order of claims."""

BELOW_ALL_PRIORITIES = -(2**31) - 1
"""A priority below every valid one."""

TOKEN_IS_ABANDONED = 1
"""A value of the statement ``claim_obstacle``."""
MAX_RECHECKS_PER_TRANSACTION = 500
"""500 heads take a few milliseconds in one transaction, so that other writers wait no longer."""
MAX_PARKED_PER_TRANSACTION = 1_000
"""The jobs of fair tasks that get their keys in one transaction."""
MAX_CHOICES_PER_CLAIM = 60
"""A claim chooses again while every chosen job is refused."""
MAX_REASON_CHARACTERS = 1000


def claim(tx: Transaction, request: ClaimRequest, passed_over: PassedOver) -> list[Claim[Job]] | None:
    """Claim up to ``limit`` due jobs. The heads of the serial keys must be current (``refresh_heads``).

    Jobs that the file refuses to change are passed over. Return ``None`` if expired jobs were canceled instead, or jobs
    of fair tasks got their keys; this changes the heads, so the caller must claim again.
    """
    if obstacle := tx.row("claim_obstacle", token=request.token):
        if obstacle[0] == TOKEN_IS_ABANDONED:
            return []
        if expire(tx):
            return None
    limits = Limits(tx)
    unparked = set() if request.suspects else _park_due(tx, request, limits)
    if unparked is None:
        return None
    claims = _claim_chosen(tx, request, passed_over, limits, unparked)
    return None if unparked and not claims else claims


def _claim_chosen(
    tx: Transaction, request: ClaimRequest, passed_over: PassedOver, limits: Limits, unparked: set[str]
) -> list[Claim[Job]]:
    for _ in range(MAX_CHOICES_PER_CLAIM):
        closed = {*limits.closed_tasks(), *unparked}
        chosen = choose(tx, request, {int(key) for key in passed_over.current()}, closed)
        admission = limits.admit(chosen, request)
        limits.write_keys(admission)
        if admission.parked and not admission.ids:
            limits = Limits(tx)
            continue
        rows, refused = _take(tx, request, admission.ids)
        limits.write(admission, {row[0]: row for row in rows})
        is_store_at_fault = len(refused) > 1 and not rows
        for job_id, error in refused.items():
            passed_over.add(str(job_id), clean(str(error), MAX_REASON_CHARACTERS), report=not is_store_at_fault)
        if is_store_at_fault:
            raise next(iter(refused.values()))
        if rows or not refused:
            return [_to_claim(row, request.token) for row in rows]
        limits = Limits(tx)
    return []


def _park_due(tx: Transaction, request: ClaimRequest, limits: Limits) -> set[str] | None:
    """Give due jobs of fair tasks their keys, as many as one transaction may.

    Return the tasks that may have more of them: some of their keys may have no head yet, and would miss their turns. So
    this claim leaves these tasks out. Return ``None`` if the heads are no longer current.
    """
    if not (fair := limits.fair_tasks - set(limits.closed_tasks())):
        return set()
    paused, left = read_pauses(tx), MAX_PARKED_PER_TRANSACTION
    for stream in _free_streams(tx, request.tasks, request.queues.without(paused.queues), paused):
        if stream.task in fair and (ids := [due[2] for due in islice(_due(tx, stream, None), left)]):
            limits.park(stream.task, ids)
            left -= len(ids)
    if left == 0:
        return fair
    return set() if left == MAX_PARKED_PER_TRANSACTION else None


def _take(tx: Transaction, request: ClaimRequest, chosen: Sequence[int]) -> tuple[list[Any], dict[int, Exception]]:
    """Return the claimed rows in order, and the errors of refused jobs. After an error, claim the jobs one by one."""
    lease_until = tx.now.ticks + micros(request.lease)
    rows: dict[int, Any] = {}

    def take(*ids: int) -> None:
        claimed = tx.rows("take", ids=as_json(ids), token=request.token, worker=request.worker, lease_until=lease_until)
        if len(claimed) < len(ids):
            raise sqlite3.IntegrityError("a trigger keeps it unchanged")
        rows.update((row[0], row) for row in claimed)

    refused: dict[int, Exception] = {}
    if chosen and write_in_savepoint(tx.raw, partial(take, *chosen)) is not None:
        for job_id in chosen:
            if (error := write_in_savepoint(tx.raw, partial(take, job_id))) is not None:
                refused[job_id] = error
    return [rows[job_id] for job_id in chosen if job_id in rows], refused


def choose(
    tx: Transaction, request: ClaimRequest, passed_over: Container[int], closed_tasks: Iterable[str] = ()
) -> list[int]:
    """Return the ids of due jobs in order, at most one for each serial key.

    Jobs that are passed over are left out, and those of tasks whose limits have no room.
    """
    chosen: list[int] = []
    serials: set[str] = set()
    with closing(_candidates(tx, request, closed_tasks)) as candidates:
        for _, _, job_id, serial in candidates:
            if job_id in passed_over:
                continue
            if serial is not None:
                if serial in serials:
                    continue
                serials.add(serial)
            chosen.append(job_id)
            if len(chosen) == request.limit:
                break
    return chosen


def _candidates(
    tx: Transaction, request: ClaimRequest, closed_tasks: Iterable[str]
) -> Generator[Candidate, None, None]:
    if request.limit < 1:
        return
    forbidden = as_json(request.forbidden_flags) if request.forbidden_flags else None
    paused = read_pauses(tx)
    paused.tasks.update(closed_tasks)
    queues = request.queues.without(paused.queues)
    if request.suspects:
        filters = _filters(request.tasks, queues)
        yield from tx.run("due_suspects", forbidden=forbidden or "[]", paused=as_json([*paused.tasks]), **filters)
        return
    streams = [
        *(_due(tx, stream, forbidden) for stream in _free_streams(tx, request.tasks, queues, paused)),
        *(_heads(tx, stream, forbidden) for stream in _serial_streams(tx, request.tasks, queues, paused)),
    ]
    yield from streams[0] if len(streams) == 1 else merge(*streams)


class Stream(NamedTuple):
    """Jobs of one task in one queue."""

    queue: str
    task: str

    @property
    def values(self) -> dict[str, str]:
        """Named values of the statements for this stream."""
        return {"queue": self.queue, "task": self.task}

    @property
    def suffix(self) -> str:
        """Suffix of the statements' names: jobs outside the default queue have their own index."""
        return "" if self.queue == DEFAULT_QUEUE else "_in_queue"


class Pauses(NamedTuple):
    """Paused tasks and queues."""

    tasks: set[str]
    queues: set[str]


def read_pauses(tx: Transaction) -> Pauses:
    """Read the names of paused tasks and queues."""
    names: dict[str, set[str]] = {"task": set(), "queue": set()}
    for kind, name in tx.run("pauses"):
        names[kind].add(name)
    return Pauses(names["task"], names["queue"])


def _filters(tasks: tuple[str, ...] | None, queues: Queues) -> dict[str, str | None]:
    """Return the values of statements that filter jobs by task and queue."""
    return {
        "tasks": None if tasks is None else as_json(tasks),
        "queues": None if queues.only is None else as_json(queues.only),
        "excluded": as_json(queues.excluded),
    }


def _free_streams(tx: Transaction, tasks: tuple[str, ...] | None, queues: Queues, paused: Pauses) -> Iterator[Stream]:
    """Yield the streams of waiting jobs without a serial key, of these tasks and queues, that are not paused."""
    names = [queue for queue in queues.only or () if queue != DEFAULT_QUEUE]
    if queues.only is None:
        names = list(_steps(tx, "next_queue", "queue"))
    has_default = DEFAULT_QUEUE in queues and tx.row("next_task", task="") is not None
    for queue in [*((DEFAULT_QUEUE,) if has_default else ()), *(name for name in names if name in queues)]:
        step = "next_task" if queue == DEFAULT_QUEUE else "next_task_in_queue"
        for task in _steps(tx, step, "task", queue=queue) if tasks is None else dict.fromkeys(tasks):
            if task not in paused.tasks:
                yield Stream(queue, task)


def _serial_streams(tx: Transaction, tasks: tuple[str, ...] | None, queues: Queues, paused: Pauses) -> Iterator[Stream]:
    """Yield the streams of heads of free serial keys, of these tasks and queues, that are not paused."""
    if tx.row("next_serial_task", task="") is None:
        return
    for task in list(_steps(tx, "next_serial_task", "task")) if tasks is None else dict.fromkeys(tasks):
        if task not in paused.tasks:
            yield from (
                Stream(name, task) for name in _steps(tx, "next_serial_queue", "queue", task=task) if name in queues
            )


def _steps(tx: Transaction, step: str, column: str, **values: str) -> Iterator[str]:
    """Yield the distinct values of a column, each by one seek in an index. ``step``: the statement of a seek."""
    value = ""
    while row := tx.row(step, **values, **{column: value}):
        value = row[0]
        yield value


def _due(tx: Transaction, stream: Stream, forbidden: str | None) -> Iterator[Candidate]:
    """Yield due jobs without a serial key, one priority after another, reading only as far as the caller iterates."""
    statement = ("due" if forbidden is None else "due_and_allowed") + stream.suffix
    for priority, first_due in _levels(tx, stream):
        if first_due <= tx.now.wall:
            yield from tx.run(statement, **stream.values, priority=priority, forbidden=forbidden)


def _levels(tx: Transaction, stream: Stream) -> Iterator[tuple[int, int]]:
    """Yield the priorities of a stream, each with the time at which its first job is due."""
    priority = BELOW_ALL_PRIORITIES
    while level := tx.row("next_level" + stream.suffix, **stream.values, priority=priority):
        priority = level[0]
        yield level


def _heads(tx: Transaction, stream: Stream, forbidden: str | None) -> Iterator[Candidate]:
    """Yield the first due job of this stream in each free serial key."""
    heads = tx.run("heads", **stream.values)
    if forbidden is None:
        yield from heads
        return
    allowed = (tx.row("first_allowed", **stream.values, forbidden=forbidden, serial=head[3]) for head in heads)
    yield from sorted(first for first in allowed if first is not None)


def refresh_heads(tx: Transaction) -> bool:
    """Update a limited number of heads whose recheck is due. Return False if there may be more."""
    stale = tx.rows("heads_to_recheck", limit=MAX_RECHECKS_PER_TRANSACTION)
    limits = Limits(tx) if any(KEY_SEPARATOR in serial for serial, *_ in stale) else None
    for serial, task, queue in stale:
        _refresh_head(tx, {"serial": serial, "task": task, "queue": queue}, limits)
    return len(stale) < MAX_RECHECKS_PER_TRANSACTION


def _refresh_head(tx: Transaction, head: dict[str, str], limits: Limits | None) -> None:
    priority, run_at, job_id, recheck_at = BELOW_ALL_PRIORITIES, None, None, None
    while job_id is None and (level := tx.row("next_serial_level", **head, priority=priority)):
        priority, at, head_id = level
        if at <= tx.now.wall:
            run_at, job_id = at, head_id
        else:
            recheck_at = at if recheck_at is None else min(recheck_at, at)
    if limits is not None and run_at is not None and KEY_SEPARATOR in head["serial"]:
        opens_at, served_at = limits.key_opens_at(head["serial"]), limits.key(head["serial"]).served_at
        if opens_at > tx.now.wall:
            priority, run_at, job_id, recheck_at = BELOW_ALL_PRIORITIES, None, None, opens_at
        elif served_at is not None:
            run_at = max(run_at, served_at)
    if job_id is None and recheck_at is None:
        tx.run("drop_head", **head)
    else:
        tx.run("set_head", **head, priority=priority, run_at=run_at, id=job_id, recheck_at=recheck_at)


def next_due(tx: Transaction, tasks: tuple[str, ...] | None, queues: Queues) -> float | None:
    """Return the seconds until the first waiting job of these tasks and queues is due, or any job expires.

    Paused tasks and queues do not count, and jobs of a full limit count from the time at which it has room. The end of
    a job wakes the workers.
    """
    paused = read_pauses(tx)
    queues = queues.without(paused.queues)
    times = []
    limits = Limits(tx)
    closed = limits.closed_tasks()
    for task, opens_at in closed.items():
        if opens_at < NEVER and task not in paused.tasks and (tasks is None or task in tasks):
            due_times = _due_times(tx, (task,), queues, paused, limits)
            times += [max(min(due_times), opens_at * 1_000_000)] if due_times else []
    paused.tasks.update(closed)
    times += _due_times(tx, tasks, queues, paused, limits)
    times += tx.column("next_expiry")
    times = [due for due in times if due < NEVER_MICROS]
    return max(min(times) - tx.now.wall, 0) / 1_000_000 if times else None


def _due_times(
    tx: Transaction, tasks: tuple[str, ...] | None, queues: Queues, paused: Pauses, limits: Limits
) -> list[float]:
    """Return times at which waiting jobs are due; the first of all is among them."""
    times: list[float] = [due for stream in _free_streams(tx, tasks, queues, paused) for _, due in _levels(tx, stream)]
    filters = _filters(tasks, queues) | {"paused": as_json([*paused.tasks])}
    times += [due for due in tx.column("first_head", **filters) if due is not None]
    for serial, task, queue in tx.run("stale_heads", **filters):
        priority = BELOW_ALL_PRIORITIES
        while level := tx.row("next_serial_level", serial=serial, task=task, queue=queue, priority=priority):
            priority = level[0]
            times.append(max(level[1], limits.key_opens_at(serial)) if KEY_SEPARATOR in serial else level[1])
    times += [due for due in tx.column("first_suspect", **filters) if due is not None]
    return times


def _to_claim(row: tuple[Any, ...], token: str) -> Claim[Job]:
    job = to_job(row[:-1])
    return Claim(Lease(job.id, token, row[-1]), job, job.task, job.attempts, job.max_attempts, job.serial, job.resets)
