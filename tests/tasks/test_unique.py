"""``unique=``: which jobs are the same, on every way in, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stowhand import App, NewJob
from stowhand.cron.crontab import parse_crontab
from stowhand.cron.sources import declared
from stowhand.errors import ConfigurationError, InvalidJob
from stowhand.jobs.job import KeyMode
from tests.support.checkers import expected, under_mypy


@dataclass
class Address:
    street: str
    number: int = 1


pytestmark = pytest.mark.anyio


@pytest.fixture
def app() -> App:
    return App("memory://")


def same(*jobs: NewJob) -> bool:
    assert all(job.key_mode is KeyMode.UNIQUE and job.key for job in jobs)
    return len({job.key for job in jobs}) == 1


def test_the_key_is_made_of_the_task_and_all_arguments_with_defaults(app: App) -> None:
    @app.task(unique="arguments")
    def send(to: str, weight: float = 1, tags: frozenset[str] = frozenset()) -> None: ...

    @app.task(unique="arguments")
    def post(to: str, weight: float = 1, tags: frozenset[str] = frozenset()) -> None: ...

    tags = frozenset({"a", "b", "c", "d", "e"})
    assert same(send.new_job("x"), send.new_job(to="x", weight=1.0, tags=frozenset()))
    assert same(send.new_job("x", tags=tags), send.new_job("x", tags=frozenset(sorted(tags, reverse=True))))
    assert not same(send.new_job("x"), send.new_job("x", 2))
    assert not same(send.new_job("x"), post.new_job("x"))


def test_the_key_stays_the_same_in_later_versions_and_shows_no_argument(app: App) -> None:
    @app.task(unique="arguments")
    def send(to: str, at: Address = Address("Main")) -> None: ...  # noqa: B008 - a default that is never changed

    assert send.new_job("secret").key == "unique:send:91664b3e8663c9aa121e89612ca28476"


def test_a_function_computes_the_unique_value(app: App) -> None:
    @app.task(unique=lambda at: (at.street, at.number))
    def visit(at: Address, note: str = "") -> None: ...

    assert same(visit.new_job(Address("Main")), visit.new_job(Address("Main", 1), "in a hurry"))
    assert not same(visit.new_job(Address("Main")), visit.new_job(Address("Main", 2)))


async def test_it_holds_on_every_way_in_where_the_app_is_known(app: App) -> None:
    @app.task(unique="arguments")
    def send(to: str, copies: int = 1) -> None: ...

    app.cron("* * * * *", send, {"to": "x"})
    (item,) = declared(parse_crontab('* * * * * send ?id=other {"to": "x", "copies": 1}'), app.registry)
    first = await send.enqueue("x")
    ids = {
        (await app.add_job("send", {"copies": 1, "to": "x"})).id,
        (await app.enqueue(app.cron_items[0].job(datetime(2030, 1, 1, tzinfo=UTC), backfilled=False))).id,
        (await app.enqueue(item.job(datetime(2030, 1, 2, tzinfo=UTC), backfilled=False))).id,
        (await app.enqueue(app.registry.with_declaration(NewJob(task="send", payload='{"to":"x"}')))).id,
        (await app.enqueue(app.registry.with_declaration(send.new_job("x")))).id,
        *[handle.id for handle in await send.enqueue_many([{"to": "x"}, {"to": "x"}])],
    }
    assert ids == {first.id}


def test_a_period_holds_on_every_way_in_where_the_app_is_known(app: App) -> None:
    @app.task(unique="arguments", unique_period="1h")
    def send(to: str) -> None: ...

    app.cron("* * * * *", send, {"to": "x"})
    (item,) = declared(parse_crontab('* * * * * send {"to": "x"}'), app.registry)
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    jobs = [
        send.new_job("x"),
        send.options(priority=1).new_job("x"),
        app.registry.new_job("send", {"to": "x"}, {}),
        app.registry.with_declaration(NewJob(task="send", payload='{"to":"x"}')),
        app.registry.with_declaration(send.new_job("x")),
        app.cron_items[0].job(moment, backfilled=False),
        item.job(moment, backfilled=False),
    ]
    assert same(*jobs)
    assert {job.unique_period for job in jobs} == {3600.0}


async def test_jobs_of_a_crontab_with_one_payload_are_the_same(app: App) -> None:
    @app.task(unique="arguments")
    def report(payload: dict[str, Any]) -> None: ...

    app.cron("* * * * *", report, {"to": "x"})
    one, two = (app.cron_items[0].job(datetime(2030, 1, 1, hour, tzinfo=UTC), backfilled=False) for hour in (1, 2))
    assert same(one, two)


def test_an_explicit_key_beside_it_is_refused(app: App) -> None:
    @app.task(unique="arguments")
    def send(to: str) -> None: ...

    calls: list[Callable[[], object]] = [
        lambda: send.options(key="mine"),
        lambda: app.registry.new_job("send", {"to": "x"}, {"key": "mine"}),
        lambda: app.registry.with_declaration(NewJob(task="send", payload='{"to":"x"}', key="mine")),
    ]
    for call in calls:
        with pytest.raises(InvalidJob, match="unique computes the keys of task 'send'"):
            call()
    with pytest.raises(ConfigurationError, match="unique computes the keys of task 'send'"):
        app.cron("* * * * *", send, {"to": "x"}, key="mine")
    with pytest.raises(ConfigurationError, match="unique computes the keys of task 'send'"):
        declared(parse_crontab('* * * * * send ?jobKey=mine {"to": "x"}'), app.registry)


@pytest.mark.parametrize(
    ("unique", "complaint"),
    [
        ("argument", "task 'send': unique='argument'; did you mean 'arguments'"),
        (True, "task 'send': unique=a bool"),
        (lambda two: two, "the function takes two, which is not an argument of the task; it may take: to"),
        (lambda *to: to, "the function takes \\*to"),
    ],
)
def test_a_wrong_declaration_is_refused_at_import(app: App, unique: Any, complaint: str) -> None:
    def send(to: str) -> None: ...

    with pytest.raises(ConfigurationError, match=complaint):
        app.task(unique=unique)(send)


@pytest.mark.parametrize(
    ("period", "complaint"),
    [
        ("soon", "task 'send': unique_period: 'soon'"),
        (0, "task 'send': unique_period: 0 seconds; use more, or leave it out"),
        (-1, "task 'send': unique_period: -1 seconds; it must not be negative"),
        ([], "task 'send': unique_period: got a list"),
    ],
)
def test_a_wrong_period_is_refused_at_import(app: App, period: Any, complaint: str) -> None:
    def send(to: str) -> None: ...

    with pytest.raises(ConfigurationError, match=complaint):
        app.task(unique="arguments", unique_period=period)(send)
    with pytest.raises(ConfigurationError, match="unique_period has no effect without unique"):
        app.task(unique_period="1h")(send)
    with pytest.raises(InvalidJob, match="no option 'unique_period'"):
        app.task(send).options(unique_period="1h")  # type: ignore[call-arg]


def test_a_key_beside_it_and_a_default_without_json_are_refused_at_import(app: App) -> None:
    def send(to: str = "x", how: Any = object) -> None: ...

    with pytest.raises(ConfigurationError, match="use key or unique, not both"):
        app.task(unique=lambda to: to, key="mine")(send)
    with pytest.raises(ConfigurationError, match="the default of 'how'"):
        app.task(unique="arguments")(send)


@pytest.mark.parametrize("wrong", [lambda to: None, lambda to: int(to)])
def test_a_unique_function_that_returns_none_or_raises_enqueues_no_job(
    app: App, wrong: Callable[[str], object]
) -> None:
    @app.task(unique=wrong)
    def send(to: str) -> None: ...

    with pytest.raises(InvalidJob, match="task 'send': the function of unique"):
        send.new_job("x")


PROGRAM = """
from stowhand import App

app = App("memory://")

@app.task(unique="arguments")
async def send(to: str) -> None: ...

@app.task(unique=lambda to: to.lower(), serial="mail")
async def post(to: str) -> None: ...

@app.task(unique="argument")  # E call-overload
async def wrong(to: str) -> None: ...

@app.task(unique=3)  # E call-overload
async def number(to: str) -> None: ...

send.options(unique="arguments")  # E call-arg
send.options(key="k", key_mode="unique")
send.options(key="k", key_mode="single")  # E arg-type
"""


def test_a_checker_knows_what_may_be_declared(tmp_path: Path) -> None:
    assert under_mypy(PROGRAM, tmp_path).keys() == expected(PROGRAM).keys()
