"""``resource(…)`` in a signature: what is refused at the import, what callers leave out, what checkers say."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stowhand import App, Context
from stowhand.errors import ConfigurationError, InvalidJob, Misuse
from stowhand.tasks.resource import Resource, resource
from stowhand.testing import MemoryStore
from tests.support.checkers import OF_PYRIGHT, expected, for_pyright, under_mypy, under_pyright


class Mailer:
    """A context manager itself, asynchronous."""

    async def __aenter__(self) -> Mailer:
        return self

    async def __aexit__(self, *raised: object) -> None: ...

    @contextmanager
    def lines(self) -> Iterator[list[str]]:
        yield []


class Model:
    def __enter__(self) -> Model:
        return self

    def __exit__(self, *raised: object) -> None: ...


@asynccontextmanager
async def open_mailer() -> AsyncIterator[Mailer]:
    yield Mailer()


@contextmanager
def open_model(path: str = "") -> Iterator[Model]:
    yield Model()


def annotated() -> AbstractAsyncContextManager[Mailer]:
    return open_mailer()


def annotated_plain() -> AbstractContextManager[Model]:
    return open_model()


def gives_mailer() -> Mailer:
    return Mailer()


async def connected() -> Mailer:
    return Mailer()


def yields() -> Iterator[int]:
    yield 1


async def yields_later() -> AsyncIterator[int]:
    yield 1


@contextmanager
def addressed(url: str) -> Iterator[Model]:
    yield Model()


def unknown():  # type: ignore[no-untyped-def]
    return Model()


def odd() -> Nowhere:  # type: ignore[name-defined] # noqa: F821
    ...


class Factory:
    def __call__(self) -> Model:
        return Model()


@pytest.mark.parametrize(
    ("factory", "asynchronous"),
    [
        (open_mailer, True),
        (open_model, False),
        (functools.partial(open_model, "a.bin"), False),
        (annotated, True),
        (annotated_plain, False),
        (gives_mailer, True),
        (Mailer, True),
        (Model, False),
        (Mailer().lines, False),
        (Factory(), False),
        (functools.partial(Mailer), True),
    ],
)
def test_whether_a_factory_is_asynchronous_is_seen_without_calling_it(
    factory: Callable[[], Any], asynchronous: bool
) -> None:
    assert Resource(factory).is_async() is asynchronous


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (connected, "connected returns a coroutine and is not a context manager; put @asynccontextmanager"),
        (yields, "yields yields and is not a context manager; put @contextmanager above it"),
        (yields_later, "yields_later yields and is not a context manager; put @asynccontextmanager above it"),
        (unknown, "unknown cannot be recognized as a context manager; decorate it"),
        (odd, "odd cannot be recognized as a context manager"),
        (addressed, "addressed is called without arguments (missing a required argument: 'url'); bind them with"),
        (int, "int cannot be recognized as a context manager"),
        (lambda: Model(), "<lambda> cannot be recognized as a context manager"),
    ],
)
def test_a_factory_that_gives_no_context_manager_is_refused_at_the_import_by_task_and_parameter(
    factory: Callable[[], Any], words: str
) -> None:
    app = App(store=MemoryStore())

    async def send(*, mailer: Any = resource(factory)) -> None: ...

    with pytest.raises(ConfigurationError, match=re.escape(f"task 'send': parameter 'mailer': resource {words}")):
        app.task(send)


def test_what_is_open_already_is_no_factory() -> None:
    for given, words in ((Model(), "without calling it"), (3, "an int is not a function")):
        with pytest.raises(ConfigurationError, match=words):
            resource(given)  # type: ignore[call-overload]


def test_a_resource_is_given_by_name_alone() -> None:
    app = App(store=MemoryStore())

    async def send(to: str, mailer: Mailer = resource(open_mailer)) -> None: ...

    with pytest.raises(ConfigurationError, match=r"task 'send': parameter 'mailer': .* write it after a \*"):
        app.task(send)


@pytest.mark.parametrize("executor", [None, "loop"])
def test_a_def_task_cannot_have_what_is_opened_asynchronously(executor: Any) -> None:
    app = App(store=MemoryStore())

    def send(to: str, *, mailer: Mailer = resource(open_mailer)) -> None: ...

    with pytest.raises(ConfigurationError, match="resource open_mailer is opened asynchronously, so a def task"):
        app.task(executor=executor)(send)


def test_callers_omit_resources() -> None:
    app = App(store=MemoryStore())

    @app.task
    async def send(to: str, *, mailer: Mailer = resource(open_mailer)) -> str:
        return f"{to} {type(mailer).__name__}"

    assert send.new_job("x").payload == '{"to":"x"}'
    for kwargs in ({"mailer": Mailer()}, {"mailer": None}):
        with pytest.raises(InvalidJob, match="argument 'mailer' is a resource, which the worker opens; leave it out"):
            send.new_job("x", **kwargs)
    with pytest.raises(InvalidJob, match="unexpected argument 'mailer'"):
        app.registry.new_job("send", {"to": "x", "mailer": 1}, {})


def test_a_direct_call_brings_it() -> None:
    app = App(store=MemoryStore())

    @app.task
    def send(to: str, *, model: Model = resource(open_model)) -> str:
        return f"{to} {type(model).__name__}"

    @app.task
    def within(ctx: Context, *, model: Model = resource(open_model)) -> None: ...

    assert send("x", model=Model()) == "x Model"
    with pytest.raises(Misuse, match="directly needs model=…: only a worker opens resource"):
        send("x")
    with pytest.raises(Misuse, match="needs model="):
        within(None)  # type: ignore[arg-type]


def test_it_does_not_count_as_a_parameter_of_the_payload() -> None:
    app = App(store=MemoryStore())

    @app.task
    def whole(payload: Any, *, model: Model = resource(open_model)) -> None: ...

    @app.task
    def nothing(*, model: Model = resource(open_model)) -> None: ...

    assert whole.new_job([1]).payload == "[1]"
    assert nothing.new_job().payload == "{}"


PROGRAM = for_pyright("""
from __future__ import annotations
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from stowhand import App, Context, resource

