"""What a real worker makes of a task: states, errors, attempts, signals, connections. What Django's own tests, which
run a task at once, cannot see."""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_finished, task_started

from stowhand import App, Snooze
from stowhand.django import StowhandBackend
from stowhand.django.attempts import StopMiddleware
from stowhand.django.project import app_of
from stowhand.django.results import AttemptTimedOut, JobCanceled, WorkerDied, timeout_of
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.attempt import Attempt, Stop
from stowhand.protocols.handler import handler
from stowhand.protocols.queue_store import QueueStore, Reschedule
from stowhand.protocols.store import ClaimRequest
from tests.django.conftest import drain

Status = TaskResultStatus


def test_a_returned_value_is_the_result(backend: StowhandBackend, shop: Any) -> None:
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
def test_an_error_is_in_the_result(backend: StowhandBackend, shop: Any, task: str, kind: type, said: str) -> None:
    value = ("no more",) if task == "refuse" else ()
    result = getattr(shop, task).using(backend=backend.alias).enqueue(*value)
    drain(backend)
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == (Status.FAILED, 1, ["here"])
    (error,) = result.errors
    assert error.exception_class is kind
    assert error.traceback.startswith("Traceback (most recent call last)")
    assert said in error.traceback.splitlines()[-1]
    with pytest.raises(ValueError, match="Task failed"):
        assert result.return_value


def test_a_failed_attempt_is_kept_after_a_success(backend: StowhandBackend, shop: Any) -> None:
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


def test_a_timeout_is_in_the_result(backend: StowhandBackend, shop: Any) -> None:
    result = shop.too_long.using(backend=backend.alias).enqueue()
    with heard() as signals:
        drain(backend)
    result.refresh()
    assert result.status == Status.FAILED
    assert result.errors[0].exception_class is AttemptTimedOut
    assert signals[result.id] == [Status.RUNNING, Status.FAILED]


def test_a_call_can_have_its_own_timeout(backend: StowhandBackend, shop: Any) -> None:
    """Longer or shorter than that of its task, which the others of that task keep."""
    nap = shop.nap.using(backend=backend.alias)
    patient = nap.using(timeout="1m")
    longer, shorter, own = (
        patient.enqueue(0.05),
        nap.using(timeout=timedelta(seconds=0.02)).enqueue(60),
        nap.enqueue(60),
    )
    drain(backend)
    for result in (longer, shorter, own):
        result.refresh()
    assert longer.status == Status.SUCCESSFUL
    assert backend.get_result(longer.id).task == patient
    assert [one.errors[0].exception_class for one in (shorter, own)] == [AttemptTimedOut] * 2
    assert "longer than 0.02 s" in shorter.errors[0].traceback
    assert "longer than 0.01 s" in own.errors[0].traceback


@pytest.mark.parametrize("written", ['"soon"', "-1", "null", "[1]", "1e300"])
def test_an_invalid_timeout_is_ignored(backend: StowhandBackend, shop: Any, written: str) -> None:
    """SQL may write anything there."""
    payload = f'{{"args": [0], "_timeout": {written}}}'
    job = backend.database.enqueue(NewJob(task=shop.nap.module_path, payload=payload))
    assert timeout_of(job) is None
    assert backend.get_result(str(job.id)).task.timeout == "10ms"


def test_a_job_may_have_values_that_django_refuses(backend: StowhandBackend, shop: Any) -> None:
    """A priority that SQL, or a hand, has given; a queue that is no longer in QUEUES."""
    name = shop.add.module_path
    urgent = backend.database.enqueue(NewJob(task=name, payload='{"args": [1], "_timeout": "1m"}', priority=-1000))
    delay = timedelta(hours=1)
    orphan = backend.database.enqueue(
        NewJob(task=name, payload='{"args": [1]}', queue="closed", priority=-1, delay=delay.total_seconds())
    )
    drain(backend)
    result = backend.get_result(str(urgent.id))
    assert (result.status, result.return_value, result.task.priority) == (Status.SUCCESSFUL, 1, shop.add.priority)
    left = backend.get_result(str(orphan.id))
    assert (left.status, left.task.queue_name, left.task.priority) == (Status.READY, "default", 1)


