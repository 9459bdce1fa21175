"""What is taken for a function, and what is none: one rule for tasks, dicts of tasks, crontabs and flows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import pytest

from stowhand import runner
from stowhand.app.app import App
from stowhand.errors import ConfigurationError, InvalidJob
from stowhand.flows import Flow
from stowhand.jobs.job import State
from stowhand.protocols.flow_shape import Queue
from stowhand.protocols.queue_store import JobFilter
from stowhand.tasks.context import Context
from stowhand.tasks.task_list import read_task_list
from stowhand.testing import MemoryStore
from tests.conftest import Run


@dataclass
class Address:
    town: str


async def asked(where: str, to: Address) -> str:
    """Types that only this module knows."""
    return f"{where} {to.town}"


def written(where: str, to: Address) -> str:
    return f"{where} {to.town}"


class Office:
    """Something with settings of its own, of which some are called as a task's methods are."""

    def __init__(self) -> None:
        self.where, self.options, self.enqueue = "to", dict[str, str](), None

    async def send(self, to: Address) -> str:
        return f"{self.where} {to.town}"

    def post(self, to: Address) -> str:
        return f"{self.where} {to.town}"

    def __call__(self, to: Address) -> str:
        return f"{self.where} {to.town}"


class Swift(Office):
    async def __call__(self, to: Address, context: Context) -> str:  # type: ignore[override]
        return f"{self.where} {to.town}"


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def note(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return note


def generator() -> Iterator[int]:
    yield 1


class Numbers:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("name", "function", "is_async"),
    [
        (None, Office().send, True),
        (None, Office().post, False),
        ("object", Office(), False),
        ("object", Swift(), True),
        ("partial", partial(asked, "to"), True),
        ("partial", partial(written, "to"), False),
        ("partial", partial(noted(partial(asked, "to"))), True),
        ("partial", partial(Office.send, Office()), True),
        ("partial", partial(Swift()), True),
        ("partial", partial(partial(asked, where="from"), where="to"), True),
    ],
)
def test_methods_of_objects_partials_and_objects_that_can_be_called_are_tasks(
    run: Run, name: str | None, function: Any, is_async: bool
) -> None:
    app = App("memory://")
    task: Any = app.task(name=name)(function)
    assert task.definition.is_async is is_async
    assert task.name == (name or function.__name__)
    with pytest.raises(InvalidJob, match="town"):
        task.new_job(to={"city": "Rome"})

    async def work() -> None:
        async with app:
            job = await task.options(priority=1).enqueue(to=Address("Rome"))
            await app.worker(once=True).run()
            done = await (await app.open()).jobs.get(job.id)
            assert done is not None
            assert (done.state, done.result) == (State.COMPLETED, "to Rome")

    run(work())


@pytest.mark.parametrize(
    ("function", "kind"),
    [(partial(asked, "to"), r"functools\.partial"), (Office(), "Office"), (Swift(), "Swift")],
)
def test_what_has_no_name_says_what_to_write(function: Any, kind: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"a {kind} has no name; write a def, or use a name: app\.task\(name='…'\)"
    ):
        App("memory://").task(function)


NONE_OF_THEM = [
    (Office, "Office is a class, and calling it only creates an object: write a def"),
    (partial(Office), "Office is a class"),
    (dict, "dict is a class"),
    (generator, "generator is a generator: a task returns once; remove its yield"),
    (partial(generator), "generator is a generator"),
    (Numbers(), "Numbers.__call__ is a generator"),
]


@pytest.mark.parametrize(("function", "why"), NONE_OF_THEM)
def test_classes_and_generators_are_refused_as_tasks(function: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"task 'x': {why}"):
        App("memory://").task(name="x")(function)
    with pytest.raises(ConfigurationError, match=f"task 'x': {why}"):
        read_task_list({"x": function})
    flow = Flow("demo", MemoryStore(), queues=[Queue("first")])
    with pytest.raises(ConfigurationError, match=f"workers of 'first': {why}"):
        flow.create_workers("first", function)


def test_a_crontab_uses_the_declared_options_of_a_task() -> None:
    wrong: Any = asked
    with pytest.raises(ConfigurationError, match=r"App\.cron: got a function; use a task declared with @app.task"):
        App("memory://").cron("0 4 * * *", wrong)


def test_a_dict_of_tasks_takes_partials_and_objects(run: Run, tmp_path: Any) -> None:
    seen: list[Any] = []

    async def take(sink: list[Any], payload: Any) -> None:
        sink.append(payload)

    class Sink:
        def __call__(self, payload: Any, helpers: Any) -> None:
            seen.append((payload, helpers.job.task))

    async def work() -> None:
        options: Any = {"connection_string": f"sqlite:///{tmp_path}/a.db"}
        await runner.run_migrations(**options)
        await runner.quick_add_job(options, "take", 1)
        await runner.quick_add_job(options, "sink", 2)
        await runner.run_once(**options, task_list={"take": partial(take, seen), "sink": Sink()})

    run(work())
    assert sorted(seen, key=str) == [(2, "sink"), 1]


def test_a_task_of_another_app_is_a_function_here_and_its_jobs_are_this_apps(run: Run) -> None:
    one, other = App("memory://"), App("memory://")
    theirs = one.task(name="send", serial="theirs")(asked)
    ours = other.task(name="send")(theirs)
    assert ours.definition.template.serial is None

    async def work() -> None:
        async with one, other:
            await ours.enqueue("to", Address("Rome"))
            assert await (await one.open()).inspect.list(JobFilter()) == []
            (job,) = await (await other.open()).inspect.list(JobFilter())
            assert job.serial is None

    run(work())
    assert asyncio.run(ours("to", Address("Rome"))) == "to Rome"
