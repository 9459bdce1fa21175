"""Waits of workflows: what a settlement records when it starts one (protocols/workflows.py)."""

from __future__ import annotations

from stowhand.jobs.lifecycle import Wait
from stowhand.stores.sqlite.queue import enqueue
from stowhand.stores.sqlite.queue.moment import to_micros
from stowhand.stores.sqlite.queue.rows import as_json
from stowhand.stores.sqlite.queue.transaction import Transaction

NEVER_MICROS = 253402214400000000
"""The last day of the year 9999: the run time of a job that only an event or its children make due."""


def start(tx: Transaction, job_id: int, wait: Wait) -> int:
    """Record the wait, and create its children. Return the time at which the job is due."""
    if wait.value is not None:
        return _wait_for_children(tx, job_id, wait, wait.value)
    tx.run("start_wait", id=job_id, step=wait.step, until=_end(tx, wait))
    event = None if wait.event is None else tx.row("event", event=wait.event, id=job_id)
    if event is not None:
        tx.run("end_wait", id=job_id, step=wait.step, value=event[0])
    until, is_recorded = tx.row("started_wait", id=job_id, step=wait.step)
    return tx.now.wall if is_recorded else _due(until)


def cause(wait: Wait) -> str:
    """Return what the job waits for, as in ``Job.waits_for``."""
    if wait.event is not None:
        return f"event:{wait.event}"
    return f"time:{wait.step}" if wait.value is None else f"children:{wait.step}"


def _wait_for_children(tx: Transaction, job_id: int, wait: Wait, value: str) -> int:
    step = {"id": job_id, "step": wait.step}
    if wait.places and tx.row("has_children", **step):
        places = as_json(wait.places)
        tx.run("detach_children", places=places, **step)
        tx.run("forget_places", places=places, **step)
    enqueue.add_children(tx, job_id, wait.step, wait.children, wait.places)
    counts = {"value": value, "until": _end(tx, wait), "created": len(wait.children)}
    until, remaining = tx.row("count_children", **step, **counts)
    return _due(until) if remaining else tx.now.wall


def _end(tx: Transaction, wait: Wait) -> int | None:
    if wait.until is not None:
        return to_micros(wait.until)
    return None if wait.delay is None else tx.now.after(wait.delay)


def _due(until: int | None) -> int:
    return NEVER_MICROS if until is None else min(until, NEVER_MICROS)
