"""`drain` in a project's tests: within the transaction of a TestCase, and in a TransactionTestCase as it is."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connections, transaction
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import TaskResultDoesNotExist
from django.test import TestCase, TransactionTestCase, override_settings

from stowhand.django.testing import drain
from stowhand.errors import ConfigurationError

Status = TaskResultStatus
DATABASES = {"default", "postgres"}


def shop() -> Any:
    from tests.django.site.shop import tasks

    return tasks


@pytest.mark.usefixtures("site")
class InATestCase(TestCase):
    """Nothing is committed: a worker would see no job, and no row."""

    databases = DATABASES

    def setUp(self) -> None:
        """What other tests have left to do is done."""
        for alias in DATABASES:
            drain(alias, raises=False)

    def test_due_jobs_run_with_the_jobs_that_they_enqueue(self) -> None:
        result = shop().place.enqueue("an order")
        assert len(drain()) == 2
        result.refresh()
        assert result.status == Status.SUCCESSFUL
        assert result.worker_ids == ["drain"]

    def test_a_raised_outcome_equals_a_returned_one(self) -> None:
        ends = {"retry": Status.FAILED, "fail": Status.FAILED, "cancel": Status.FAILED, "snooze": Status.READY}
        for task in (shop().end_as, shop().end_later_as):
            for raises in (False, True):
                results = {how: task.enqueue(how, raises) for how in ends}
                ran = drain()
                assert [one.error for one in ran.ran] == [None] * 4
                for how, result in results.items():
                    result.refresh()
                    assert result.status == ends[how]

    def test_drain_runs_a_coroutine_on_postgres(self) -> None:
        results = [task.using(backend="postgres").enqueue(1, other=2) for task in (shop().add, shop().add_later)]
        assert len(drain("postgres")) == 2
        for result in results:
            result.refresh()
            assert (result.status, result.return_value) == (Status.SUCCESSFUL, 3)

    def test_drain_works_from_a_coroutine(self) -> None:
        async def enqueue_and_drain() -> Any:
            from asgiref.sync import sync_to_async

            result = await shop().add_later.aenqueue(1)
            await sync_to_async(drain)()
            await result.arefresh()
            return result.return_value

        from asgiref.sync import async_to_sync

        assert async_to_sync(enqueue_and_drain)() == 1

    def test_a_failed_job_waits_for_its_retry_or_has_failed(self) -> None:
        again, never = shop().fail_once.enqueue("drained"), shop().refuse.enqueue("no")
        drained = drain(raises=False)
        assert drained.counts == {"retry": 1, "failed": 1}
        assert [type(one.error) for one in drained.failures] == [ConnectionError, ValueError]
        again.refresh()
        never.refresh()
        assert (again.status, again.attempts) == (Status.READY, 1)
        assert (never.status, never.errors[0].exception_class) == (Status.FAILED, ValueError)
        assert len(drain()) == 0

    def test_a_database_error_does_not_break_the_tests_transaction(self) -> None:
        for alias in sorted(DATABASES):
            result = shop().break_the_rules.using(backend=alias).enqueue(alias)
            with pytest.raises(IntegrityError):
                drain(alias)
            result.refresh()
            assert result.errors[0].exception_class is IntegrityError
            with connections[alias].cursor() as cursor:
                cursor.execute("select 1")

    def test_the_error_of_a_task_is_raised_after_all_jobs(self) -> None:
        for alias in sorted(DATABASES):
            failed, after = shop().refuse.using(backend=alias).enqueue("no"), shop().add.using(backend=alias).enqueue(1)
            with pytest.raises(ValueError, match="no") as raised:
                drain(alias)
            assert "raised by job" in raised.value.__notes__[0]
            assert "raises=False" in raised.value.__notes__[0]
            for result, status in ((failed, Status.FAILED), (after, Status.SUCCESSFUL)):
                result.refresh()
                assert result.status == status

    def test_an_endless_task_is_reported(self) -> None:
        for alias in sorted(DATABASES):
            results = [shop().add.using(backend=alias).enqueue(number) for number in range(3)]
            with pytest.raises(
                RuntimeError, match=r"2 jobs have run, and more are due; 2 of them were .*add.*limit=20"
            ):
                drain(alias, limit=2)
            assert len(drain(alias, limit=1)) == 1  # the one that was not begun
            for result in results:
                result.refresh()
                assert (result.status, result.attempts) == (Status.SUCCESSFUL, 1)

    def test_another_backend_is_refused(self) -> None:
        with (
            override_settings(TASKS={"default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}}),
            pytest.raises(ConfigurationError, match="is a DummyBackend"),
        ):
            drain()

    def test_the_immediate_backend_runs_tasks_when_enqueued(self) -> None:
        tasks = shop()
        backend = "stowhand.django.testing.ImmediateBackend"
        with override_settings(TASKS={"default": {"BACKEND": backend, "QUEUES": []}}):
            assert tasks.report.enqueue("at once").return_value == "at once"


@pytest.mark.usefixtures("site")
class InATransactionTestCase(TransactionTestCase):
    """What is committed is seen by a worker, too."""

    databases = DATABASES
    available_apps = ["tests.django.site.shop", "stowhand.django"]  # noqa: RUF012 - Django's own form

    def test_drain_commits(self) -> None:
        for alias in sorted(DATABASES):
            result = shop().add.using(backend=alias).enqueue(4)
            assert len(drain(alias)) >= 1
            connections[alias].close()
            assert task_backends[alias].get_result(result.id).return_value == 4

    def test_the_flush_after_a_test_removes_the_jobs(self) -> None:
        for alias in sorted(DATABASES):
            failed, waits = (task.using(backend=alias) for task in (shop().refuse, shop().add))
            results = [failed.enqueue("no"), waits.enqueue(4)]
            assert len(drain(alias, raises=False)) == 2
            results.append(waits.enqueue(5))
            with patch("builtins.input", return_value="no"):
                call_command("flush", database=alias, verbosity=0, inhibit_post_migrate=True)
            assert task_backends[alias].get_result(results[2].id).status == Status.READY
            call_command("flush", database=alias, verbosity=0, interactive=False, inhibit_post_migrate=True)
            assert len(drain(alias)) == 0
            for result in results:
                with pytest.raises(TaskResultDoesNotExist):
                    task_backends[alias].get_result(result.id)
            assert int(waits.enqueue(6).id) > int(results[2].id)

    def test_the_flush_of_a_database_without_model_tables_removes_its_jobs(self) -> None:
        """As a router may have it. Called off, it takes none."""
        for alias in sorted(DATABASES):
            result = shop().add.using(backend=alias).enqueue(4)
            with patch("django.core.management.commands.flush.sql_flush", return_value=[]):
                with patch("builtins.input", return_value="no"):
                    call_command("flush", database=alias, verbosity=0, inhibit_post_migrate=True)
                assert task_backends[alias].get_result(result.id).status == Status.READY
                call_command("flush", database=alias, verbosity=0, interactive=False, inhibit_post_migrate=True)
            with pytest.raises(TaskResultDoesNotExist):
                task_backends[alias].get_result(result.id)

    def test_a_job_of_a_rolled_back_transaction_never_runs(self) -> None:
        drain(raises=False)  # what other tests have left
        with transaction.atomic():
            shop().add.enqueue(4)
            transaction.set_rollback(True)
        assert len(drain()) == 0
