"""Looking at jobs, and acting on single ones: as docs/reference/states.md says for each state."""

from __future__ import annotations

import sqlite3
from heapq import merge
from itertools import islice

from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import Answer, Done, JobFilter
from stowhand.protocols.validation import validate_filter, validate_id, validate_key
from stowhand.stores.sqlite.queue import enqueue, finish
from stowhand.stores.sqlite.queue.moment import Moment, to_micros
from stowhand.stores.sqlite.queue.rows import as_json, to_job
from stowhand.stores.sqlite.queue.statements import load

SQL = load("inspect")
ABOVE_ALL = 2**63 - 1
LISTED = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
"""What a list shows unless a state is named."""


def get(connection: sqlite3.Connection, job_id: int) -> Job | None:
    """Live, or in the history."""
    row = connection.execute(SQL["get"], {"id": validate_id(job_id)}).fetchone()
    return None if row is None else to_job(row)


def find(connection: sqlite3.Connection, wanted: JobFilter) -> list[Job]:
    """In id order, rising or falling."""
    wanted = validate_filter(wanted)
    newest = wanted.newest_first
    given = {
        "states": as_json(wanted.states or LISTED),
        "task": wanted.task,
        "queue": wanted.queue,
        "key": wanted.key,
        "worker": wanted.worker,
        "error": wanted.error,
        "since": None if wanted.since is None else to_micros(wanted.since),
        "until": None if wanted.until is None else to_micros(wanted.until),
        "after": wanted.after or (ABOVE_ALL if newest else 0),
        "limit": wanted.limit,
    }
    kept = ["live", "past"] if set(wanted.states) & {State.COMPLETED, State.CANCELED} else ["live"]
    parts = (connection.execute(SQL[f"{'newest' if newest else 'list'}_{table}"], given) for table in kept)
    rows = merge(*parts, key=lambda row: row[0], reverse=newest)
    return [to_job(row) for row in islice(rows, wanted.limit)]


def counts(connection: sqlite3.Connection) -> dict[State, int]:
    """Every state is a key."""
    found = dict(connection.execute(SQL["counts"]).fetchall())
    return {state: found.get(state.value, 0) for state in State}


def retry(connection: sqlite3.Connection, now: Moment, job_id: int) -> Answer:
    """Due now, with all its attempts; a canceled job comes back out of the history."""
    match _state(connection, job_id):
        case None:
            return _missing(job_id)
        case State.PROCESSING:
            return Answer(job_id, Done.REFUSED, "it is running; cancel it first, or wait until it has ended")
        case State.COMPLETED:
            return Answer(job_id, Done.REFUSED, "it completed; enqueue it again instead")
        case State.CANCELED:
            connection.execute(SQL["revive"], {"id": job_id, "now": now.wall})
            lost_key = connection.execute(SQL["has_other_key"], {"id": job_id}).fetchone()
            connection.execute(SQL["forget"], {"id": job_id})
            if lost_key:
                return Answer(job_id, Done.DONE, "its key belongs to another job now, so it has none")
        case _:
            connection.execute(SQL["retry"], {"id": job_id, "now": now.wall})
    return Answer(job_id, Done.DONE)


def cancel(connection: sqlite3.Connection, now: Moment, job_id: int, *, history: bool) -> Answer:
    """At once if it waits; a running one is canceled by its worker."""
    match _state(connection, job_id):
        case None:
            return _missing(job_id)
        case State.QUEUED | State.ERRORED:
            finish.cancel_waiting(connection, now, job_id, history=history)
            return Answer(job_id, Done.DONE)
        case State.PROCESSING:
            connection.execute(SQL["ask_to_cancel"], {"id": job_id})
            return Answer(job_id, Done.ASKED, "it is running; its worker hears of it at the next beat")
        case State.CANCELED:
            return Answer(job_id, Done.UNCHANGED, "it is canceled already")
        case State.FAILED:
            return Answer(job_id, Done.REFUSED, "it has failed already; remove it, or retry it")
        case State.COMPLETED:
            return Answer(job_id, Done.REFUSED, "it has completed already")


def remove(connection: sqlite3.Connection, job_id: int) -> Answer:
    """Delete a job that is not running."""
    match _state(connection, job_id):
        case None:
            return _missing(job_id)
        case State.PROCESSING:
            return Answer(job_id, Done.REFUSED, "it is running; cancel it instead")
        case State.COMPLETED:
            return Answer(job_id, Done.REFUSED, "it completed; the history is pruned by its age")
        case State.CANCELED:
            connection.execute(SQL["forget"], {"id": job_id})
        case _:
            connection.execute(finish.SQL["delete_one"], {"id": job_id})
    return Answer(job_id, Done.DONE)


def remove_key(connection: sqlite3.Connection, key: str) -> Answer:
    """Delete the holder of a key; a running one loses the key and will not run again."""
    holder = connection.execute(enqueue.SQL["holder"], {"key": validate_key(key)}).fetchone()
    if holder is None:
        return Answer(None, Done.MISSING, f"no live job has the key {key!r}")
    job_id, state = holder[:2]
    if state != State.PROCESSING:
        return remove(connection, job_id)
    connection.execute(enqueue.SQL["lose_key"], {"id": job_id, "why": "removed"})
    return Answer(job_id, Done.DONE, "it is running; it ends without its key and will not run again")


def _state(connection: sqlite3.Connection, job_id: int) -> State | None:
    row = connection.execute(SQL["state"], {"id": validate_id(job_id)}).fetchone()
    return None if row is None else State(row[0])


def _missing(job_id: int) -> Answer:
    return Answer(job_id, Done.MISSING, f"there is no job {job_id}")
