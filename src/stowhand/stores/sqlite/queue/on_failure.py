"""Enqueues the ``on_failure`` jobs of permanently failed jobs, which triggers list in ``stowhand_untold``."""

from __future__ import annotations

from typing import Any

import msgspec

from stowhand.jobs.failure import NOT_ENQUEUED_PREFIX, failure_job
from stowhand.jobs.job import NewJob
from stowhand.jobs.text import clean
from stowhand.stores.database.sqlite_connection import write_in_savepoint
from stowhand.stores.sqlite.queue import enqueue, error_translation
from stowhand.stores.sqlite.queue.transaction import Transaction

_new_job = msgspec.json.Decoder(NewJob)


def enqueue_reports(tx: Transaction, error_class: str | None) -> None:
    """Enqueue the ``on_failure`` jobs of all unreported failures.

    An error never undoes the failure: if a job cannot be enqueued, the failed job's error text records the reason.

    Args:
        tx: The transaction in which the jobs failed.
        error_class: The error class of the failed jobs.

    """
    for row in tx.rows("unreported"):
        tx.run("mark_reported", id=row[0])
        error = write_in_savepoint(tx.raw, lambda row=row: _enqueue_report(tx, row, error_class))  # type: ignore[misc]
        if error is not None:
            tx.run("append_error", id=row[0], text=clean(f"{NOT_ENQUEUED_PREFIX}{error_translation.refusal(error)}"))


def _enqueue_report(tx: Transaction, row: tuple[Any, ...], error_class: str | None) -> None:
    job_id, task, payload, error, on_failure = row
    if on_failure is None:
        return  # The job has been removed since.
    report = failure_job(
        _new_job.decode(on_failure),
        job_id=job_id,
        task=task,
        payload=payload,
        error_class=error_class,
        error=error or "",
    )
    enqueue.add(tx, report)
