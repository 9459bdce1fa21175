"""Declaring a task: what is refused at once, with a sentence that says what to do."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from stowhand.app.app import App
from stowhand.errors import ConfigurationError, DuplicateTask, InvalidJob, UnknownTask
from stowhand.retry import SERVICE_BACKOFF
from stowhand.tasks.context import Context
from stowhand.tasks.registry import TaskOptions
from stowhand.testing import MemoryStore


@pytest.fixture
def app() -> App:
    return App(store=MemoryStore())


def test_a_task_stays_a_normal_function(app: App) -> None:
    @app.task(serial="mail")
    def greet(name: str, *, loud: bool = False) -> str:
        """Say hello."""
        return f"Hello, {name}{'!' if loud else '.'}"

    assert greet("Ada") == "Hello, Ada."
    assert greet(name="Ada", loud=True) == "Hello, Ada!"
    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")  # type: ignore[attr-defined]
    assert str(inspect.signature(greet)) == "(name: 'str', *, loud: 'bool' = False) -> 'str'"
    assert inspect.unwrap(greet) is not greet


def test_a_task_with_a_context_is_called_with_one(app: App) -> None:
    @app.task
    async def look(context: Context, number: int) -> tuple[object, int]:
        return context, number

    stand_in: Any = object()
    assert asyncio.run(look(stand_in, 3)) == (stand_in, 3)
    by_name: Any = look
    assert asyncio.run(by_name(number=3, context=stand_in)) == (stand_in, 3)


def test_the_name_is_the_functions_unless_given(app: App) -> None:
    @app.task
    def one() -> None: ...

    @app.task(name="mail/two")
    def two() -> None: ...

    assert app.registry.names == (one.name, two.name) == ("one", "mail/two")


def test_one_name_twice_is_an_error_that_names_both_functions(app: App) -> None:
    def first() -> None: ...

    def second() -> None: ...

    app.task(name="x")(first)
    with pytest.raises(DuplicateTask, match=r"two tasks are named 'x': .*first and .*second; rename one"):
        app.task(name="x")(second)


def test_an_unknown_task_suggests_the_nearest(app: App) -> None:
    app.task(name="send_mail")(lambda: None)
    with pytest.raises(UnknownTask, match="no task 'send_mial'; did you mean 'send_mail'"):
        app.registry.get("send_mial")
    with pytest.raises(UnknownTask, match="none is available"):
        App(store=MemoryStore()).registry.get("x")


def star(*args: int) -> None: ...
def double_star(payload: int, **kwargs: int) -> None: ...
def positional_only(a: int, /) -> None: ...
def file(handle: threading.Thread) -> None: ...
def unresolved(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (star, r"parameter \*args: 'int': a payload names its arguments; take a list"),
        (double_star, r"parameter \*\*kwargs: 'int': name the parameters, or take the whole object"),
        (positional_only, "positional-only"),
        (file, "parameter 'handle': .*Thread.*: JSON cannot be read as this type; take plain values"),
        (unresolved, "parameter 'a': annotation 'Nowhere' cannot be resolved"),
        (generator, "generator is a generator: a task returns once"),
        (async_generator, "async_generator is a generator: a task returns once"),
        ("send", "a task is a function; got a str"),
    ],
)
def test_a_function_that_cannot_be_a_task_is_refused_when_declared(
    app: App, function: Callable[..., Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        app.task(function)
    assert len(app.registry) == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"timout": 3}, "no task option 'timout'; did you mean 'timeout'"),
        ({"timeout": 0}, "timeout: 0 seconds; use more"),
        ({"executor": "process"}, "executor 'process'; available: loop, thread"),
        ({"backoff": "gentle"}, "no backoff named 'gentle'"),
        ({"serial": "q" * 129}, "task 'wait': serial: 129 characters, the limit is 128"),
        ({"name": "a\nb"}, "task: the control character U\\+000A"),
        ({"name": ""}, "task: empty"),
    ],
)
def test_a_wrong_option_is_refused_when_declared(app: App, options: dict[str, Any], complaint: str) -> None:
    def wait() -> None: ...

    with pytest.raises(ConfigurationError, match=complaint):
        app.task(**options)(wait)


def test_an_async_function_runs_on_the_loop_and_cannot_ask_for_a_thread(app: App) -> None:
    async def fast() -> None: ...

    with pytest.raises(ConfigurationError, match="an async function runs on the loop"):
        app.task(executor="thread")(fast)


def test_a_decorated_async_function_is_still_async(app: App) -> None:
    async def inner() -> None: ...

    @functools.wraps(inner)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    assert app.task(wrapper).definition.executor == "loop"


def test_run_options_and_job_options_are_kept(app: App) -> None:
    @app.task(timeout=timedelta(minutes=2), backoff="service", serial="q", priority=-3, max_attempts=7, max_resets=0)
    def careful() -> None: ...

    definition = careful.definition
    assert (definition.timeout, definition.backoff, definition.executor) == (120.0, SERVICE_BACKOFF, "thread")
    job = careful.new_job()
    assert (job.serial, job.priority, job.max_attempts, job.max_resets) == ("q", -3, 7, 0)


def test_an_unresolvable_return_annotation_is_ignored(app: App) -> None:
    def odd(a: int) -> Nowhere: ...  # type: ignore[name-defined]  # noqa: F821

    app.task(odd)
    with pytest.raises(InvalidJob, match="argument 'a': Expected 'int', got 'str'"):
        app.registry.get("odd").shape.write(("1",), {})


class Wrong:
    """What no option takes."""


@pytest.mark.parametrize("option", sorted(TaskOptions.__annotations__))
def test_each_invalid_option_is_reported_with_line_task_and_name(app: App, option: str) -> None:
    def slow() -> None: ...

    wrong: dict[str, Any] = {option: Wrong()}
    with pytest.raises(ConfigurationError) as caught:
        app.task(**wrong)(slow)
    (line, *_) = str(caught.value).splitlines()
    here = inspect.getsourcelines(test_each_invalid_option_is_reported_with_line_task_and_name)[1]
    place, number, said = line.split(":", 2)
    assert place.endswith("tests/tasks/test_declaring.py")
    assert here < int(number) < here + 10
    assert said.startswith(" task 'slow': ")
    assert option in said
    assert "Wrong" in said, "what was given"
    assert len(app.registry) == 0


def test_errors_of_other_declarations_name_their_line_too(app: App) -> None:
    app.task(name="again")(lambda: None)
    for wrong in (
        lambda: app.task(name="again")(lambda: None),
        lambda: app.cron("* * * *", "again"),
        lambda: app.cron("0 4 * * *", "again", {"unknown": 1}),
        lambda: app.task(cron="0 25 * * *", name="late")(lambda: None),
        lambda: app.task("no function"),  # type: ignore[call-overload]
    ):
        with pytest.raises((ConfigurationError, DuplicateTask), match=r"^\S*tests/tasks/test_declaring\.py:\d+: "):
            wrong()


def test_a_task_recurs_by_its_declaration_as_by_app_cron(app: App) -> None:
    @app.task(cron="0 7 * * mon", serial="reports", priority=3)
    def report(days: int = 7) -> None: ...

    def later() -> None: ...

    app.cron("0 7 * * mon", app.task(serial="reports", priority=3)(later))
    at = datetime(2030, 1, 7, 7, tzinfo=UTC)
    one, other = (item.job(at, backfilled=False) for item in app.cron_items)
    assert (one.task, one.serial, one.priority) == ("report", "reports", 3)
    assert msgspec.structs.replace(one, task="later") == other
    assert app.cron_items[0].identifier == "report"


def test_a_recurring_job_is_in_the_queue_of_its_task_and_of_its_options(app: App) -> None:
    @app.task(cron="0 7 * * mon", queue="mail")
    def report() -> None: ...

    app.cron("0 8 * * mon", report.options(queue="bulk"), identifier="other")
    at = datetime(2030, 1, 7, 7, tzinfo=UTC)
    assert [item.job(at, backfilled=False).queue for item in app.cron_items] == ["mail", "bulk"]


def test_a_task_that_recurs_by_its_declaration_has_a_default_for_each_argument(app: App) -> None:
    with pytest.raises(ConfigurationError, match=r"'send': missing argument 'to'; use .*: app\.cron\(…, send, \{…\}\)"):

        @app.task(cron="0 7 * * mon")
        def send(to: str) -> None: ...


# -- words for people ------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", ["90s", "1.5m", 90, timedelta(seconds=90)])
def test_a_timeout_is_seconds_a_timedelta_or_a_phrase(app: App, timeout: Any) -> None:
    @app.task(timeout=timeout, delay="1h")
    def slow() -> None: ...

    assert slow.definition.timeout == 90.0
    assert slow.template.delay == 3600.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": "soon"}, "task 'slow': timeout: 'soon' is not a duration; write for example 250ms"),
        ({"timeout": True}, "task 'slow': timeout: got a bool; use a timedelta, a number of seconds or a phrase"),
        ({"timeout": []}, "task 'slow': timeout: got a list; use a timedelta"),
        ({"backoff": 5}, r"task 'slow': no backoff named 5.*stowhand.retry.constant\(5\)"),
        ({"backoff": "nartual"}, "task 'slow': no backoff named 'nartual'; did you mean 'natural'"),
        ({"delay": "soon"}, "task 'slow': delay: 'soon' is not a duration"),
    ],
)
def test_an_invalid_duration_is_reported_with_its_task(app: App, options: dict[str, Any], words: str) -> None:
    def slow() -> None: ...

    with pytest.raises(ConfigurationError, match=words):
        app.task(**options)(slow)


def test_a_lambda_is_a_task_only_under_a_name(app: App) -> None:
    with pytest.raises(ConfigurationError, match="a lambda has no name"):
        app.task(lambda number: number)
    assert app.task(name="same")(lambda number: number).name == "same"


class Mailer:
    """Whose methods somebody would like to be tasks."""

    def send(self, to: str) -> None: ...

    @staticmethod
    def post(to: str) -> None: ...


def test_a_method_without_its_object_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="task 'send': a method of Mailer, and a payload has no 'self'"):
        app.task(Mailer.send)
    assert app.task(Mailer.post).name == "post"
    with pytest.raises(ConfigurationError, match="task 'x': a method of Mailer, and a payload has no 'self'"):
        app.task(name="x")(functools.partial(Mailer.send))


def test_only_a_notebook_cell_may_declare_a_task_again(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def cell(module: str) -> Any:
        def work() -> None: ...

        work.__module__, work.__qualname__ = module, "work"
        return work

    app.task(cron="@daily")(cell("__main__"))
    with pytest.raises(DuplicateTask):
        app.task(cell("__main__"))
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    again = app.task(cron="@hourly")(cell("__main__"))
    assert app.registry.get("work") is again.definition
    assert [item.spec for item in app.cron_items] == ["0 * * * * work"]
    with pytest.raises(DuplicateTask):
        app.task(cell("shop.jobs"))


def test_what_is_no_connection_is_named_in_full_with_what_to_hand_over(tmp_path: Any) -> None:
    class AsyncEngine:
        """As SQLAlchemy's, which is known by its name."""

    AsyncEngine.__module__, AsyncEngine.__qualname__ = "sqlalchemy.ext.asyncio.engine", "AsyncEngine"
    app = App(f"sqlite:///{tmp_path}/a.db")

    @app.task
    def send() -> None: ...

    wrong: Any = AsyncEngine()
    with pytest.raises(ConfigurationError, match=r"not a sqlalchemy.*AsyncEngine; .*`async with engine\.begin\(\)"):
        send.enqueue_in(wrong)


def test_what_is_not_written_in_python_is_refused_with_its_task_and_what_to_do(app: App) -> None:
    with pytest.raises(ConfigurationError, match=r"task 'most': .* wrap it in a Python function"):
        app.task(name="most")(max)
