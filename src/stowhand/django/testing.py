"""``drain``, which runs due jobs in the tests of a project, in the thread and on the connection of the test.

A ``TestCase`` never commits its transaction, so ``drain`` can run its jobs, but a worker cannot. In a
``TransactionTestCase`` both can.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import async_to_sync
from django.db import DatabaseError
from django.tasks import base, task_backends
from django.tasks.backends import immediate
from django.utils.json import normalize_json

from stowhand.app.drain import MAX_JOBS_PER_DRAIN, RecordedAttempt
from stowhand.django.attempts import DjangoAttempt
from stowhand.django.backend import StowhandBackend
from stowhand.django.database import Database
from stowhand.django.task import Task
from stowhand.errors import ConfigurationError
from stowhand.jobs import strict_json
from stowhand.jobs.job import Job
from stowhand.jobs.lifecycle import Complete, Outcome, RaisableOutcome, Snooze, settle
from stowhand.jobs.outcomes import OUTCOMES, from_error, from_raised, from_returned
from stowhand.protocols.store import Claim, ClaimRequest
from stowhand.retry import natural
from stowhand.testing.jobs import DrainResult, endless_error, raise_first_failure

WORKER_NAME = "drain"
LEASE_SECONDS = 3600.0


class ImmediateBackend(immediate.ImmediateBackend):
    """Django's backend that runs a task when it is enqueued, with Stowhand's options of ``@task(…)``."""

    task_class = Task


def drain(backend: str = "default", *, raises: bool = True, limit: int = MAX_JOBS_PER_DRAIN) -> DrainResult:
    """Run the due jobs, and those that they enqueue, one after another.

    A job that failed with attempts left waits for its retry, and is not run again.

    Args:
        backend: The alias of the backend in TASKS.
        raises: Whether to raise the error of the first failing task when all jobs have run. If false, only the result
            has it.
        limit: Maximum number of attempts.

    Returns:
        The attempts. ``len`` counts them.

    Raises:
        RuntimeError: More than ``limit`` attempts are due, as of a task that enqueues itself.
        KeyboardInterrupt: A task raised it.

    """
    __tracebackhide__ = True
    own_backend = task_backends[backend]
    if not isinstance(own_backend, StowhandBackend):
        raise ConfigurationError(
            f"drain: TASKS[{backend!r}] is a {type(own_backend).__qualname__}, which keeps no jobs here"
        )
    names = tuple(own_backend.known())
    ran: list[RecordedAttempt] = []
    while (claim := _claimed(own_backend.database, names, ran, limit)) is not None:
        ran.append(_attempt(own_backend, claim))
    return raise_first_failure(DrainResult(ran), raises=raises)


def _claimed(
    database: Database, names: tuple[str, ...], ran: Sequence[RecordedAttempt], limit: int
) -> Claim[Job] | None:
    """Claim the next due job. Raises RuntimeError, without a claim, if ``limit`` attempts have ended."""
    request = ClaimRequest(worker=WORKER_NAME, token=str(uuid.uuid4()), limit=1, lease=LEASE_SECONDS, tasks=names)
    with database.transaction() as jobs:
        claim = next(iter(jobs.claim(request)), None)
        if claim is None or len(ran) < limit:
            return claim
        settlement = settle(Snooze(0.0), attempts=claim.attempts, max_attempts=claim.max_attempts, backoff=natural)
        jobs.settle(claim.lease, settlement)  # Inside the test's transaction an error would not undo the claim.
    raise endless_error(ran, limit)


def _attempt(backend: StowhandBackend, claim: Claim[Job]) -> RecordedAttempt:
    task = backend.known().get(claim.task)
    assert task is not None  # The claim named only tasks of the backend.
    outcome, error = _outcome(backend, task, claim)
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
    return RecordedAttempt(job=claim.record, ended=settlement.ended, outcome=outcome, error=error)


def _outcome(backend: StowhandBackend, task: base.Task, claim: Claim[Job]) -> tuple[Outcome, BaseException | None]:
    try:
        django_attempt = DjangoAttempt(backend, task, claim.record, is_last=claim.attempts >= claim.max_attempts)
        django_attempt.start()
        with _broken_transaction_undone(backend.database):
            try:
                returned = django_attempt.call()
                if iscoroutinefunction(task.func):
                    returned = async_to_sync(_awaited)(returned)
                value: Outcome = returned if isinstance(returned, OUTCOMES) else Complete(normalize_json(returned))
            except KeyboardInterrupt:
                raise
            except RaisableOutcome as raised:
                value = from_raised(raised)
            except BaseException as error:  # boundary: an error of the attempt, as for a worker
                django_attempt.on_error(error)
                raise
        django_attempt.on_return(value)
        return from_returned(value), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - boundary: as above
        return from_error(error), error


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


@contextmanager
def _broken_transaction_undone(database: Database) -> Iterator[None]:
    """Undo the task's writes after a database error, which would break the test's transaction.

    Writes of a task before any other error are kept, as in a worker.
    """
    connection = database.connection
    if not connection.in_atomic_block:
        yield
        return
    savepoint_id = connection.savepoint()
    try:
        yield
    finally:
        try:
            connection.savepoint_commit(savepoint_id)
        except DatabaseError:  # The transaction is broken: the task's writes are lost, as in a worker.
            connection.set_rollback(False)
            connection.savepoint_rollback(savepoint_id)
            connection.savepoint_commit(savepoint_id)
