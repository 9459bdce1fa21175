"""How jobs that wait are canceled: by a call, or because nobody claimed them in time."""

from __future__ import annotations

from stowhand.jobs.job import EXPIRED_ERROR
from stowhand.stores.sqlite.queue.transaction import Transaction

MAX_EXPIRED_PER_TRANSACTION = 500
"""Jobs that are canceled in one transaction, so that other writers get their turn."""


def cancel_waiting(tx: Transaction, job_id: int, why: str | None = None) -> None:
    """At once: no worker runs it."""
    if tx.keeps:
        nothing = dict.fromkeys(("attempts", "resets", "settled_token", "result", "payload"))
        tx.run("archive", **nothing, id=job_id, state="canceled", error=why, epochs=0)
    tx.run("delete_one", id=job_id)


def expire(tx: Transaction) -> int:
    """Cancel a page of jobs that were not claimed in time. Return how many."""
    tx.run("claimed_in_time")
    expired = tx.column("expired", limit=MAX_EXPIRED_PER_TRANSACTION)
    for job_id in expired:
        cancel_waiting(tx, job_id, EXPIRED_ERROR)
    return len(expired)
