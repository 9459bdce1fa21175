"""What a real worker makes of a task: states, errors, attempts, signals, connections. What Django's own tests, which
run a task at once, cannot see."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_finished, task_started

from stowhand.django import StowhandBackend
from stowhand.django.project import app_of
from stowhand.django.results import AttemptTimedOut, JobCanceled
from stowhand.jobs.job import NewJob, State
from stowhand.protocols.queue_store import QueueStore, Reschedule
from tests.django.conftest import drain

Status = TaskResultStatus


def test_a_task_that_returns(backend: StowhandBackend, shop: Any) -> None:
    results = [task.using(backend=backend.alias).enqueue(1, other=2) for task in (shop.add, shop.add_later)]
    drain(backend)
    for result in results:
        result.refresh()
        assert (result.status, result.return_value, result.attempts) == (Status.SUCCESSFUL, 3, 1)
        assert result.worker_ids == ["here"]
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert result.errors == []


def test_a_task_writes_with_the_orm_and_enqueues(site: None, shop: Any) -> None:
    backend = task_backends["default"]
    now, later = shop.place.enqueue("now"), shop.place_later.enqueue("later")
    drain(backend)
    now.refresh()
    later.refresh()
    from tests.django.site.shop.models import Order

    names = {Order.objects.get(pk=result.return_value).name for result in (now, later)}
    assert names == {"now", "later"}


@pytest.mark.parametrize(
    ("task", "kind", "said"),
    [
        ("refuse", ValueError, "ValueError: no more"),
        ("leave", SystemExit, "SystemExit: no more"),
        ("leave_later", SystemExit, "SystemExit: no more"),
        ("return_what_is_no_json", TypeError, "Unsupported type"),
    ],
)
def test_a_task_that_fails(backend: StowhandBackend, shop: Any, task: str, kind: type, said: str) -> None:
    given = ("no more",) if task == "refuse" else ()
    result = getattr(shop, task).using(backend=backend.alias).enqueue(*given)
    drain(backend)
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == (Status.FAILED, 1, ["here"])
    (error,) = result.errors
    assert error.exception_class is kind
    assert error.traceback.startswith("Traceback (most recent call last)")
    assert said in error.traceback.splitlines()[-1]
    with pytest.raises(ValueError, match="Task failed"):
        assert result.return_value


def test_an_attempt_that_failed_is_kept_when_the_next_one_succeeds(backend: StowhandBackend, shop: Any) -> None:
    result = shop.fail_once.using(backend=backend.alias).enqueue(f"once {backend.alias}")
    drain(backend)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (Status.READY, 1, 1)
    first_start = result.started_at
    due_now(backend, result.id)
    drain(backend)
    result.refresh()
    assert (result.status, result.return_value) == (Status.SUCCESSFUL, "done")
    assert (result.attempts, result.worker_ids) == (2, ["here", "here"])
    assert result.errors[0].exception_class is ConnectionError
    assert result.started_at == first_start
    assert result.last_attempted_at > first_start


def test_a_task_that_takes_too_long(backend: StowhandBackend, shop: Any) -> None:
    result = shop.too_long.using(backend=backend.alias).enqueue()
    with heard() as signals:
        drain(backend)
    result.refresh()
    assert result.status == Status.FAILED
    assert result.errors[0].exception_class is AttemptTimedOut
    assert signals[result.id] == [Status.RUNNING, Status.FAILED]


def test_a_job_that_is_canceled_has_failed(backend: StowhandBackend, shop: Any) -> None:
    result = shop.add.using(backend=backend.alias).enqueue(1)
    act(backend, lambda store: store.admin.cancel(int(result.id)))
    result.refresh()
    assert (result.status, result.attempts) == (Status.FAILED, 0)
    assert result.errors[0].exception_class is JobCanceled


def test_a_list_is_a_result_and_an_outcome_is_obeyed(backend: StowhandBackend, shop: Any) -> None:
    a_list = shop.return_a_list.using(backend=backend.alias).enqueue()
    snoozed = shop.snooze.using(backend=backend.alias).enqueue()
    drain(backend)
    a_list.refresh()
    snoozed.refresh()
    assert a_list.return_value == [1, 2]
    assert (snoozed.status, snoozed.attempts) == (Status.READY, 0)


def test_the_context_counts_attempts(backend: StowhandBackend, shop: Any) -> None:
    result = shop.attempt.using(backend=backend.alias).enqueue()
    drain(backend)
    result.refresh()
    assert result.return_value == 1


def test_signals_are_sent_by_the_worker_and_never_on_its_loop(backend: StowhandBackend, shop: Any) -> None:
    tasks = (shop.add, shop.add_later)
    results = [task.using(backend=backend.alias).enqueue(1) for task in tasks]
    threads: set[int] = set()

    def note(**_: Any) -> None:
        threads.add(threading.get_ident())

    task_started.connect(note)
    task_finished.connect(note)
    try:
        with heard() as signals:
            drain(backend)
    finally:
        task_started.disconnect(note)
        task_finished.disconnect(note)
    assert [signals[result.id] for result in results] == [[Status.RUNNING, Status.SUCCESSFUL]] * 2
    assert threading.get_ident() not in threads


def test_what_is_tried_again_has_not_finished(backend: StowhandBackend, shop: Any) -> None:
    result = shop.fail_once.using(backend=backend.alias).enqueue(f"signal {backend.alias}")
    with heard() as signals:
        drain(backend)
        due_now(backend, result.id)
        drain(backend)
    assert signals[result.id] == [Status.RUNNING, Status.RUNNING, Status.SUCCESSFUL]


def test_a_receiver_that_raises_changes_nothing(backend: StowhandBackend, shop: Any) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("a receiver's fault")

    result = shop.add.using(backend=backend.alias).enqueue(1)
    task_finished.connect(refuse)
    try:
        drain(backend)
    finally:
        task_finished.disconnect(refuse)
    result.refresh()
    assert (result.status, result.attempts) == (Status.SUCCESSFUL, 1)


def test_a_job_of_a_path_that_is_no_task_is_left_alone(backend: StowhandBackend, shop: Any) -> None:
    with backend.database.transaction() as jobs:
        other = jobs.enqueue(NewJob(task="os.getcwd", payload='{"args": []}'))
    drain(backend)
    left = backend.database.jobs.get(other.id)
    assert left is not None
    assert (left.state, left.attempts) == (State.QUEUED, 0)
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(str(other.id))


def test_a_payload_of_another_program_is_an_error_of_the_attempt(backend: StowhandBackend, shop: Any) -> None:
    with backend.database.transaction() as jobs:
        other = jobs.enqueue(NewJob(task=shop.add.module_path, payload='{"args": [1], "kwargs": 3}', max_attempts=1))
    drain(backend)
    failed = backend.database.jobs.get(other.id)
    assert failed is not None
    assert failed.state == State.FAILED
    assert "argument 'kwargs': Expected 'object | null', got 'int'" in str(failed.last_error)


def test_a_lost_connection_costs_one_attempt(site: None, shop: Any) -> None:
    backend = task_backends["postgres"]
    drain(backend)
    result = shop.lose_connection.using(backend="postgres").enqueue()
    drain(backend)
    due_now(backend, result.id)
    drain(backend)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (Status.SUCCESSFUL, "there", 2)


@contextmanager
def heard() -> Iterator[dict[str, list[str]]]:
    """The states of which receivers hear, by job."""
    states: dict[str, list[str]] = {}

    def note(task_result: Any, **_: Any) -> None:
        states.setdefault(task_result.id, []).append(task_result.status)

    for each in (task_started, task_finished):
        each.connect(note)
    try:
        yield states
    finally:
        for each in (task_started, task_finished):
            each.disconnect(note)


def act(backend: StowhandBackend, call: Callable[[QueueStore], Coroutine[Any, Any, object]]) -> None:
    async def call_it() -> None:
        async with app_of(backend) as app:
            await call(await app.open())

    asyncio.run(call_it())


def due_now(backend: StowhandBackend, job_id: str) -> None:
    """What waits for its retry need not."""

    async def reschedule(store: QueueStore) -> None:
        await store.admin.reschedule_jobs([int(job_id)], Reschedule(run_at=await store.timetable.now()))

    act(backend, reschedule)
