"""Enqueueing one job or many, and what a key does with the job that already holds it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import count, groupby

from stowhand.jobs import limits
from stowhand.jobs.job import Job, KeyMode, NewJob, State
from stowhand.stores.sqlite.queue.moment import Moment
from stowhand.stores.sqlite.queue.rows import check_size, to_job, to_row
from stowhand.stores.sqlite.queue.statements import load

SQL = load("enqueue")


def add(connection: sqlite3.Connection, now: Moment, job: NewJob, *, built_in: bool = False) -> int:
    """Insert a job; where another holds its key, the key's mode decides. Returns the id."""
    if not built_in:
        limits.refuse_reserved(job)
    row = to_row(job, now)
    if job.key is None:
        return _insert(connection, row)
    holder = connection.execute(SQL["holder"], {"key": job.key}).fetchone()
    if holder is None:
        return _insert(connection, row)
    job_id, state, payload, attempts, run_at = holder
    if job.key_mode is KeyMode.UNSAFE_DEDUPE:
        connection.execute(SQL["touch"], {"id": job_id, "now": now.wall})
        return int(job_id)
    if state == State.PROCESSING:
        # It runs on without its key; only an error finds out that it has no retries left.
        connection.execute(SQL["lose_key"], {"id": job_id, "why": "replaced"})
        return _insert(connection, row)
    keeps_run_at = job.key_mode is KeyMode.PRESERVE_RUN_AT and state == State.QUEUED and attempts == 0
    _replace(
        connection, now, job_id, row, run_at if keeps_run_at else row[3], payload if state != State.FAILED else None
    )
    return int(job_id)


def add_many(connection: sqlite3.Connection, now: Moment, chunks: Iterable[Sequence[NewJob]]) -> list[int]:
    """Ids in the order given. Keyed ones one by one, the runs between them in bulk."""
    ids: list[int] = []
    for jobs in chunks:
        for keyed, run in groupby(jobs, key=lambda job: job.key is not None):
            if keyed:
                ids += [add(connection, now, job) for job in run]
            else:
                ids += _insert_many(connection, now, list(run))
    return ids


def find(connection: sqlite3.Connection, job_id: int) -> Job:
    """The job just written."""
    return to_job(connection.execute(SQL["live"], {"id": job_id}).fetchone())


def _insert(connection: sqlite3.Connection, row: tuple[object, ...]) -> int:
    job_id = connection.execute(SQL["insert"], (None, *row)).lastrowid
    assert job_id is not None
    return job_id


def _insert_many(connection: sqlite3.Connection, now: Moment, jobs: Sequence[NewJob]) -> list[int]:
    # Ids are counted here, not read row by row: no other transaction can insert while this one is open.
    last = connection.execute(SQL["last_id"]).fetchone()
    numbered = count(1 if last is None else last[0] + 1)
    for job in jobs:
        limits.refuse_reserved(job)
    rows = [(next(numbered), *to_row(job, now)) for job in jobs]
    connection.executemany(SQL["insert"], rows)
    return [row[0] for row in rows]


def _replace(
    connection: sqlite3.Connection, now: Moment, job_id: int, row: tuple[object, ...], run_at: object, old: str | None
) -> None:
    names = ("task", "payload", "queue", "run_at", "priority", "max_attempts", "max_resets", "key", "flags")
    given = dict(zip(names, row, strict=False)) | {"id": job_id, "run_at": run_at, "now": now.wall}
    if old is not None:
        given["payload"] = appended(old, str(given["payload"]))
    connection.execute(SQL["replace"], given)


def appended(old: str, new: str) -> str:
    """Both arrays, one after the other, when both are arrays; else the new one. As text: no number is rounded."""
    first, second = old.strip(), new.strip()
    if not (first.startswith("[") and second.startswith("[")):
        return new
    inner = [part for part in (first[1:-1].strip(), second[1:-1].strip()) if part]
    both = f"[{','.join(inner)}]"
    check_size(both)
    return both
