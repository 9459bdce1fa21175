"""Cancellation of waiting jobs: by a call, or because no worker claimed them in time."""

from __future__ import annotations

from stowhand.jobs.job import EXPIRED_ERROR
from stowhand.stores.sqlite.queue.transaction import Transaction

MAX_EXPIRED_PER_TRANSACTION = 500
"""More expired jobs take several transactions, so that other writers can run in between."""


def cancel_waiting(tx: Transaction, job_id: int, reason: str | None = None) -> None:
    """Cancel a job that no worker runs."""
    if tx.keeps_history:
        unchanged = dict.fromkeys(("attempts", "resets", "settled_token", "result", "payload"))
        tx.run("archive", **unchanged, id=job_id, state="canceled", error=reason, epochs=0)
    tx.run("delete_one", id=job_id)


def expire(tx: Transaction) -> int:
    """Cancel a page of jobs that were not claimed in time. Return their number."""
    tx.run("claimed_in_time")
    job_ids = tx.column("expired", limit=MAX_EXPIRED_PER_TRANSACTION)
    for job_id in job_ids:
        cancel_waiting(tx, job_id, EXPIRED_ERROR)
    return len(job_ids)
