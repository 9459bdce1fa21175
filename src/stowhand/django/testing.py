"""In the tests of a project: run what is due, in the test's own thread and on its own connection.

A worker does not see what a ``TestCase`` has written, whose transaction is never committed; ``drain`` does. In a
``TransactionTestCase`` it works just so, and a worker would, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import async_to_sync
from django.db import DatabaseError
from django.tasks import base, task_backends
from django.tasks.backends import immediate
from django.utils.json import normalize_json

from stowhand.django.attempts import Running
from stowhand.django.backend import StowhandBackend
from stowhand.django.database import Database
from stowhand.django.project import names_of
from stowhand.django.task import Task
from stowhand.errors import ConfigurationError
from stowhand.jobs import strict_json
from stowhand.jobs.job import Job
from stowhand.jobs.lifecycle import Complete, Outcome, settle
from stowhand.jobs.outcomes import OUTCOMES, from_error, from_returned
from stowhand.protocols.store import Claim, ClaimRequest
from stowhand.retry import natural

WORKER = "drain"
LEASE = 3600.0


class ImmediateBackend(immediate.ImmediateBackend):
    """Django's, which runs a task where it is enqueued, and takes the options of ours in ``@task(…)``."""

    task_class = Task


def drain(backend: str = "default", *, limit: int = 1000) -> int:
    """Run the jobs that are due now, and those that they enqueue, one after the other; how many attempts there were.

    ``backend``: its alias in TASKS. A job that failed with attempts left waits for its retry, and is not run again. At
    ``limit`` it stops: a task that enqueues itself would never end. Raises KeyboardInterrupt of a task.
    """
    ours = task_backends[backend]
    if not isinstance(ours, StowhandBackend):
        raise ConfigurationError(f"drain: TASKS[{backend!r}] is a {type(ours).__qualname__}, which keeps no jobs here")
    names = tuple(names_of(ours))
    done = 0
    while done < limit and (claim := _claimed(ours.database, names)) is not None:
        _attempt(ours, claim)
        done += 1
    return done


def _claimed(database: Database, names: tuple[str, ...]) -> Claim[Job] | None:
    request = ClaimRequest(worker=WORKER, token=str(uuid.uuid4()), limit=1, lease=LEASE, tasks=names)
    with database.transaction() as jobs:
        return next(iter(jobs.claim(request)), None)


def _attempt(backend: StowhandBackend, claim: Claim[Job]) -> None:
    task = backend.task_of(claim.task)
    assert task is not None  # only tasks of the backend were asked for
    outcome = _outcome(backend, task, claim)
    value = outcome.result if isinstance(outcome, Complete) else None
    settlement = settle(
        outcome,
        attempts=claim.attempts,
        max_attempts=claim.max_attempts,
        backoff=natural,
        result=None if value is None else strict_json.encode(value),
    )
    with backend.database.transaction() as jobs:
        jobs.settle(claim.lease, settlement)


def _outcome(backend: StowhandBackend, task: base.Task, claim: Claim[Job]) -> Outcome:
    try:
        running = Running(backend, task, claim.record, is_last=claim.attempts >= claim.max_attempts)
        running.begin()
        with _undoing_what_is_broken(backend.database):
            try:
                returned = running.call()
                if iscoroutinefunction(task.func):
                    returned = async_to_sync(_awaited)(returned)
                value = returned if isinstance(returned, OUTCOMES) else Complete(normalize_json(returned))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # boundary: an error of the attempt, as for a worker
                running.failed(error)
                raise
        running.completed(value.result if isinstance(value, Complete) else None)
        return from_returned(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - boundary: as above
        return from_error(error)


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


@contextmanager
def _undoing_what_is_broken(database: Database) -> Iterator[None]:
    """A worker's statements are transactions of their own; within the test's, an error of the database would break all
    of it. What a task wrote before another error stays, as it would there."""
    connection = database.connection
    if not connection.in_atomic_block:
        yield
        return
    place = connection.savepoint()
    try:
        yield
    finally:
        try:
            connection.savepoint_commit(place)
        except DatabaseError:  # broken, or Django says so: what the task has written is gone, as it would be there
            connection.set_rollback(False)
            connection.savepoint_rollback(place)
            connection.savepoint_commit(place)
