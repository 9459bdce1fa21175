"""What Django asks of a backend: enqueueing in the caller's transaction, results, what is refused."""

from __future__ import annotations

import asyncio
import pickle
import textwrap
from datetime import timedelta
from enum import StrEnum
from typing import Any
from unittest import mock

import django
import psycopg
import pytest
from django.db import connections, transaction
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone
from msgspec.structs import replace

from stowhand.django import StowhandBackend
from stowhand.django.database import Database
from stowhand.django.results import result_of
from stowhand.errors import ConfigurationError, InvalidJob, SchemaMissing
from stowhand.jobs.failed_attempts import AttemptEnd, FailedAttempt
from stowhand.jobs.job import NewJob
from stowhand.protocols.store import StoreOptions


class Status(StrEnum):
    PAID = "paid"


@pytest.fixture
def backend(alias: str) -> StowhandBackend:
    """Of each database."""
    result = task_backends[alias]
    assert isinstance(result, StowhandBackend)
    return result


def test_a_job_exists_when_the_transaction_commits(backend: StowhandBackend, shop: Any) -> None:
    with transaction.atomic(using=backend.alias):
        result = shop.add.using(backend=backend.alias).enqueue(1, other=2)
    answer = backend.get_result(result.id)
    assert (answer.status, answer.args, answer.kwargs) == (TaskResultStatus.READY, [1], {"other": 2})
    assert answer == result


def test_a_rolled_back_transaction_removes_its_job(backend: StowhandBackend, shop: Any) -> None:
    with transaction.atomic(using=backend.alias):
        result = shop.add.using(backend=backend.alias).enqueue(1)
        transaction.set_rollback(True, using=backend.alias)
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(result.id)


def test_a_savepoint_takes_its_jobs_with_it(backend: StowhandBackend, shop: Any) -> None:
    send = shop.add.using(backend=backend.alias)
    with transaction.atomic(using=backend.alias):
        kept = send.enqueue(1)
        with transaction.atomic(using=backend.alias):
            undone = send.enqueue(2)
            transaction.set_rollback(True, using=backend.alias)
    assert backend.get_result(kept.id).args == [1]
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(undone.id)


def test_without_a_transaction_the_backend_opens_one(backend: StowhandBackend, shop: Any) -> None:
    result = shop.add.using(backend=backend.alias).enqueue(1)
    assert not connections[backend.alias].in_atomic_block
    if not backend.database.is_in_memory:
        connections[backend.alias].close()
    assert backend.get_result(result.id).args == [1]


def test_a_result_is_found_by_a_number(backend: StowhandBackend, shop: Any) -> None:
    """A path of a view has it as one: ``<int:id>``."""
    result = shop.add.using(backend=backend.alias).enqueue(1)
    number: Any = int(result.id)
    assert backend.get_result(number) == result
    absents: list[Any] = [number + 999_999, -1, None]
    for absent in absents:
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(absent)


def test_missing_tables_name_the_database_to_migrate(site: None) -> None:
    database = Database("postgres", StoreOptions(schema="no_such_schema"))
    with pytest.raises(SchemaMissing, match="migrate --database postgres"):
        database.enqueue(NewJob(task="t"))


def test_an_unknown_database_names_the_known_ones(site: None) -> None:
    database = Database("postgre", StoreOptions())
    for ask in (lambda: database.url, lambda: database.transaction().__enter__()):
        with pytest.raises(ConfigurationError, match="'postgre', which DATABASES lacks; name one of 'default'"):
            ask()


def test_a_worker_uses_the_role_that_the_project_assumes(site: None) -> None:
    database, given = Database("postgres", StoreOptions()), connections["postgres"].settings_dict
    role = r"an owner\of it"
    assumed = {"assume_role": role, "options": "-c statement_timeout=7s"}
    with connections["postgres"].cursor() as cursor:
        cursor.execute(f'create role "{role}"')
        try:
            with mock.patch.dict(given, {"OPTIONS": {**given.get("OPTIONS", {}), **assumed}}):
                url = database.url
            with psycopg.connect(url) as connection:
                result = connection.execute("select current_user, current_setting('statement_timeout')").fetchone()
            assert result == (role, "7s")
        finally:
            cursor.execute(f'drop role "{role}"')


