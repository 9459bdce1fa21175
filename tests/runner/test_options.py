"""Options of the store and the tasks. All mistakes are reported at once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg_pool
import pytest

from stowhand.app.app import App
from stowhand.errors import ConfigurationError
from stowhand.protocols.operator import PURGE_TASK
from stowhand.runner import Logger, WorkerEvents, make_worker_utils, quick_add_job, run, run_migrations, run_once
from stowhand.runner.options import NO_STORE, NO_TASKS, RunnerOptions, make_plan
from stowhand.testing import MemoryStore

TASKS = {"x": lambda payload: None}


def mistakes(**options: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        make_plan("run", options, once=False)
    return [line.removeprefix("run: ") for line in str(caught.value).splitlines()]


async def test_a_connection_string_alone_suffices(url: str) -> None:
    await run_once(connection_string=url, task_list=TASKS)


async def test_a_pool_alone_suffices(postgres_url: str) -> None:
    async with psycopg_pool.AsyncConnectionPool(postgres_url, min_size=1, max_size=2) as pool:
        await run_once(pg_pool=pool, task_list=TASKS)


async def test_database_url_alone_suffices(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    await run_once(task_list=TASKS)
    assert (await quick_add_job({}, "x")).task == "x"


async def test_pgdatabase_and_its_companions_alone_suffice(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = urlsplit(postgres_url)
    monkeypatch.setenv("PGDATABASE", parts.path.removeprefix("/"))
    if parts.username:
        monkeypatch.setenv("PGUSER", parts.username)
    for name, (value, *_) in parse_qs(parts.query).items():
        monkeypatch.setenv(f"PG{name.upper()}", value)
    if parts.hostname:
        monkeypatch.setenv("PGHOST", parts.hostname)
    if parts.port:
        monkeypatch.setenv("PGPORT", str(parts.port))
    if parts.password:
        monkeypatch.setenv("PGPASSWORD", parts.password)
    await run_once(task_list=TASKS)


async def test_options_win_over_the_environment(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@localhost:1/nowhere")
    await run_once(connection_string=sqlite_url, task_list=TASKS)


async def test_a_given_pool_wins_over_the_environment(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@localhost:1/nowhere")
    async with psycopg_pool.AsyncConnectionPool(postgres_url, min_size=1, max_size=2) as pool:
        await run_once(pg_pool=pool, task_list=TASKS)


async def test_database_url_wins_over_pgdatabase(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    monkeypatch.setenv("PGDATABASE", "nowhere")
    await run_once(task_list=TASKS)


def test_without_any_store_the_message_names_all_four_ways(surroundings: Path) -> None:
    assert mistakes(task_list=TASKS) == [
        "no store is given; use connection_string or pg_pool, or set DATABASE_URL or PGDATABASE"
    ]
    assert not (surroundings / "stowhand.db").exists()


def test_an_ignored_database_url_is_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "mysql://somewhere/shop")
    assert mistakes(task_list=TASKS) == [f"{NO_STORE}; DATABASE_URL does not name a PostgreSQL database and is ignored"]


def test_the_driver_of_an_ignored_database_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql+asyncpg:///shop")
    assert mistakes(task_list=TASKS) == [
        f"{NO_STORE}; DATABASE_URL names a driver and is ignored: leave out '+asyncpg'"
    ]


async def test_errors_name_the_called_function() -> None:
    with pytest.raises(ConfigurationError, match=r"^make_worker_utils: no store is given"):
        await make_worker_utils()
    with pytest.raises(ConfigurationError, match=r"^quick_add_job: no store is given"):
        await quick_add_job({}, "x")
    with pytest.raises(ConfigurationError, match=r"^run_once: no store is given"):
        await run_once(task_list=TASKS)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (
            {"connection_string": "postgres:///a", "pg_pool": object()},
            "pg_pool and connection_string are both given: use one of them to name the database",
        ),
        (
            {"task_list": TASKS, "task_directory": "tasks"},
            "task_list and task_directory are both given: use one of them to name the tasks",
        ),
        (
            {"crontab": "", "crontab_file": "crontab"},
            "crontab and crontab_file are both given: use one of them to name the recurring items",
        ),
        (
            {"crontab_file": "crontab", "parsed_cron_items": ()},
            "crontab_file and parsed_cron_items are both given: use one of them to name the recurring items",
        ),
    ],
)
def test_two_options_for_the_same_thing_are_refused(pair: dict[str, Any], said: str) -> None:
    assert said in mistakes(**pair)


def test_no_tasks_at_all_are_refused() -> None:
    assert mistakes(connection_string="sqlite:///x.db") == [NO_TASKS]
    assert mistakes(connection_string="sqlite:///x.db", task_list=None, task_directory=None) == [NO_TASKS]
    assert mistakes(connection_string="sqlite:///x.db", task_list={}) == [
        "task_list: use functions by name, as in {'hello': hello}"
    ]


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    (said,) = mistakes(connection_string="sqlite:///x.db", task_list=TASKS, noHandleSignals=True)
    assert said.startswith("no option 'noHandleSignals'; did you mean 'no_handle_signals'? Available: ")


async def test_all_functions_accept_the_same_options(postgres_url: str) -> None:
    options: RunnerOptions = {"connection_string": postgres_url, "task_list": TASKS, "concurrency": 2}
    await run_migrations(**options)
    async with await make_worker_utils(**options) as utils:
        await utils.add_job("x")
    assert (await quick_add_job(options, "x")).id == 2
    await run_once(**options)


def test_all_mistakes_are_reported_at_once() -> None:
    output = mistakes(
        colour="red", concurrency=0, forbidden_flags=[""], logger=print, events={}, crontab="nonsense", schema="pg_x",
        connection_string="postgresql:///shop",
    )  # fmt: skip
    starts = ("no option 'colour'", NO_TASKS, "concurrency: got 0", "logger: ", "events: ", "crontab line 1", "schema")
    for start in starts:
        assert any(line.startswith(start) for line in output), (start, output)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"connection_string": 5}, "connection_string: got an int; use text"),
        ({"connection_string": b"sqlite:///x.db"}, "connection_string: got a bytes; use text"),
        ({"schema": 5}, "schema: got an int; use text"),
        ({"crontab": 5}, "crontab: got an int; use text"),
        ({"crontab_file": 5}, "crontab_file: got an int; use a path"),
        ({"crontab_file": ""}, "crontab_file: an empty path"),
        ({"task_list": None, "task_directory": ""}, "task_directory: an empty path"),
        ({"task_list": None, "task_directory": 5}, "task_directory: got an int; use a path"),
        ({"parsed_cron_items": 5}, "parsed_cron_items: got an int; use what parse_crontab or"),
        ({"no_handle_signals": "no"}, "no_handle_signals: got a str; use True or False"),
        ({"max_pool_size": "10"}, "max_pool_size: got a str; use a whole number"),
        ({"max_pool_size": -1}, "max_pool_size: got -1, must be from 1 to 20000"),
        ({"history": "soon"}, "history: 'soon' is not a duration"),
        ({"history": -1}, "history: got -1, must not be negative"),
        ({"history": float("inf")}, "history: got inf, the limit is 100 years"),
        ({"poll_interval": True}, "poll_interval: got a bool"),
        ({"poll_interval": float("nan")}, "poll_interval: got nan, must be more than 0"),
        ({"poll_interval": 10**400}, "poll_interval: got 10000"),
        ({"lease": "soon"}, "lease: 'soon' is not a duration"),
        ({"lease": float("inf")}, "lease: got inf, the limit is 100 years"),
        ({"grace": float("nan")}, "grace: got nan, must not be negative"),
        ({"concurrency": "5"}, "concurrency: got a str; use a whole number"),
        ({"concurrency": True}, "concurrency: got a bool; use a whole number"),
        ({"concurrency": 2.5}, "concurrency: got a float; use a whole number"),
        ({"concurrency": 10**9}, "concurrency: got 1000000000, must be from 1 to 10000"),
        ({"backoff": 5}, "backoff: got an int; use a function of the attempt's number, or a name: natural, service"),
        ({"name": "a\nb"}, "name: the control character U+000A at position 1"),
        ({"name": ""}, "name: empty"),
    ],
)
def test_an_option_of_a_wrong_type_is_the_only_mistake_reported(wrong: Any, said: str) -> None:
    (only,) = mistakes(**{"connection_string": "sqlite:///x.db", "task_list": TASKS, **wrong})
    assert only.startswith(said)


def test_none_means_the_default_where_that_makes_sense() -> None:
    options: Any = dict.fromkeys(("max_pool_size", "poll_interval", "events", "logger", "crontab", "name", "schema"))
    plan = make_plan("run", {"connection_string": "postgresql:///x", "task_list": TASKS, **options}, once=False)
    assert plan.worker.poll_interval is None


def test_a_poll_interval_in_milliseconds_is_noticed() -> None:
    assert mistakes(connection_string="sqlite:///x.db", task_list=TASKS, poll_interval=1000) == [
        "poll_interval: got 1000, but the unit is seconds; for milliseconds use 1, or a timedelta"
    ]
    plan = make_plan(
        "run",
        {"connection_string": "sqlite:///x.db", "task_list": TASKS, "poll_interval": timedelta(minutes=20)},
        once=False,
    )
    assert plan.worker.poll_interval == 1200.0


def test_a_pool_too_small_for_a_worker_is_refused() -> None:
    (said,) = mistakes(connection_string="postgresql:///shop", task_list=TASKS, max_pool_size=5)
    assert said.startswith("max_pool_size: got 5: a worker keeps 5 connections for")


def test_a_pool_of_another_kind_is_refused() -> None:
    (said,) = mistakes(pg_pool=MemoryStore(), task_list=TASKS)
    assert "it must be a psycopg_pool.AsyncConnectionPool" in said


def test_a_password_is_never_repeated() -> None:
    output = mistakes(connection_string="postgresql://me:hun ter2@host/x", task_list=TASKS)
    assert "hun" not in "".join(output)


def test_defaults_are_those_of_the_command_line() -> None:
    plan = make_plan("run", {"connection_string": "sqlite:///x.db", "task_list": TASKS}, once=False)
    assert (plan.worker.concurrency, plan.worker.poll_interval, plan.worker.tasks) == (4, None, ("x", PURGE_TASK))
    assert plan.signals
    assert isinstance(plan.events, WorkerEvents)


def test_options_reach_the_store_and_the_worker() -> None:
    def flags() -> list[str]:
        return []

    logger = Logger(lambda scope: lambda level, message, meta: None)
    plan = make_plan(
        "run",
        {
            "connection_string": "postgresql:///shop",
            "schema": "jobs",
            "no_prepared_statements": True,
            "max_pool_size": 7,
            "task_list": TASKS,
            "concurrency": 9,
            "poll_interval": 1.5,
            "no_handle_signals": True,
            "forbidden_flags": flags,
            "logger": logger,
            "lease": timedelta(minutes=1),
            "backoff": "service",
        },
        once=True,
    )
    store: Any = plan.store
    assert (store._context.schema, store._context.dialer.prepared, store._context.options.pool_size) == (
        "jobs",
        False,
        7,
    )
    worker = plan.worker
    assert (worker.concurrency, worker.poll_interval, worker.lease, worker.once) == (9, 1.5, 60.0, True)
    assert worker.forbidden_flags is flags
    assert plan.logger is logger
    assert not plan.signals


def test_tasks_of_an_app_can_be_listed() -> None:
    app = App(store=MemoryStore())

    @app.task(serial="mail")
    async def send(to: str) -> None:
        """Its parameters are checked."""

    plan = make_plan("run", {"connection_string": "sqlite:///x.db", "task_list": {"mail": send}}, once=False)
    job = plan.registry.new_job("mail", {"to": "x"}, {})
    assert (job.task, job.serial) == ("mail", "mail")


async def test_a_crontab_file_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match="no-such-file"):
        await run(connection_string="sqlite:///x.db", task_list=TASKS, crontab_file="no-such-file")
