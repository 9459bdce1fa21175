"""What a checker knows of ``enqueue_in``: of a synchronous object comes a job, of an asynchronous one an awaitable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkers import OF_PYRIGHT, for_pyright, under_mypy, under_pyright

PROGRAM = for_pyright("""
from __future__ import annotations
import sqlite3
from typing import Any
import aiosqlite
import asyncpg
import psycopg
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from stowhand import App, JobHandle, NewJob
from stowhand.tasks.sync_job_handle import SyncJobHandle

app = App("postgresql:///shop")


@app.task
async def send(to: str) -> int:
    return 1


async def right(
    a: psycopg.Connection[Any],
    b: sqlite3.Connection,
    c: Connection,
    d: Session,
    e: scoped_session[Session],
    f: psycopg.AsyncConnection[Any],
    g: aiosqlite.Connection,
    h: AsyncConnection,
    i: AsyncSession,
    j: async_scoped_session[AsyncSession],
    pool: asyncpg.Pool,
) -> None:
    one: JobHandle[int] = send.enqueue_in(a, "x")
    two: JobHandle[int] = send.enqueue_in(b, "x")
    three: JobHandle[int] = send.enqueue_in(c, "x")
    four: JobHandle[int] = send.enqueue_in(d, to="x")
    five: JobHandle[int] = send.options(delay=1).enqueue_in(e, "x")
    six: JobHandle[int] = await send.enqueue_in(f, "x")
    seven: JobHandle[int] = await send.enqueue_in(g, "x")
    eight: JobHandle[int] = await send.enqueue_in(h, "x")
    nine: JobHandle[int] = await send.enqueue_in(i, "x")
    ten: JobHandle[int] = await send.enqueue_in(j, "x")
    eleven: JobHandle[int] = await send.enqueue_in(await asyncpg.connect(), "x")
    async with pool.acquire() as taken, taken.transaction():
        twelve: JobHandle[int] = await send.enqueue_in(taken, "x")
    plainly: JobHandle[Any] = app.enqueue_in(d, NewJob(task="send"))
    later: JobHandle[Any] = await app.enqueue_in(i, NewJob(task="send"))
    by_the_app: JobHandle[int] = app.enqueue_in(d, send, "x")
    by_the_app_later: JobHandle[int] = await app.enqueue_in(i, send.options(delay=1), to="x")
    waited: int = app.sync.enqueue_in(d, send, "x").result()
    asked: SyncJobHandle[int] = app.sync.enqueue_in(a, send.options(key="k"), "x")


async def wrong(
    a: Engine, b: AsyncEngine, c: sessionmaker[Session], d: async_sessionmaker[AsyncSession],
    f: AsyncSession, s: Session,
) -> None:
    send.enqueue_in(a, "x")  # E
    send.enqueue_in(b, "x")  # E
    send.enqueue_in(c, "x")  # E
    send.enqueue_in(d, "x")  # E
    send.enqueue_in(s)  # E
    send.enqueue_in(s, 1)  # E
    app.sync.enqueue_in(f, send, "x")  # E
    app.sync.enqueue_in(s, send, 3)  # E
    app.enqueue_in(s, send, 3)  # E
    app.enqueue_in(a, send, "x")  # E
    number: int = send.enqueue_in(f, "x")  # E
    send.enqueue_in(f, "x").result()  # E
""")


@pytest.mark.parametrize("complaints", [under_mypy, pytest.param(under_pyright, marks=[pytest.mark.rare, OF_PYRIGHT])])
def test_a_type_checker_accepts_connections_and_refuses_other_objects(
    complaints: Callable[[str, Path], dict[int, set[str]]], tmp_path: Path
) -> None:
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# E")}
    assert complaints(PROGRAM, tmp_path).keys() == wrong
