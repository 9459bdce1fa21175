"""Tasks that ask for resources, and what stands around them; what happens where is written to the file ``NOTES``.

``UNOPENABLE`` names the programs in which the model cannot be opened: ``worker``, ``quarantine_child``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from stowhand import App, Context, NewJob, resource
from stowhand.handler import Attempt, Handler

PROGRAM = "quarantine_child" if Path(sys.argv[0]).stem == "quarantine_child" else "worker"


def note(words: str) -> None:
    with Path(os.environ["NOTES"]).open("a", encoding="utf-8") as notes:
        notes.write(f"{PROGRAM} {words}\n")


@contextmanager
def open_model() -> Iterator[str]:
    unopenable = Path(os.environ["UNOPENABLE"])
    if unopenable.exists() and PROGRAM in unopenable.read_text():
        raise ConnectionError("no model")
    note("opens model")
    yield "model"
    note("closes model")


@asynccontextmanager
async def open_client() -> AsyncIterator[str]:
    note("opens client")
    yield "client"
    note("closes client")


class Noting:
    def __init__(self, inner: Handler) -> None:
        self._inner = inner

    async def pre_handle(self, ctx: Attempt[Any], record: Any) -> None:
        note("pre_handle")

    async def handle(self, ctx: Attempt[Any], record: Any) -> object:
        note("handle")
        return await self._inner.handle(ctx, record)

    async def post_handle(self, ctx: Attempt[Any], record: Any) -> None:
        note("post_handle")

    def retryable(self, error: BaseException) -> bool:
        return not isinstance(error, KeyError)


def marked(job: NewJob) -> NewJob:
    return msgspec.structs.replace(job, priority=job.priority + 1)


app = App(middleware=[Noting], on_enqueue=[marked])


@app.task(name="fetch")
async def fetch(*, client: str = resource(open_client)) -> None:
    note(f"fetches with {client}")


@app.task(name="judge")
def judge(ctx: Context, *, model: str = resource(open_model)) -> None:
    note(f"judges with {model}")
    ctx.enqueue_after(fetch.new_job())


@app.task(name="hopeless")
async def hopeless() -> None:
    raise KeyError("x")
