"""A mistake in a call of Python is answered with what happened, with which value, and what to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pydantic
import pytest

from stowhand import App, Job, State, StowhandError, gather
from stowhand.errors import ConfigurationError, InvalidJob, SchemaMissing, StoreUnreachable, UnknownJob
from stowhand.query import JobFilter, Search
from stowhand.stores.api import open_store
from stowhand.stores.url import store_url
from tests.conftest import Run


@dataclass
class Line:
    amount: int


class Order(pydantic.BaseModel):
    amount: int


class Shop:
    """An App with tasks, and another App."""

    def __init__(self) -> None:
        self.app = app = App("memory://")
        other = App("memory://")

        @app.task
        async def send(to: str, times: int = 0) -> None: ...

        @app.task
        async def keep(value) -> None: ...  # type: ignore[no-untyped-def]

        @app.task
        async def note(ctx, number: int) -> None: ...  # type: ignore[no-untyped-def]

        @app.task
        async def tick() -> None: ...

        @other.task
        async def theirs(number: int) -> None: ...

        self.send: Any = send
        self.keep: Any = keep
        self.note: Any = note
        self.tick: Any = tick
        self.theirs: Any = theirs
        self.any: Any = app

    def declare(self, function: Callable[..., object], **options: Any) -> object:
        return self.any.task(**options)(function)


Mistake = Callable[[Shop], Any]


def plain(number: int) -> None: ...


def numbers() -> Any:
    yield 1


def spread(*numbers: int) -> None: ...


class Sender:
    def __call__(self) -> None: ...


ARGUMENTS: dict[str, tuple[Mistake, str]] = {
    "text for a number": (lambda shop: shop.send.new_job("a", "x"), "argument 'times': Expected 'int', got 'str'"),
    "a float for a whole number": (lambda shop: shop.send.new_job("a", 1.5), "Expected 'int', got 'float'"),
    "a bool for a number": (lambda shop: shop.send.new_job("a", True), "Expected 'int', got 'bool'"),
    "none": (lambda shop: shop.send.new_job(), "task 'send': missing argument 'to'"),
    "too many": (
        lambda shop: shop.send.new_job("a", 1, 2),
        "takes 2 arguments by position, 3 were given; it takes: to, times",
    ),
    "an unknown one": (lambda shop: shop.send.new_job(tto="a"), "unexpected argument 'tto'; it takes: to, times"),
    "one twice": (lambda shop: shop.send.new_job("a", to="b"), "argument 'to' was given twice"),
    "a context without annotation": (
        lambda shop: shop.note.new_job(3),
        "missing argument 'number'; the worker passes 'ctx' only if it is annotated: `ctx: Context`",
    ),
    "a datetime without annotation": (
        lambda shop: shop.keep.new_job(datetime.now(UTC)),
        "argument 'value': a datetime would arrive as text; annotate `value: datetime`",
    ),
    "a Decimal without annotation": (lambda shop: shop.keep.new_job(Decimal(1)), "annotate `value: Decimal`"),
    "a set without annotation": (lambda shop: shop.keep.new_job({1}), "annotate `value: set`"),
    "a model without annotation": (lambda shop: shop.keep.new_job(Order(amount=1)), "annotate `value: Order`"),
    "a dataclass without annotation": (lambda shop: shop.keep.new_job(Line(1)), "annotate `value: Line`"),
    "bytes without annotation": (lambda shop: shop.keep.new_job(b"x"), "annotate `value: bytes`"),
    "keys that are numbers": (
        lambda shop: shop.keep.new_job({1: "a"}),
        "its key 1, an int, would arrive as text; annotate `value: dict[int, …]`",
    ),
    "an object": (
        lambda shop: shop.keep.new_job(object()),
        "an object has no JSON form; use its id, its text or a dict",
    ),
    "a lambda": (lambda shop: shop.keep.new_job(lambda: 1), "a function has no JSON form; use its id, its text or"),
    "a path": (lambda shop: shop.keep.new_job(Path("a")), "has no JSON form; use its id, its text or a dict"),
    "keys that are tuples": (
        lambda shop: shop.keep.new_job({(1, 2): 3}),
        "a key of a dict is a tuple; convert it to text",
    ),
    "NaN": (lambda shop: shop.keep.new_job(float("nan")), "not JSON numbers; use null or a string"),
    "5 MB": (
        lambda shop: shop.keep.new_job("x" * 5_000_000),
        "5000012 bytes, the limit is 1048576; keep the data in a file or a table, and pass its path or id",
    ),
}
OPTIONS: dict[str, tuple[Mistake, str]] = {
    "delay: a word": (
        lambda shop: shop.send.options(delay="soon"),
        "delay: 'soon' is not a duration; write for example",
    ),
    "delay: negative": (lambda shop: shop.send.options(delay=-1), "delay: -1 seconds; it must not be negative"),
    "run_at: naive": (
        lambda shop: shop.send.options(run_at=datetime(2030, 1, 1)),  # noqa: DTZ001
        "has no time zone; add one, as in datetime.now(UTC)",
    ),
    "max_attempts: 0": (
        lambda shop: shop.send.options(max_attempts=0),
        "max_attempts: 0; the limits are 1 and 2147483647",
    ),
    "priority: a word": (lambda shop: shop.send.options(priority="high"), "priority: got a str; use a whole number"),
    "key beside unique": (
        lambda shop: shop.declare(plain, unique="arguments", key="x"),
        "unique computes the keys of the jobs; use key or unique, not both",
    ),
}
TASKS: dict[str, tuple[Mistake, str]] = {
    "two of one name": (
        lambda shop: shop.declare(plain, name="send"),
        "two tasks are named 'send': tests.mistakes.test_calls.Shop",
    ),
    "a lambda": (
        lambda shop: shop.declare(lambda: None),
        "a lambda has no name; write a def",
    ),
    "a generator": (
        lambda shop: shop.declare(numbers),
        "a task returns once; remove its yield",
    ),
    "a class": (
        lambda shop: shop.declare(Sender),
        "Sender is a class, and calling it only creates an object",
    ),
    "any number of arguments": (
        lambda shop: shop.declare(spread),
        "a payload names its arguments; take a list instead",
    ),
    "cron: hour 25": (lambda shop: shop.app.cron("0 25 * * *", shop.tick), "hour '25': 25 is not within 0 to 23"),
    "cron: six fields": (lambda shop: shop.app.cron("0 0 2 * * *", shop.tick), "five fields"),
    "cron: no argument": (
        lambda shop: shop.app.cron("0 2 * * *", shop.send),
        "task 'send': missing argument 'to'",
    ),
}


def bill(customer: int) -> None: ...


SERIAL_OF_EACH = "For a different serial per job: bill.options(serial=f'customer {customer}').enqueue(…)"
KEY_OF_EACH = (
    "For a different key per job: bill.options(key=f'customer {customer}').enqueue(…),"
    " or @app.task(unique=lambda customer: customer)"
)
PATTERNS: dict[str, tuple[dict[str, Any], str]] = {
    "a pattern": (
        {"serial": "customer-{customer}"},
        "serial: placeholders in 'customer-{customer}' are not replaced, so all jobs of the task would run one",
    ),
    "a parameter": ({"serial": "customer"}, f"all jobs of the task would run one at a time. {SERIAL_OF_EACH}"),
    "another pattern": ({"serial": "c{id}"}, SERIAL_OF_EACH),
    "a function": (
        {"serial": lambda customer: customer},
        f"task 'bill': serial: got a function; use text. {SERIAL_OF_EACH}",
    ),
    "a key, a pattern": (
        {"key": "invoice-{customer}"},
        f"are not replaced, so each job of the task would replace the waiting one. {KEY_OF_EACH}",
    ),
    "a key, a parameter": ({"key": "customer"}, KEY_OF_EACH),
    "a key, a function": ({"key": lambda customer: customer}, f"key: got a function; use text. {KEY_OF_EACH}"),
    "unique, a pattern": (
        {"unique": "invoice-{customer}"},
        "unique='invoice-{customer}'; available: arguments; use 'arguments', or a function of some of them",
    ),
}


async def cancel_by_handle(shop: Shop) -> None:
    await shop.any.cancel(await shop.send.enqueue("a"))


SEARCHES: dict[str, tuple[Mistake, str]] = {
    "a state that is none": (
        lambda shop: shop.any.list(JobFilter(states=cast("Any", ("faild",)))),
        "states: 'faild'; did you mean 'failed'? Available: failed, ",
    ),
    "a state that is none, in a search": (
        lambda shop: shop.any.search(Search(states=cast("Any", ("faild",)))),
        "states: 'faild'; did you mean 'failed'? Available: failed, ",
    ),
    "one state": (
        lambda shop: shop.any.list(JobFilter(states=cast("Any", "failed"))),
        "states: got a str; use a tuple, as in states=('failed',)",
    ),
    "a text as a moment": (
        lambda shop: shop.any.list(JobFilter(since=cast("Any", "2h"))),
        "since: got a str; use a datetime: datetime.now(UTC) - timedelta(hours=2)",
    ),
    "a text as a moment, in a search": (
        lambda shop: shop.any.search(Search(until=cast("Any", "2h"))),
        "until: got a str; use a datetime: datetime.now(UTC) - timedelta(hours=2)",
    ),
    "a task": (lambda shop: shop.any.list(JobFilter(task=shop.send)), "task: got a Task; use a text"),
    "an id as text": (lambda shop: shop.any.cancel("5"), "job_id: got a str; use a number: int('5')"),
    "a handle for an id": (cancel_by_handle, "job_id: got a JobHandle; use its id: job.id"),
    "a text as a filter": (
        lambda shop: shop.any.list("failed"),
        "is not a filter; use a JobFilter, as in JobFilter(states=",
    ),
    "a text as a search": (
        lambda shop: shop.any.search("failed"),
        "is not a search; use a Search, as in Search(states=",
    ),
}
ENQUEUES: dict[str, tuple[Mistake, str]] = {
    "a task by its name": (
        lambda shop: shop.any.enqueue("send", "a"),
        "'send' is not a task; use a task declared with @app.task, or a NewJob; to enqueue by a task's name write",
    ),
    "a plain function": (
        lambda shop: shop.any.enqueue(plain, 1),
        "a function is not a task; use a task declared with @app.task",
    ),
    "a task of another App": (
        lambda shop: shop.any.enqueue(shop.theirs, 1),
        "task 'theirs' is declared by another App, whose store has its jobs; call that App's method",
    ),
    "add_job with a wrong payload": (
        lambda shop: shop.any.add_job("send", {"tto": "a"}),
        "payload of task 'send': unexpected argument 'tto'; it takes: to, times",
    ),
    "tuples": (
        lambda shop: shop.any.enqueue_many([("a", 1)]),
        "job 1 of the batch: a tuple is not a job; use a NewJob, which task.new_job(…) returns",
    ),
    "a job by text": (lambda shop: shop.any.job("x"), "job_id: got a str; use a whole number"),
    "a job that never was": (lambda shop: shop.any.job(99), "there never was a job 99"),
}
URLS = {
    "postgresql+asyncpg://host/shop": "names a driver, which is not chosen here: leave out '+asyncpg'",
    "mysql://host/shop": "There is no store for mysql:// here. Name a store by URL: postgresql://",
    "redis://host": "There is no store for redis:// here. Name a store by URL: postgresql://",
    "sqlite://m.db": "an SQLite URL has three slashes before its file: sqlite:///m.db",
    "m.db": "For an SQLite file write sqlite:///m.db",
    "": "The connection is empty. Name a store by URL",
    "sqlite:///C:\\data\\q.db": "a path of Windows; a file on this system is sqlite:////absolute/file.db",
}


@pytest.mark.parametrize("mistake", ARGUMENTS)
def test_a_wrong_argument_is_answered_with_what_to_give(mistake: str) -> None:
    call, answer = ARGUMENTS[mistake]
    with pytest.raises(StowhandError, match=re.escape(answer)):
        call(Shop())


@pytest.mark.parametrize("mistake", OPTIONS)
def test_a_wrong_option_is_answered_with_its_rule(mistake: str) -> None:
    call, answer = OPTIONS[mistake]
    with pytest.raises(StowhandError, match=re.escape(answer)):
        call(Shop())


@pytest.mark.parametrize("mistake", TASKS)
def test_a_wrong_declaration_is_answered_with_what_to_write(mistake: str) -> None:
    call, answer = TASKS[mistake]
    with pytest.raises(StowhandError, match=re.escape(answer)):
        call(Shop())


@pytest.mark.parametrize("mistake", PATTERNS)
def test_a_placeholder_is_refused_with_the_call_that_fills_it(mistake: str) -> None:
    options, answer = PATTERNS[mistake]
    with pytest.raises(ConfigurationError, match=re.escape(answer)):
        Shop().declare(bill, **options)


@pytest.mark.parametrize("states", [("failed",), ["failed"], {State.FAILED}])
async def test_states_may_be_texts(states: Any) -> None:
    shop = Shop()
    async with shop.app as app:
        job = await shop.send.enqueue("a")
        await (await app.open()).admin.permanently_fail_jobs([job.id])
        result = await app.search(Search(states=states))
        listed = await app.list(JobFilter(states=states))
    assert [one.id for one in result.jobs] == [one.id for one in listed] == [job.id]


@pytest.mark.parametrize("mistake", SEARCHES)
def test_a_wrong_search_is_answered_with_what_to_give(mistake: str, run: Run) -> None:
    call, answer = SEARCHES[mistake]

    async def made() -> None:
        await call(Shop())

    with pytest.raises(InvalidJob, match=re.escape(answer)):
        run(made())


@pytest.mark.parametrize("mistake", ENQUEUES)
def test_a_wrong_call_of_an_app_is_answered_with_the_right_one(mistake: str, run: Run) -> None:
    call, answer = ENQUEUES[mistake]

    async def made() -> None:
        await call(Shop())

    with pytest.raises(StowhandError, match=re.escape(answer)):
        run(made())


@pytest.mark.parametrize("url", URLS)
def test_a_wrong_url_is_answered_with_the_right_form(url: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(URLS[url])):
        store_url(url)


async def test_a_folder_that_is_missing_is_to_be_made_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="absent does not exist: create it first"):
        await App(f"sqlite:///{tmp_path}/absent/q.db").open(install=True)


async def test_an_enqueue_before_the_first_install_names_the_commands_for_this_store(tmp_path: Path) -> None:
    task = App(f"sqlite:///{tmp_path}/q.db").task(name="send")(plain)
    with pytest.raises(SchemaMissing) as raised:
        await task.enqueue(1)
    for command in ("`stowhand migrate -A MODULE:APP`", "`-c URL`", "app.sync.install()", "start a worker"):
        assert command in str(raised.value)


async def test_a_word_that_was_read_as_the_name_of_a_database_is_named_when_no_server_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGHOST", str(tmp_path))
    answer = "'tasks' was read as the name of a database; name its server by postgresql://HOST/tasks, or a file"
    with pytest.raises(StoreUnreachable, match=answer):
        await App("tasks").open()


@pytest.mark.parametrize(
    ("call", "arguments", "answer"),
    [
        ("list", {"state": "queued"}, "list(): no argument 'state'; use list(JobFilter(states=('queued',)))"),
        ("list", {"state": ["failed"]}, "use list(JobFilter(states=('queued',)))"),
        ("list", {"task": "send"}, "list(): no argument 'task'; use list(JobFilter(task='send'))"),
        ("list", {"since": 5}, "list(): no argument 'since'; use list(JobFilter(since=…))"),
        ("search", {"status": "failed"}, "search(): no argument 'status'; use search(Search(states=('failed',)))"),
        ("cancel", {"id": 5}, "cancel(): no argument 'id'; "),
    ],
)
async def test_arguments_of_a_filter_are_answered_with_the_filter(
    call: str, arguments: dict[str, Any], answer: str
) -> None:
    async with App("memory://") as app:
        with pytest.raises(TypeError, match=re.escape(answer)):
            await getattr(app, call)(**arguments)
    with pytest.raises(TypeError, match=re.escape(answer)):
        await asyncio.to_thread(getattr(app.sync, call), **arguments)


async def test_a_database_that_does_not_exist_is_to_be_created(postgres_url: str) -> None:
    url = re.sub(r"/[^/?]*(\?|$)", r"/no_such_database\1", postgres_url)
    store = open_store(url)
    with pytest.raises(StoreUnreachable, match='"no_such_database" does not exist; create it: createdb no_such_'):
        await store.open()
    await store.close()


async def test_a_result_that_does_not_come_names_the_command_that_says_why() -> None:
    async with App("memory://") as app:
        job = await app.task(name="send")(plain).enqueue(1)
        answer = f"has not finished within 0.01 s; it continues. To see why: stowhand jobs explain {job.id}"
        with pytest.raises(TimeoutError, match=re.escape(answer)):
            await job.result(timeout=0.01)


async def test_a_due_job_of_a_name_that_no_worker_has_is_named_when_a_worker_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with App("memory://") as app:
        app.task(name="send")(plain)
        await app.add_job("snd", {})
        async with app.run_in_background():
            pass
    answer = "Due jobs of tasks that no worker has: snd (1); start a worker that has these tasks"
    assert any(answer in line and "correct the names" in line for line in caplog.messages)


async def test_a_handle_with_the_task_of_another_job_is_refused() -> None:
    shop = Shop()
    async with shop.app as app:
        job = await shop.send.enqueue("a")
        with pytest.raises(StowhandError, match=f"job {job.id} is of task 'send', not of 'keep'"):
            await app.job(job.id, shop.keep)
        with pytest.raises(UnknownJob):
            await app.job(job.id + 1)


async def test_jobs_that_are_no_handles_are_gathered_by_their_app() -> None:
    shop = Shop()
    async with shop.app as app:
        jobs: Any = await app.add_jobs([shop.send.new_job("a")])
        assert isinstance(jobs[0], Job)
        with pytest.raises(StowhandError, match=r"a Job is not a handle; .*app\.gather\(…\) also takes jobs and ids"):
            await gather(jobs)


async def test_ids_are_gathered_by_their_app() -> None:
    ids: Any = [1]
    with pytest.raises(StowhandError, match=r"an int is not a handle; .*app\.gather\(…\) also takes jobs and ids"):
        await gather(ids)


async def test_the_synchronous_interface_names_what_to_await_inside_a_loop() -> None:
    shop = Shop()
    with pytest.raises(StowhandError, match="await"):
        shop.app.sync.enqueue(shop.send, "a")