def test_a_job_is_enqueued_from_a_coroutine(backend: StowhandBackend, shop: Any) -> None:
    async def enqueue() -> Any:
        result = await shop.add_later.using(backend=backend.alias).aenqueue(4)
        return await backend.aget_result(result.id)

    assert asyncio.run(enqueue()).args == [4]


def test_a_task_keeps_its_options_when_it_is_changed_and_pickled(backend: StowhandBackend, shop: Any) -> None:
    changed = shop.report.using(backend=backend.alias, key="another", priority=7)
    copy = changed if django.VERSION < (6, 1) else pickle.loads(pickle.dumps(changed))  # 6.0 pickles no tasks
    assert copy == changed
    assert (copy.key, copy.max_attempts, copy.timeout, copy.priority) == ("another", 3, "10s", 7)
    first, second = (copy.enqueue(words) for words in ("a", "b"))
    assert first.id == second.id
    assert backend.get_result(first.id).args == ["b"]
    assert backend.get_result(first.id).task == copy


@pytest.mark.skipif(django.VERSION < (6, 1), reason="6.0 has no task_class: stowhand.django.task is for both")
def test_djangos_own_decorator_takes_the_options(site: None) -> None:
    from django.tasks import task

    declared = task(key="k", max_attempts=2, timeout="5s")(textwrap.dedent)
    assert (declared.key, declared.max_attempts, declared.timeout) == ("k", 2, "5s")
    with pytest.raises(InvalidTask, match="max_attempts"):
        task(max_attempts=0)(textwrap.dedent)


@pytest.mark.parametrize("key", ["{1}", "text"])
def test_the_key_of_a_call_may_be_any_text(backend: StowhandBackend, shop: Any, key: str) -> None:
    """Also one with a brace, or the name of a parameter."""
    result = shop.report.using(backend=backend.alias, key=key).enqueue("a")
    job = backend.database.jobs.get(int(result.id))
    assert job is not None
    assert job.key == key


def test_tasks_of_modules_in_the_options_are_known(site: None) -> None:
    place = "tests.django.site.shop.elsewhere"
    for named in (place, "tests.django.site.shop.*"):
        assert f"{place}.lost" in StowhandBackend("default", {"OPTIONS": {"modules": [named]}}).known()


def test_a_result_has_a_worker_for_each_attempt(backend: StowhandBackend, shop: Any) -> None:
    """Of more than the last ten no name is kept."""
    enqueued = backend.database.jobs.get(int(shop.add.using(backend=backend.alias).enqueue(1).id))
    assert enqueued is not None
    job = replace(enqueued, attempts=3, last_worker="w")
    tries = [FailedAttempt(number=2, worker="v", ended_at=timezone.now(), outcome=AttemptEnd.ERROR)]
    assert result_of(job, tries, shop.add, backend.alias).worker_ids == ["unknown", "v", "w"]


def test_the_largest_priority_runs_first(backend: StowhandBackend, shop: Any) -> None:
    result = shop.add.using(backend=backend.alias, priority=50).enqueue(1)
    job = backend.database.jobs.get(int(result.id))
    assert job is not None
    assert job.priority == -50
    assert backend.get_result(result.id).task.priority == 50


def test_a_job_waits_for_its_time(backend: StowhandBackend, shop: Any) -> None:
    later = timezone.now() + timedelta(hours=1)
    result = shop.add.using(backend=backend.alias, run_after=later).enqueue(1)
    assert backend.get_result(result.id).task.run_after == later


def test_a_task_that_no_worker_imports_is_refused(backend: StowhandBackend) -> None:
    from tests.django.site.shop import elsewhere

    with pytest.raises(InvalidTask, match=r"would never run.*'tests.django.site.shop.elsewhere'"):
        elsewhere.lost.using(backend=backend.alias).enqueue()