class Mailer:
    async def __aenter__(self) -> Mailer: return self
    async def __aexit__(self, *raised: object) -> None: ...

class Model: ...

@asynccontextmanager
async def open_mailer() -> AsyncIterator[Mailer]:
    yield Mailer()

@contextmanager
def open_model() -> Iterator[Model]:
    yield Model()

async def connect() -> Mailer:
    return Mailer()

app = App("sqlite:///queue.db")

@app.task
async def send(to: str, *, mailer: Mailer = resource(open_mailer)) -> str:
    return to

@app.task(serial="slow")
def judge(ctx: Context, text: str, *, model: Model = resource(open_model)) -> int:
    return 1

@app.task
async def itself(*, mailer: Mailer = resource(Mailer)) -> None: ...

@app.task
async def swapped(*, mailer: Mailer = resource(open_model)) -> None: ...  # M assignment # P reportArgumentType

@app.task
async def bare(*, mailer: Mailer = resource(connect)) -> None: ...  # M arg-type # P reportCallIssue reportArgumentType

async def right(ctx: Context) -> None:
    await send.enqueue("x")
    await judge.enqueue("x")
    await itself.enqueue()
    said: str = await send("x", mailer=Mailer())
    number: int = judge(ctx, "x", model=Model())
    with app.override(open_mailer, Mailer()), app.override(open_model, Model()):
        await send.enqueue("x")
    async with app.run_in_background(resources={open_mailer: Mailer()}):
        ...

async def wrong(ctx: Context) -> None:
    await send.enqueue("x", mailer="m")  # M arg-type # P reportArgumentType
    await send("x", mailer=Model())  # M arg-type # P reportArgumentType
    await send.enqueue()  # M call-arg # P reportCallIssue
    judge(ctx, "x", model=Mailer())  # M arg-type # P reportArgumentType
""")


@OF_PYRIGHT
def test_checkers_let_callers_leave_it_out_and_find_a_wrong_one(tmp_path: Path) -> None:
    for check, mark in ((under_mypy, "# M "), (under_pyright, "# P ")):
        found, wanted = check(PROGRAM, tmp_path), expected(PROGRAM, mark)
        assert found.keys() == wanted.keys(), (mark, found)
        for number, kinds in found.items():
            assert kinds <= wanted[number] | {"misc"}, (mark, number, kinds)
