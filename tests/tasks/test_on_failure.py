"""``on_failure=``: what may be named, when it is refused, and that it holds on every way in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from stowhand import App, Failure, NewJob
from stowhand.cron.crontab import parse_crontab
from stowhand.cron.sources import declared
from stowhand.errors import ConfigurationError
from stowhand.protocols.queue_store import JobFilter

pytestmark = pytest.mark.anyio


@pytest.fixture
def app() -> App:
    return App("memory://")


async def test_an_on_failure_task_receives_the_declared_parameters(app: App) -> None:
    messages: list[Failure] = []

    @app.task(serial="mail", max_attempts=3)
    async def notify(payload: Failure) -> None:
        messages.append(payload)

    @app.task(on_failure=notify, max_attempts=1)
    async def send(to: str) -> None:
        raise ValueError("nobody is there")

    async with app:
        job = await send.enqueue("x")
        await app.worker(once=True).run()
        (failure,) = messages
        assert (failure.job_id, failure.task, failure.arguments) == (job.id, "send", {"to": "x"})
        assert "nobody is there" in failure.error
        (done,) = await (await app.open()).inspect.list(JobFilter(task="notify", states=("completed",)))  # type: ignore[arg-type]
        assert (done.serial, done.max_attempts) == ("mail", 3)


async def test_it_takes_the_facts_as_parameters_too(app: App) -> None:
    messages: list[object] = []

    @app.task
    def note(job_id: int, task: str, arguments: Any, error_class: str | None, error: str) -> None:
        messages.append((job_id, task, arguments, error_class, error))

    @app.task(on_failure=note)
    def send(to: str) -> None: ...

    async with app:
        job = await send.enqueue("x")
        await (await app.open()).admin.permanently_fail_jobs([job.id], "not today")
        await app.worker(once=True).run()
    assert messages == [(job.id, "send", {"to": "x"}, "by hand", "not today")]


def test_a_task_may_be_named_before_it_is_declared(app: App) -> None:
    @app.task(on_failure="notify")
    def send(to: str) -> None: ...

    assert send.new_job("x").on_failure == NewJob(task="notify")

    @app.task(serial="mail", on_failure="notify")
    def notify(payload: Failure) -> None: ...

    assert send.new_job("x").on_failure == NewJob(task="notify", queue="default", serial="mail"), (
        "and it tells of nobody"
    )


async def test_it_holds_on_every_way_in_where_the_app_is_known(app: App) -> None:
    @app.task(serial="mail")
    def notify(payload: Failure) -> None: ...

    @app.task(on_failure=notify.options(priority=3))
    def send(to: str) -> None: ...

    app.cron("* * * * *", send, {"to": "x"})
    (item,) = declared(parse_crontab('* * * * * send ?id=other {"to": "x"}'), app.registry)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    jobs = [
        send.new_job("x"),
        send.options(delay=3).new_job("x"),
        app.registry.new_job("send", {"to": "x"}, {}),
        app.registry.with_declaration(NewJob(task="send", payload='{"to":"x"}')),
        app.cron_items[0].job(at, backfilled=False),
        item.job(at, backfilled=False),
    ]
    assert [job.on_failure for job in jobs] == [
        NewJob(task="notify", queue="default", serial="mail", priority=3)
    ] * len(jobs)
    own = NewJob(task="send", payload='{"to":"x"}', on_failure=NewJob(task="other"))
    assert app.registry.with_declaration(own).on_failure == NewJob(task="other")


def test_max_attempts_of_an_app_applies_to_these_jobs() -> None:
    from stowhand.protocols.store import with_max_attempts

    job = with_max_attempts(NewJob(task="t", on_failure=NewJob(task="told")), 7)
    assert job.on_failure is not None
    assert (job.max_attempts, job.on_failure.max_attempts) == (7, 7)


def takes_too_little(job_id: int) -> None: ...


def takes_another_type(payload: int) -> None: ...


def needs_a_class(job_id: int, task: str, arguments: Any, error_class: str, error: str) -> None: ...


@pytest.mark.parametrize("function", [takes_too_little, takes_another_type, needs_a_class])
@pytest.mark.parametrize("by_name", [False, True])
def test_an_on_failure_task_without_the_parameters_is_refused(
    app: App, function: Callable[..., None], by_name: bool
) -> None:
    def declare() -> None:
        if by_name:
            app.task(on_failure=function.__name__)(lambda_of("send"))
            app.task(function)
        else:
            app.task(on_failure=app.task(function))(lambda_of("send"))

    with pytest.raises(ConfigurationError, match=f"task 'send': on_failure='{function.__name__}'") as refused:
        declare()
    assert "declare it with (payload: Failure), or with parameters of these names: job_id" in str(refused.value)


def lambda_of(name: str) -> Callable[[], None]:
    def function() -> None: ...

    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (3, "task 'send': on_failure=an int; use a task declared with @app.task"),
        (lambda_of("plain"), "task 'send': on_failure=a function"),
        ("two\nlines", "task 'send': on_failure"),
        ("jobs:purge_completed", "task 'send': on_failure: 'jobs:purge_completed' is a built-in task"),
    ],
)
def test_an_object_that_is_not_a_task_is_refused_at_import(app: App, given: Any, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        app.task(on_failure=given)(lambda_of("send"))


@pytest.mark.parametrize("options", [{"key": "k"}, {"unique": "arguments"}, {"expires": "1h"}])
def test_an_on_failure_task_with_keys_is_refused(app: App, options: dict[str, Any]) -> None:
    @app.task(**options)
    def notify(payload: Failure) -> None: ...

    with pytest.raises(ConfigurationError, match="its jobs have keys, or expire"):
        app.task(on_failure=notify)(lambda_of("send"))


def test_a_failure_reads_what_a_store_writes() -> None:
    text = '{"job_id": 1, "task": "t", "arguments": {"a": [1]}, "error_class": null, "error": ""}'
    assert msgspec.json.decode(text, type=Failure) == Failure(1, "t", {"a": [1]}, None, "")