def test_the_queue_of_a_job_is_the_one_that_django_names(backend: StowhandBackend, shop: Any) -> None:
    result = shop.add.using(backend=backend.alias, queue_name="heavy").enqueue(1)
    job = backend.database.jobs.get(int(result.id))
    assert job is not None
    assert (job.task, job.queue, job.serial) == ("tests.django.site.shop.tasks.add", "heavy", None)
    assert result.task.queue_name == backend.get_result(result.id).task.queue_name == "heavy"


def test_without_a_list_of_queues_a_call_may_name_any(site: None, shop: Any) -> None:
    backend = StowhandBackend("default", {"QUEUES": [], "OPTIONS": {}})
    assert backend.enqueue(shop.add.using(queue_name="heavy"), [1], {}).task.queue_name == "heavy"


def test_an_argument_that_is_not_json_is_refused(backend: StowhandBackend, shop: Any) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        shop.add.using(backend=backend.alias).enqueue(object())


@pytest.mark.parametrize("wrong", [b"raw", {1: "a"}, [{"a": b"raw"}]], ids=repr)
def test_an_argument_that_json_would_change_is_refused(backend: StowhandBackend, shop: Any, wrong: object) -> None:
    """Django makes text of bytes, and JSON makes text of keys; a tuple may arrive as a list, an enum as its text."""
    task = shop.add.using(backend=backend.alias)
    with pytest.raises(InvalidJob, match=r"add: args\[1\].* would arrive as text; use text"):
        task.enqueue(1, wrong)
    with pytest.raises(InvalidJob, match=r"add: kwargs\.other.* would arrive as text; use text"):
        task.enqueue(1, other=wrong)
    assert task.enqueue((1, Status.PAID)).args == [[1, "paid"]]


def test_arguments_that_the_function_does_not_take_are_refused_as_by_a_call(
    backend: StowhandBackend, shop: Any
) -> None:
    before = backend.database.jobs.count_unfinished()
    for task, args, kwargs, message in [
        (shop.add, (), {}, "missing a required argument: 'one'"),
        (shop.add, (1, 2, 3), {}, "too many positional arguments"),
        (shop.add, (1,), {"others": 2}, "got an unexpected keyword argument 'others'"),
        (shop.add_later, (1,), {"one": 1}, "multiple values for argument 'one'"),
        (shop.attempt, (1,), {}, "too many positional arguments"),
    ]:
        with pytest.raises(TypeError, match=f"{task.module_path}: {message}"):
            task.using(backend=backend.alias).enqueue(*args, **kwargs)
    assert backend.database.jobs.count_unfinished() == before


@pytest.mark.parametrize("wrong", ["", "x", "-1", "123456789012345678901", "1.5"])
def test_an_invalid_id_has_no_result(backend: StowhandBackend, wrong: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(wrong)


def test_the_signal_is_sent_in_the_transaction(backend: StowhandBackend, shop: Any) -> None:
    heard: list[Any] = []

    def listen(sender: Any, task_result: Any, **_: Any) -> None:
        heard.append((sender, task_result.id, connections[backend.alias].in_atomic_block))

    task_enqueued.connect(listen)
    try:
        with transaction.atomic(using=backend.alias):
            result = shop.add.using(backend=backend.alias).enqueue(1)
    finally:
        task_enqueued.disconnect(listen)
    assert heard == [(StowhandBackend, result.id, True)]


@pytest.mark.parametrize(
    "options", [{"max_attempts": 0}, {"max_attempts": "2"}, {"key": ""}, {"timeout": "soon"}, {"timeout": -1}]
)
def test_an_option_that_no_job_can_have_is_refused_when_the_task_is_declared(site: None, options: Any) -> None:
    from stowhand.django import task

    with pytest.raises(InvalidTask, match=next(iter(options))):
        task(**options)(len)


def test_the_settings_are_in_order(backend: StowhandBackend) -> None:
    assert backend.check() == []