def test_a_job_that_killed_its_workers_has_failed_with_that_error(backend: StowhandBackend, shop: Any) -> None:
    result = shop.add.using(backend=backend.alias).enqueue(1)

    async def die(store: QueueStore) -> None:
        heartbeats = store.heartbeats()
        tasks = (shop.add.module_path,)
        for death in range(6):
            request = ClaimRequest(
                worker=f"w{death}", token=str(uuid.uuid4()), limit=1, lease=60.0, tasks=tasks, suspects=death > 1
            )
            (claim,) = await store.claim(request)
            assert len(await heartbeats.reset_lease(claim.lease)) == 1
        await heartbeats.close()

    act(backend, die)
    result.refresh()
    assert (result.status, result.is_finished) == (Status.FAILED, True)
    assert {error.exception_class for error in result.errors} == {WorkerDied}
    assert result.errors[0].traceback == "the worker w0 died while running it\n"
    assert result.errors[-1].traceback == "its worker died 6 times while running it\n"
    with pytest.raises(ValueError, match="Task failed"):
        assert result.return_value


def test_a_canceled_job_has_failed(backend: StowhandBackend, shop: Any) -> None:
    result = shop.add.using(backend=backend.alias).enqueue(1)
    act(backend, lambda store: store.admin.cancel(int(result.id)))
    result.refresh()
    assert (result.status, result.attempts) == (Status.FAILED, 0)
    assert result.errors[0].exception_class is JobCanceled


@pytest.mark.parametrize(
    ("end", "status"),
    [(1, Status.SUCCESSFUL), (Snooze("1h"), Status.FAILED), (ValueError("no more"), Status.FAILED)],
    ids=["returns", "snoozes", "raises"],
)
def test_receivers_get_a_def_that_was_canceled_and_ended_in_time(
    backend: StowhandBackend, shop: Any, end: object, status: str
) -> None:
    result = shop.add.using(backend=backend.alias).enqueue(1)

    async def handle(attempt: Attempt[Job], job: Job) -> object:
        attempt.cancel(Stop.CANCELED)
        if isinstance(end, ValueError):
            raise end
        return end

    async def end_one(store: QueueStore) -> None:
        # Only this task: a retry that an earlier test left may be due by now.
        request = ClaimRequest(worker="w", token=str(uuid.uuid4()), limit=1, lease=60.0, tasks=(shop.add.module_path,))
        (claim,) = await store.claim(request)
        with suppress(ValueError):
            await StopMiddleware(backend, handler(handle)).handle(Attempt(claim, started=0.0), claim.record)

    with heard() as signals:
        act(backend, end_one)
    assert signals[result.id] == [status]


def test_a_list_is_a_result_and_an_outcome_is_applied(backend: StowhandBackend, shop: Any) -> None:
    a_list = shop.return_a_list.using(backend=backend.alias).enqueue()
    snoozed = shop.snooze.using(backend=backend.alias).enqueue()
    drain(backend)
    a_list.refresh()
    snoozed.refresh()
    assert a_list.return_value == [1, 2]
    assert (snoozed.status, snoozed.attempts) == (Status.READY, 0)


@pytest.mark.parametrize("raises", [False, True], ids=["returned", "raised"])
@pytest.mark.parametrize("task", ["end_as", "end_later_as"])
def test_receivers_get_the_recorded_outcome(backend: StowhandBackend, shop: Any, task: str, raises: bool) -> None:
    ends = {"retry": Status.FAILED, "fail": Status.FAILED, "cancel": Status.FAILED, "snooze": Status.READY}
    ending = getattr(shop, task).using(backend=backend.alias)
    results = {how: ending.enqueue(how, raises) for how in ends}
    with heard() as signals:
        drain(backend)
    for how, result in results.items():
        result.refresh()
        assert result.status == ends[how]
        finished = [] if how == "snooze" else [Status.FAILED]
        assert signals[result.id] == [Status.RUNNING, *finished]
    assert results["cancel"].errors[0].exception_class is JobCanceled
    assert [results[how].errors[0].traceback for how in ("retry", "fail")] == ["busy\n", "never\n"]


