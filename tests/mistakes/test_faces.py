"""A call of the wrong face of an App is answered with the right one; so are new forms of old mistakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stowhand import App, gather
from stowhand.errors import StowhandError

MAIN = "await it in an 'async def main()' run by asyncio.run(main())"

app = App("memory://")


@app.task
async def send(to: str, copies: int = 1) -> str:
    return to


def plain(to: str) -> None: ...


def in_a_loop(call: Callable[[], Any]) -> Callable[[], object]:
    async def main() -> object:
        instance = call()
        return await instance if asyncio.iscoroutine(instance) else instance

    return lambda: asyncio.run(main())


def declare(cron: Any, function: Callable[..., object] = lambda: None) -> Callable[[], object]:
    return lambda: App("memory://").task(name="report", cron=cron)(function)


unchecked: Any = app
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "enqueue without await in a def view": (lambda: send.enqueue("x"), f"Write send.enqueue_sync(…), or {MAIN}"),
    "asyncio.run(send.enqueue())": (lambda: asyncio.run(send.enqueue("x")), f"Write send.enqueue_sync(…), or {MAIN}"),
    "gather without await": (lambda: gather([]), f"Write app.sync.gather(…), or {MAIN}"),
    "app.open without await": (lambda: app.open(), f"(app.sync connects by itself), or {MAIN}"),
    "asyncio.run(app.close())": (lambda: asyncio.run(app.close()), f"Write app.sync.close(), or {MAIN}"),
    "app.get without await": (lambda: app.get(1), f"Write app.sync.get(…), or {MAIN}"),
    "enqueue_sync in a coroutine": (in_a_loop(lambda: send.enqueue_sync("x")), "write await send.enqueue(…)"),
    "app.sync in a coroutine": (in_a_loop(lambda: app.sync.counts()), "write await app.counts(…)"),
    "arguments to a NewJob": (
        in_a_loop(lambda: unchecked.enqueue(send.new_job("x"), "y")),
        "a NewJob has its payload already; use arguments to a task only",
    ),
    "cron with a number": (declare(7), "got an int; use five fields such as '0 4 * * *', or a function"),
    "cron and an argument": (
        declare("0 7 * * mon", plain),
        "missing argument 'to'; use the arguments: app.cron(…, report, {…})",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistaken_call_is_answered_with_the_right_one(mistake: str) -> None:
    call, answer = MISTAKES[mistake]
    with pytest.raises(StowhandError) as raised:
        call()
    assert answer in str(raised.value)
