"""Acting on many jobs at once: what each call does in each state."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

import msgspec

from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import Reschedule
from stowhand.stores.sqlite.queue import finish, inspector
from stowhand.stores.sqlite.queue.moment import Moment, to_datetime, to_micros
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.statements import load

SQL = load("administer")

Action = Callable[..., Sequence[Job]]
"""One of the acts below with what it needs; takes connection, now and job_ids."""

AT_ONCE = 200
"""Jobs in one transaction: more are acted on in several, so that other writers get their turn."""


Pair = tuple[int, str | None]
"""A job and its token, if it is held."""


def pages(ids: Sequence[int]) -> list[Sequence[int]]:
    """As many at a time as one transaction takes."""
    return [ids[start : start + AT_ONCE] for start in range(0, len(ids), AT_ONCE)]


def complete(connection: sqlite3.Connection, now: Moment, job_ids: Sequence[int], *, history: bool) -> list[Job]:
    """As if their handlers had succeeded; returned even where no history is kept."""
    given = {"ids": as_json([job_id for job_id, _ in _actionable(connection, now, job_ids)]), "now": now.wall}
    jobs = [to_job(row) for row in connection.execute(SQL["live"], given).fetchall()]
    if history:
        connection.execute(SQL["archive_completed"], given)
    connection.execute(finish.SQL["delete"], given)
    return [_ended(job, State.COMPLETED, now) for job in jobs]


def fail(connection: sqlite3.Connection, now: Moment, job_ids: Sequence[int], *, reason: str) -> list[Job]:
    """Without further attempts. A job that had failed before keeps its ``finished_at``."""
    ids = [job_id for job_id, _ in _actionable(connection, now, job_ids)]
    connection.execute(SQL["fail"], {"ids": as_json(ids), "reason": reason, "now": now.wall})
    return _look(connection, ids)


def reschedule(
    connection: sqlite3.Connection, now: Moment, job_ids: Sequence[int], *, to: Reschedule, history: bool
) -> list[Job]:
    """The given details; the state follows from the numbers. An expired lease is reset first, as the sweep would."""
    found = _actionable(connection, now, job_ids)
    taken = take_back(connection, now, pairs=found, history=history)
    ids = [job_id for job_id, _ in found]
    run_at = None if to.run_at is None else to_micros(to.run_at)
    given = msgspec.structs.asdict(to) | {"ids": as_json(ids), "run_at": run_at, "now": now.wall}
    connection.execute(SQL["reschedule"], given)
    canceled = [job for job in taken if job.state is State.CANCELED]
    return sorted(canceled + _look(connection, ids), key=lambda job: job.id)


def held_by(connection: sqlite3.Connection, _now: Moment, *, workers: Sequence[str]) -> list[Pair]:
    """What these workers hold, dead or alive."""
    return connection.execute(SQL["held_by_workers"], {"workers": as_json(workers)}).fetchall()


def take_back(connection: sqlite3.Connection, now: Moment, *, pairs: Sequence[Pair], history: bool) -> list[Job]:
    """Reset those of them that are still held; returns the jobs as they are afterwards."""
    jobs = []
    for job_id, token in pairs:
        held = None if token is None else finish.find_held(connection, job_id, token)
        if held is None:
            continue
        before = inspector.get(connection, job_id)
        reset = finish.reset(connection, now, held, history=history)
        # Without a history, a job whose cancellation was requested is gone now.
        after = inspector.get(connection, job_id) or (before and _ended(before, reset.state, now))
        assert after is not None
        jobs.append(after)
    return jobs


def _actionable(connection: sqlite3.Connection, now: Moment, job_ids: Sequence[int]) -> list[Pair]:
    given = {"ids": as_json(job_ids), "boot": now.boot, "ticks": now.ticks}
    return connection.execute(SQL["actionable"], given).fetchall()


def _look(connection: sqlite3.Connection, ids: Sequence[int]) -> list[Job]:
    return [to_job(row) for row in connection.execute(SQL["live"], {"ids": as_json(ids)}).fetchall()]


def _ended(job: Job, state: State, now: Moment) -> Job:
    return msgspec.structs.replace(job, state=state, finished_at=to_datetime(now.wall), worker=None)