def test_the_context_counts_attempts(backend: StowhandBackend, shop: Any) -> None:
    result = shop.attempt.using(backend=backend.alias).enqueue()
    drain(backend)
    result.refresh()
    assert result.return_value == 1


@pytest.mark.parametrize(("queue", "ran"), [("heavy", [True, False, True]), ("default", [False, True, False])])
def test_a_worker_serves_the_queues_of_django(site: None, shop: Any, queue: str, ran: list[bool]) -> None:
    """Declared so, or by the call."""
    backend = task_backends["default"]
    drain(backend)
    results = [one.enqueue(1) for one in (shop.add.using(queue_name="heavy"), shop.add)]
    results.append(shop.report.using(key=f"of {queue}").enqueue("a"))
    drain(backend, queues=[queue])
    for result in results:
        result.refresh()
    assert [result.is_finished for result in results] == ran


def test_a_coroutine_has_its_own_thread_and_connections_which_are_closed(site: None, shop: Any) -> None:
    backend = task_backends["postgres"]
    results = [shop.where.using(backend="postgres").enqueue() for _ in range(2)]
    drain(backend)
    for result in results:
        result.refresh()
    (one, of_one), (other, of_other) = (result.return_value for result in results)
    assert one != other
    with connections["postgres"].cursor() as cursor:
        cursor.execute("select pid from pg_stat_activity where pid = any(%s)", [[of_one, of_other]])
        assert cursor.fetchall() == []


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


def test_a_retried_task_has_not_finished(backend: StowhandBackend, shop: Any) -> None:
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


def test_a_job_with_an_unknown_path_waits_and_nothing_is_imported(backend: StowhandBackend, shop: Any) -> None:
    """A worker of a newer version may have it."""
    assert "this" not in sys.modules
    other = backend.database.enqueue(NewJob(task="this.s", payload='{"args": []}'))
    events: list[str] = []

    async def work_and_ask(app: App) -> None:
        store = await app.open()
        async with app.run_in_background(), asyncio.timeout(60):
            while "unknown_task" not in events:  # its worker may not have said yet what it has
                explained = await store.inspect.explain(other.id)
                assert explained is not None
                events[:] = [reason.code for reason in explained.reasons]
                await asyncio.sleep(0.02)

    drain(backend)
    act_on(backend, work_and_ask)
    assert "this" not in sys.modules
    left = backend.database.jobs.get(other.id)
    assert left is not None
    assert (left.state, left.attempts) == (State.QUEUED, 0)
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(str(other.id))


def test_a_payload_of_another_program_fails_the_attempt(backend: StowhandBackend, shop: Any) -> None:
    other = backend.database.enqueue(
        NewJob(task=shop.add.module_path, payload='{"args": [1], "kwargs": 3}', max_attempts=1)
    )
    drain(backend)
    failed = backend.database.jobs.get(other.id)
    assert failed is not None
    assert failed.state == State.FAILED
    assert "argument 'kwargs': Expected 'object | null', got 'int'" in str(failed.last_error)


def test_a_lost_connection_fails_one_attempt(site: None, shop: Any) -> None:
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
    async def call_it(app: App) -> None:
        await call(await app.open())

    act_on(backend, call_it)


def act_on(backend: StowhandBackend, call: Callable[[App], Coroutine[Any, Any, object]]) -> None:
    async def call_it() -> None:
        async with app_of(backend) as app:
            await call(app)

    asyncio.run(call_it())


def due_now(backend: StowhandBackend, job_id: str) -> None:
    """What waits for its retry need not."""

    async def reschedule(store: QueueStore) -> None:
        await store.admin.reschedule_jobs([int(job_id)], Reschedule(run_at=await store.timetable.now()))

    act(backend, reschedule)
