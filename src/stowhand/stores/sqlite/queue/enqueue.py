"""Enqueueing one job or many, and what a key does with the job that already holds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, groupby
from typing import Any

from stowhand.jobs import limits
from stowhand.jobs.job import EXPIRED, Job, KeyMode, NewJob, State
from stowhand.stores.appending import appended
from stowhand.stores.sqlite.queue.canceling import cancel_waiting
from stowhand.stores.sqlite.queue.rows import check_size, to_job, to_row
from stowhand.stores.sqlite.queue.transaction import SQL, Transaction


def add(tx: Transaction, job: NewJob, *, built_in: bool = False) -> int:
    """Insert a job; where another holds its key, the key's mode decides. Returns the id."""
    if not built_in:
        limits.refuse_reserved(job)
    row = to_row(job, tx.now)
    if job.key is None:
        return _insert(tx, row)
    holder = tx.row("holder", key=job.key)
    if holder is None:
        return _insert(tx, row)
    job_id, state, payload, attempts, run_at, has_expired = holder
    if job.key_mode is KeyMode.UNSAFE_DEDUPE:
        tx.run("touch", id=job_id)
        return int(job_id)
    if job.key_mode is KeyMode.UNIQUE and has_expired:
        cancel_waiting(tx, job_id, EXPIRED)
        return _insert(tx, row)
    if job.key_mode is KeyMode.UNIQUE and state != State.FAILED:
        return int(job_id)
    if state == State.PROCESSING:
        # It runs on without its key; only an error finds out that it has no retries left.
        tx.run("lose_key", id=job_id, why="replaced")
        return _insert(tx, row)
    keeps_run_at = job.key_mode is KeyMode.PRESERVE_RUN_AT and state == State.QUEUED and attempts == 0
    old = payload if state != State.FAILED else None
    _replace(tx, job_id, row, run_at if keeps_run_at else row[3], old, repeats=job.key_mode is KeyMode.UNIQUE)
    return int(job_id)


def add_many(tx: Transaction, chunks: Iterable[Sequence[NewJob]]) -> list[int]:
    """Ids in the order given. Keyed ones one by one, the runs between them in bulk."""
    ids: list[int] = []
    for jobs in chunks:
        for keyed, run in groupby(jobs, key=lambda job: job.key is not None):
            if keyed:
                ids += [add(tx, job) for job in run]
            else:
                ids += _insert_many(tx, list(run))
    return ids


def find(tx: Transaction, job_id: int) -> Job:
    """The job just written."""
    return to_job(tx.row("live", id=job_id))


def _insert(tx: Transaction, row: tuple[object, ...]) -> int:
    job_id = tx.raw.execute(SQL["insert"], (None, *row)).lastrowid
    assert job_id is not None
    return job_id


def _insert_many(tx: Transaction, jobs: Sequence[NewJob]) -> list[int]:
    # Ids are counted here, not read row by row: no other transaction can insert while this one is open.
    last = tx.row("last_id")
    numbered = count(1 if last is None else last[0] + 1)
    for job in jobs:
        limits.refuse_reserved(job)
    rows = [(next(numbered), *to_row(job, tx.now)) for job in jobs]
    tx.raw.executemany(SQL["insert"], rows)
    return [row[0] for row in rows]


def _replace(
    tx: Transaction, job_id: int, row: tuple[Any, ...], run_at: int, old: str | None, *, repeats: bool
) -> None:
    names = ("task", "payload", "queue", "run_at", "priority", "max_attempts", "max_resets", "key", "flags")
    given = dict(zip((*names, "on_failure", "expires_at"), row, strict=False))
    if given["expires_at"] is not None:
        given["expires_at"] += run_at - given["run_at"]
    given |= {"id": job_id, "run_at": run_at, "repeats": repeats}
    if old is not None:
        both = given["payload"] = appended(old, str(given["payload"]))
        check_size(both)
    tx.run("replace", **given)
