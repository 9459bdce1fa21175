"""Enqueueing: the arguments become a payload that the worker can call with, or nothing is written."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowhand.app.app import App
from stowhand.errors import InvalidJob, PayloadMismatch
from stowhand.jobs.job import KeyMode, NewJob
from stowhand.protocols.queue_store import JobFilter
from stowhand.stores.sqlite.queue.producer import Producer
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.jobs.test_strict_json import TEXTS, VALUES


@dataclass
class Address:
    street: str
    number: int = 1


class Order(TypedDict):
    id: int
    lines: list[Address]


class Money(msgspec.Struct):
    amount: Decimal


class Customer(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1)
    since: datetime


store = MemoryStore()
app = App(store=store)


@app.task(serial="mail", priority=5)
async def send(to: str, copies: int = 1, *, urgent: bool = False) -> None: ...


@app.task
async def bill(order: Order, customer: Customer | None = None, total: Money | None = None) -> None: ...


@app.task
async def take(payload: Customer) -> None: ...


@app.task
async def take_anything(payload: Any = None) -> None: ...


@app.task
async def untyped(a, b=2): ...  # type: ignore[no-untyped-def]


def test_arguments_are_kept_by_name_and_defaults_are_left_to_the_function() -> None:
    assert send.new_job("a@b.c").payload == '{"to":"a@b.c"}'
    assert send.new_job("a@b.c", 2, urgent=True).payload == '{"to":"a@b.c","copies":2,"urgent":true}'


@given(
    number=st.integers(-(10**299), 10**299),
    text=TEXTS,
    share=st.none() | st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
    anything=VALUES,
    when=st.datetimes(timezones=st.just(UTC)),
    raw=st.binary(),
)
def test_what_enqueue_accepts_the_worker_calls_with(**arguments: Any) -> None:
    @App(store=store).task
    def everything(number: int, text: str, share: float | None, anything: Any, when: datetime, raw: bytes) -> None: ...

    assert everything.definition.shape.read(everything.new_job(**arguments).payload) == arguments


def test_a_job_has_the_tasks_options_and_then_those_of_the_call() -> None:
    plain = send.new_job("x")
    assert (plain.serial, plain.priority, plain.key, plain.delay) == ("mail", 5, None, None)
    changed = send.options(serial=None, delay=timedelta(minutes=1), key="k", key_mode="preserve_run_at").new_job("x")
    assert (changed.serial, changed.priority, changed.key, changed.delay) == (None, 5, "k", 60.0)
    assert changed.key_mode is KeyMode.PRESERVE_RUN_AT


def test_the_last_word_about_time_counts() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert send.options(delay=5).options(run_at=moment).new_job("x").delay is None
    assert send.options(run_at=moment).options(delay=5).new_job("x").run_at is None
    with pytest.raises(InvalidJob, match="run_at and delay: use one"):
        send.options(run_at=moment, delay=5)


def test_models_of_every_kind_are_written_as_json() -> None:
    order: Order = {"id": 1, "lines": [Address("Main", 2)]}
    customer = Customer(name="Ada", since=datetime(2026, 1, 1, tzinfo=UTC))
    assert msgspec.json.decode(bill.new_job(order, customer, Money(Decimal("1.5"))).payload) == {
        "order": {"id": 1, "lines": [{"street": "Main", "number": 2}]},
        "customer": {"name": "Ada", "since": "2026-01-01T00:00:00Z"},
        "total": {"amount": "1.5"},
    }
    assert take.new_job(customer).payload == '{"name":"Ada","since":"2026-01-01T00:00:00Z"}'
    assert take_anything.new_job([1, None]).payload == "[1,null]"
    assert take_anything.new_job().payload == "null"
    assert untyped.new_job([1]).payload == '{"a":[1]}'


KEPT = "; keep the data in a file or a table, and pass its path or id"


def test_a_context_without_annotation_is_named_where_an_argument_is_missing() -> None:
    @App(store=MemoryStore()).task
    def notify(ctx, to): ...  # type: ignore[no-untyped-def]

    hint = "; the worker passes 'ctx' only if it is annotated: `ctx: Context`"
    with pytest.raises(InvalidJob) as refused:
        notify.new_job("ann")
    assert str(refused.value) == f"task 'notify': missing argument 'to'{hint}"
    with pytest.raises(PayloadMismatch, match="missing argument 'ctx'; the worker passes 'ctx' only if"):
        notify.definition.shape.read('{"to":"ann"}')


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "message"),
    [
        (send, (), {}, "task 'send': missing argument 'to'"),
        (
            send,
            ("a", 1, True),
            {},
            "task 'send': takes 2 arguments by position, 3 were given; it takes: to, copies, urgent",
        ),
        (send, ("a",), {"to": "b"}, "task 'send': argument 'to' was given twice"),
        (send, ("a",), {"cc": "b"}, "task 'send': unexpected argument 'cc'; it takes: to, copies, urgent"),
        (send, (1,), {}, "payload of task 'send': argument 'to': Expected 'str', got 'int'"),
        (send, ("a", True), {}, "payload of task 'send': argument 'copies': Expected 'int', got 'bool'"),
        (send, ("a", 10**300), {}, "payload: a number of 301 digits, the limit is 300"),
        (send, ("a\x00",), {}, "payload: a string contains NUL (\\u0000), which PostgreSQL cannot store"),
        (send, ("\ud800",), {}, "payload: a string contains a lone surrogate, which is not valid Unicode"),
        (send, ("a" * 2**20,), {}, "payload: 1048585 bytes, the limit is 1048576" + KEPT),
        (
            untyped,
            (float("nan"),),
            {},
            "payload: cannot be written as JSON: NaN and infinity are not JSON numbers; use null or a string",
        ),
        (
            untyped,
            (object(),),
            {},
            "payload: cannot be written as JSON: an object has no JSON form; use its id, its text or a dict",
        ),
        (
            bill,
            ({"id": 1, "lines": [{}]},),
            {},
            "payload of task 'bill': argument 'order.lines[0]': Object missing required field 'street'",
        ),
        (
            bill,
            ({"id": 1, "lines": []}, {"name": "", "since": "2026-01-01"}),
            {},
            "payload of task 'bill': argument 'customer': name: String should have at least 1 character",
        ),
        (take, ({"name": "Ada"},), {}, "payload of task 'take': since: Field required"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_wrong_argument_is_refused_by_name(task: Any, args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        task.new_job(*args, **kwargs)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seral": "x"}, "no option 'seral'; did you mean 'serial'? Available: serial, delay, expires, flags, key"),
        ({"serial": 3}, "serial: got an int; use a string"),
        (
            {"run_at": datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)},
            "run_at: 2030-01-01T00:00:00 has no time zone",
        ),
        ({"key_mode": "replace"}, "key_mode: has no effect without a key"),
        ({"flags": "x"}, "flags: got a str; use a list of names"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        send.options(**options)
    assert str(caught.value).startswith(message)


def test_a_refused_job_writes_nothing(run: Run) -> None:
    memory = MemoryStore()
    mine = App(store=memory)
    task = mine.task(name="send")(lambda to: None)

    async def refused() -> None:
        for attempt in (
            lambda: task.enqueue("\x00"),
            lambda: mine.add_job("send", {"from": "x"}),
            lambda: mine.add_job("elsewhere", float("nan")),
            lambda: mine.enqueue(NewJob(task="x" * 129)),
            lambda: mine.enqueue_many(task.new_job(to) for to in ("fine", "\x00")),
            lambda: mine.enqueue_many([NewJob(task="fine"), NewJob(task="x", payload="{")]),
            lambda: mine.add_jobs([NewJob(task="fine"), NewJob(task="x", payload="{")]),
            lambda: mine.add_jobs([NewJob(task="a", key="k"), NewJob(task="b", key="k")]),
            lambda: task.enqueue_many([{"to": "fine"}, {"from": "x"}]),
        ):
            with pytest.raises(InvalidJob):
                await attempt()
        assert await memory.inspect.list(JobFilter()) == []

    run(refused())


def test_an_invalid_job_of_a_batch_is_reported_with_its_number(run: Run) -> None:
    with pytest.raises(InvalidJob, match="job 2 of the batch: serial: 129 characters, the limit is 128"):
        run(lambda: app.enqueue_many([NewJob(task="x"), NewJob(task="x", serial="q" * 129)]))
    with pytest.raises(InvalidJob, match="job 2 of the batch: max_attempts: 0"):
        run(lambda: app.add_jobs([NewJob(task="x"), NewJob(task="x", max_attempts=0)]))
    with pytest.raises(InvalidJob, match=r"job 2 of the batch: .*'copies'"):
        run(lambda: send.enqueue_many([{"to": "x"}, {"to": "x", "copies": "many"}]))


def test_an_object_that_is_not_a_job_is_refused(run: Run) -> None:
    with pytest.raises(InvalidJob, match=r"a dict is not a task; use a task declared with @app\.task, or a NewJob"):
        run(lambda: app.enqueue({"task": "send"}))  # type: ignore[call-overload]
    with pytest.raises(InvalidJob, match="job 2 of the batch: an int is not a job"):
        run(lambda: app.enqueue_many([send.new_job("x"), 3]))  # type: ignore[list-item]


def test_a_job_can_be_added_by_name_for_a_task_that_lives_elsewhere(run: Run) -> None:
    async def add() -> None:
        job = await app.add_job("elsewhere", {"any": ["thing"]}, serial="q", flags=["slow"])
        assert (job.task, job.payload_text, job.serial, job.flags) == ("elsewhere", '{"any":["thing"]}', "q", ("slow",))
        assert (await app.add_job("elsewhere")).payload_text == "{}"
        assert (await app.add_job("send", {"to": "x"})).serial == "mail"

    run(add())


def test_jobs_that_are_added_together_come_back_whole_and_in_order(run: Run) -> None:
    async def add() -> None:
        jobs = await app.add_jobs([app.registry.new_job("send", {"to": str(n)}, {}) for n in range(3)])
        assert [(job.task, job.serial, job.payload_text) for job in jobs] == [
            ("send", "mail", f'{{"to":"{n}"}}') for n in range(3)
        ]

    run(add())


def test_a_batch_keeps_the_order_in_which_it_was_given(run: Run) -> None:
    memory = MemoryStore()
    task = App(store=memory).task(name="n")(lambda number: None)

    async def numbers() -> AsyncIterator[dict[str, int]]:
        for number in range(3):
            yield {"number": number}

    async def enqueue() -> list[str]:
        ids = [*await task.enqueue_many({"number": number} for number in range(3)), *await task.enqueue_many(numbers())]
        return [job.payload_text for one in ids if (job := await memory.jobs.get(one.id)) is not None]

    assert run(enqueue()) == [f'{{"number":{number}}}' for number in (0, 1, 2, 0, 1, 2)]


class CountingProducer(Producer):
    """Consumes a batch as a store that streams does: it keeps nothing of it."""

    async def enqueue_many(self, jobs: Any) -> list[int]:
        assert not isinstance(jobs, list | tuple)
        count = 0
        for job in jobs:
            assert job.payload
            count += 1
        return [count]


def test_a_hundred_thousand_jobs_are_streamed_and_never_all_in_memory(run: Run) -> None:
    store = MemoryStore()
    store.jobs = CountingProducer(store._connections, store._options)
    mine = App(store=store)
    task = mine.task(name="n")(lambda number, text: None)
    run(lambda: mine.enqueue_many([]))

    def jobs() -> Iterator[NewJob]:
        return (task.new_job(number, "x" * 100) for number in range(100_000))

    assert run(lambda: mine.enqueue_many(jobs())) == [100_000]
    tracemalloc.start()
    try:
        run(lambda: mine.enqueue_many(job for _, job in zip(range(5_000), jobs(), strict=False)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000, "5,000 jobs of more than 300 bytes each were in memory at once"


def test_concurrent_first_uses_connect_once(run: Run) -> None:
    class SlowStore(MemoryStore):
        opened = 0

        async def open(self) -> None:
            self.opened += 1
            await asyncio.sleep(0)

    slow = SlowStore()
    mine = App(store=slow)

    async def many() -> None:
        await asyncio.gather(*(mine.add_job("x") for _ in range(10)))

    run(many())
    assert slow.opened == 1
