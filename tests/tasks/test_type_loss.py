"""What a task is given is what was enqueued: a value that JSON would bring back as another type is refused."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from stowhand import App
from stowhand.errors import ConfigurationError, InvalidJob, PayloadMismatch
from stowhand.runner import CronItem, parse_cron_items
from stowhand.testing import MemoryStore

pytestmark = pytest.mark.anyio


class Color(Enum):
    RED = "red"


class Status(StrEnum):
    PAID = "paid"


class Level(IntEnum):
    HIGH = 3


class Pair(NamedTuple):
    left: int
    right: Any = None


@dataclass
class Line:
    amount: Decimal
    note: Any = None


class Order(msgspec.Struct):
    lines: list[Line]
    day: date | None = None


class Customer(pydantic.BaseModel):
    since: datetime
    extra: Any = None


class Event(TypedDict):
    at: datetime


ONE = Decimal("19.99")
DAY = date(2030, 1, 1)
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)
ODD = [
    *(ONE, DAY, MOMENT, time(12), timedelta(1), UUID(int=1), b"raw", bytearray(b"raw"), {1}, frozenset({"a"})),
    *(Color.RED, Status.PAID, Level.HIGH, Pair(1), Line(ONE), Order([]), Customer(since=MOMENT)),
    *({1: "one"}, {DAY: 1}, {Status.PAID: 1}, OrderedDict(a=1), Counter(a=1)),
]
"""Values for which JSON has no type of their own."""
PLAIN = [None, True, 1, 1.5, "text", [], {}, [1, [None]], {"a": {"b": [1.5]}}]


@pytest.fixture
def app() -> App:
    return App(store=MemoryStore())


@pytest.mark.parametrize("value", ODD, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("inside", [lambda one: one, lambda one: [one], lambda one: {"a": ({"b": one},)}])
def test_a_value_without_a_json_type_needs_an_annotation(app: App, value: object, inside: Any) -> None:
    @app.task
    def bare(thing, other: Any = None): ...  # type: ignore[no-untyped-def]

    @app.task
    def whole(payload): ...  # type: ignore[no-untyped-def]

    argument = inside(value)
    for task, arguments in [(bare, [argument]), (bare, [1, argument]), (whole, [argument])]:
        with pytest.raises(InvalidJob, match="would arrive as"):
            task.new_job(*arguments)


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_json_values_need_none(app: App, value: object) -> None:
    @app.task
    def bare(thing): ...  # type: ignore[no-untyped-def]

    assert json.loads(bare.new_job(value).payload) == {"thing": value}


def test_a_tuple_may_arrive_as_a_list(app: App) -> None:
    @app.task
    def bare(thing): ...  # type: ignore[no-untyped-def]

    assert json.loads(bare.new_job((1, {"a": (2,)})).payload) == {"thing": [1, {"a": [2]}]}


def test_the_message_says_what_would_arrive_and_what_to_write(app: App) -> None:
    @app.task
    def double(amount, rows: list[Any] | None = None): ...  # type: ignore[no-untyped-def]

    for arguments, message in [
        ((ONE,), "argument 'amount': a Decimal would arrive as text; annotate `amount: Decimal`"),
        (({1: "a"},), "argument 'amount': its key 1, an int, would arrive as text; annotate `amount: dict[int, …]`"),
        ((Counter(),), "argument 'amount': a Counter would arrive as a dict; use a dict"),
        (
            (1, [0, ONE]),
            "argument 'rows[1]': a Decimal would arrive as text; annotate 'rows' with a type that has it, or pass text",
        ),
    ]:
        with pytest.raises(InvalidJob) as refused:
            double.new_job(*arguments)
        assert str(refused.value) == f"task 'double': {message}"


def test_what_no_set_can_hold_is_refused_and_is_a_misfit_for_the_worker(app: App) -> None:
    @app.task
    def tagged(tags: set): ...  # type: ignore[no-untyped-def, type-arg]

    with pytest.raises(InvalidJob, match="payload of task 'tagged': unhashable type: 'list' in a set"):
        tagged.new_job([["a"]])
    with pytest.raises(PayloadMismatch, match="unhashable type: 'list' in a set"):
        tagged.definition.shape.read('{"tags": [["a"]]}')


def test_an_annotation_restores_the_type(app: App) -> None:
    @app.task
    def typed(  # type: ignore[no-untyped-def]
        amount: Decimal | None = None, when: datetime | None = None, color: Color | None = None, raw: bytes = b"",
        tags: frozenset[UUID] = frozenset(), names: dict[int, str] | None = None, pair: Pair | None = None,
        order: Order | None = None, customer: Customer | None = None, event: Event | None = None,
        days: Sequence[date] = (), kinds: dict[Color, Any] | None = None,
    ): ...  # fmt: skip

    options: dict[str, Any] = {
        "amount": ONE, "when": MOMENT, "color": Color.RED, "raw": b"\x00", "tags": frozenset({UUID(int=1)}),
        "names": {1: "a"}, "pair": Pair(1), "order": Order([Line(ONE)], DAY), "customer": Customer(since=MOMENT),
        "event": {"at": MOMENT}, "days": [DAY], "kinds": {Color.RED: 1},
    }  # fmt: skip
    assert typed.definition.shape.read(typed.new_job(**options).payload) == options


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"text": ONE}, "text"),
        ({"text": UUID(int=1)}, "text"),
        ({"table": {"a": [ONE]}}, "table.a[0]"),
        ({"table": {"a": Status.PAID}}, "table.a"),
        ({"order": Order([Line(ONE, note=DAY)])}, "order.lines[0].note"),
        ({"order": {"lines": [{"amount": ONE, "note": ONE}]}}, "order.lines[0].note"),
        ({"line": Line("1", note={2})}, "line.note"),  # type: ignore[arg-type]
        ({"customer": Customer(since=MOMENT, extra=ONE)}, "customer.extra"),
        ({"pair": Pair(1, ONE)}, "pair.right"),
        ({"things": {ONE}}, "things"),
    ],
)
def test_an_annotation_that_does_not_restore_the_type_does_not_help(
    app: App, arguments: dict[str, Any], where: str
) -> None:
    @app.task
    def typed(  # type: ignore[no-untyped-def]
        text: str = "", table: dict[str, Any] | None = None, order: Order | None = None, line: Line | None = None,
        customer: Customer | None = None, pair: Pair | None = None, things: set | None = None,  # type: ignore[type-arg]
    ): ...  # fmt: skip

    with pytest.raises(InvalidJob) as refused:
        typed.new_job(**arguments)
    assert f"argument '{where}': " in str(refused.value)


def test_what_the_annotation_asks_for_is_no_loss(app: App) -> None:
    """An equal value of the annotated type, and JSON that becomes it."""

    @app.task
    def typed(  # type: ignore[no-untyped-def]
        text: str = "", number: int = 0, share: float = 0, amount: Decimal = ONE, line: Line | None = None,
        tags: set[str] | None = None, counts: dict[str, int] | None = None,
    ): ...  # fmt: skip

    cases: list[dict[str, Any]] = [
        {"text": Status.PAID}, {"number": Level.HIGH}, {"share": 1}, {"amount": "1.5"}, {"line": {"amount": "1.5"}},
        {"tags": ["a"]}, {"tags": frozenset({"a"})}, {"counts": Counter(a=1)}, {"counts": {Status.PAID: 1}},
    ]  # fmt: skip
    for given in cases:
        typed.new_job(**given)


async def test_every_way_to_enqueue_refuses_it(app: App) -> None:
    @app.task
    async def bare(thing): ...  # type: ignore[no-untyped-def]

    refused = pytest.raises(InvalidJob, match=r"thing.*: a Decimal would arrive as text")
    with refused:
        await bare.enqueue(ONE)
    with refused:
        await bare.enqueue_many([{"thing": 1}, {"thing": ONE}])
    for name in ("bare", "declared_elsewhere"):
        with refused:
            await app.add_job(name, {"thing": [ONE]})
    with pytest.raises(ConfigurationError, match="a Decimal would arrive as text"):
        app.cron("* * * * *", bare, {"thing": ONE})
    with pytest.raises(ConfigurationError, match="a Decimal would arrive as text"):
        app.cron("* * * * *", "bare", {"thing": ONE})
    with pytest.raises(ConfigurationError, match="a Decimal would arrive as text"):
        parse_cron_items([CronItem(task="bare", match="* * * * *", payload={"thing": ONE})])
    assert await (await app.open()).inspect.list() == []


async def test_a_name_alone_takes_json(app: App) -> None:
    assert (await app.add_job("declared_elsewhere", {"a": [1, None, (2,)]})).payload == {"a": [1, None, [2]]}
    with pytest.raises(InvalidJob, match="payload: a Line would arrive as a dict; use a dict"):
        await app.add_job("declared_elsewhere", Line(ONE))


def test_a_recurring_task_brings_it_back(app: App) -> None:
    @app.task
    def daily(amount: Decimal): ...  # type: ignore[no-untyped-def]

    app.cron("* * * * *", daily, {"amount": ONE})
    (item,) = app.cron_items
    assert item.payload == {"amount": "19.99"}
