"""Reports of permanently failed jobs in ``stowhand_untold``: enqueues their ``on_failure`` jobs."""

from __future__ import annotations

from typing import Any

import msgspec

from stowhand.jobs.failure import NOT_ENQUEUED_PREFIX, failure_job
from stowhand.jobs.job import NewJob
from stowhand.jobs.text import clean
from stowhand.stores.database.sqlite_connection import write_in_savepoint
from stowhand.stores.sqlite.queue import enqueue, trouble
from stowhand.stores.sqlite.queue.transaction import Transaction

_handler = msgspec.json.Decoder(NewJob)


def tell(tx: Transaction, error_class: str | None) -> None:
    """Enqueue the ``on_failure`` jobs, in the transaction that has failed jobs. ``error_class``: theirs.

    An error never undoes the failure: if a job cannot be enqueued, the failed job's error text records the reason.
    """
    for row in tx.rows("untold"):
        tx.run("told", id=row[0])
        refused = write_in_savepoint(tx.raw, lambda row=row: _tell(tx, row, error_class))  # type: ignore[misc]
        if refused is not None:
            why = clean(f"{NOT_ENQUEUED_PREFIX}{trouble.refusal(refused)}")
            tx.run("note", id=row[0], why=why)


def _tell(tx: Transaction, row: tuple[Any, ...], error_class: str | None) -> None:
    job_id, task, payload, error, handler = row
    if handler is None:
        return  # removed since
    told = failure_job(
        _handler.decode(handler), job_id=job_id, task=task, payload=payload, error_class=error_class, error=error or ""
    )
    enqueue.add(tx, told)
