"""Cancellation of waiting jobs: by a call, with their parent, or because no worker claimed them in time."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import EXPIRED_ERROR, State
from stowhand.stores.sqlite.queue.children import End, record_ends
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction

MAX_EXPIRED_PER_TRANSACTION = 500
"""More expired jobs take several transactions, so that other writers can run in between."""
CANCELED = "canceled"
"""The error of a child that was canceled without a reason."""
PARENT_CANCELED = "its parent was canceled"


def cancel_waiting(tx: Transaction, job_ids: Sequence[int], reason: str | None = None) -> None:
    """Cancel jobs that no worker runs, and their unfinished children. ``reason``: their error."""
    ids = as_json(job_ids)
    if tx.keeps_history:
        tx.run("archive_canceled", ids=ids, reason=reason)
    record_ends(tx, [End(job_id, error=reason or CANCELED) for job_id in job_ids])
    tx.run("delete", ids=ids)
    cancel_children(tx, job_ids)


def cancel_children(tx: Transaction, parent_ids: Sequence[int]) -> None:
    """Cancel the unfinished children of these jobs. The workers of running ones receive a request."""
    rows = tx.rows("unfinished_children", ids=as_json(parent_ids))
    if running_ids := [child_id for child_id, state in rows if state == State.PROCESSING]:
        tx.run("request_cancels", ids=as_json(running_ids))
    if waiting_ids := [child_id for child_id, state in rows if state != State.PROCESSING]:
        cancel_waiting(tx, waiting_ids, PARENT_CANCELED)


def expire(tx: Transaction) -> int:
    """Cancel a page of jobs that were not claimed in time. Return their number."""
    tx.run("claimed_in_time")
    job_ids = tx.column("expired", limit=MAX_EXPIRED_PER_TRANSACTION)
    cancel_waiting(tx, job_ids, EXPIRED_ERROR)
    return len(job_ids)
