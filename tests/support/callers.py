"""Connections and sessions of every library, each in a transaction of an application's, driven in one way."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from inspect import isawaitable
from typing import Any

import aiosqlite
import asyncpg
import psycopg
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

Opens = Callable[[str], AbstractAsyncContextManager["Held"]]


class Held:
    """What an application holds: the object that ``enqueue_in`` is given, and what else is done with it."""

    def __init__(self, given: Any, execute: Callable[[str], Any], commit: Any, rollback: Any) -> None:
        self.given = given
        self._execute, self._commit, self._rollback = execute, commit, rollback

    async def execute(self, statement: str) -> None:
        await settled(self._execute(statement))

    async def commit(self) -> None:
        await settled(self._commit())

    async def rollback(self) -> None:
        await settled(self._rollback())


async def settled(given: Any) -> Any:
    """Awaited, if it is an awaitable."""
    return await given if isawaitable(given) else given


def plainly(connect: Callable[[str], Any]) -> Opens:
    """A driver's connection with the usual three methods."""

    @asynccontextmanager
    async def opens(url: str) -> AsyncIterator[Held]:
        connection = await settled(connect(url))
        try:
            yield Held(connection, connection.execute, connection.commit, connection.rollback)
        finally:
            await settled(connection.close())

    return opens


@asynccontextmanager
async def of_asyncpg(url: str) -> AsyncIterator[Held]:
    connection = await asyncpg.connect(url)
    try:
        yield await _in_a_block(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def of_asyncpgs_pool(url: str) -> AsyncIterator[Held]:
    async with asyncpg.create_pool(url, min_size=1, max_size=2) as pool, pool.acquire() as connection:
        yield await _in_a_block(connection)


async def _in_a_block(connection: Any) -> Held:
    block = connection.transaction()
    await block.start()
    return Held(connection, connection.execute, lambda: block.commit(), lambda: block.rollback())


def with_sqlalchemy(driver: str, make: Callable[[Any], Any]) -> Opens:
    """Of a synchronous engine over this driver."""

    @asynccontextmanager
    async def opens(url: str) -> AsyncIterator[Held]:
        engine = create_engine(make_url(url).set(drivername=driver))
        value = make(engine)
        try:
            yield Held(value, lambda statement: value.execute(text(statement)), value.commit, value.rollback)
        finally:
            value.close()
            engine.dispose()

    return opens


def with_asyncio(driver: str, make: Callable[[Any], Any]) -> Opens:
    """Of an asynchronous one."""

    @asynccontextmanager
    async def opens(url: str) -> AsyncIterator[Held]:
        engine = create_async_engine(make_url(url).set(drivername=driver))
        value = await settled(make(engine))
        try:
            yield Held(value, lambda statement: value.execute(text(statement)), value.commit, value.rollback)
        finally:
            await value.close()
            await engine.dispose()

    return opens


SYNCHRONOUS: dict[str, Callable[[Any], Any]] = {
    "Connection": lambda engine: engine.connect(),
    "Session": Session,
    "scoped_session": lambda engine: scoped_session(sessionmaker(engine)),
}
ASYNCHRONOUS: dict[str, Callable[[Any], Any]] = {
    "AsyncConnection": lambda engine: engine.connect().start(),
    "AsyncSession": AsyncSession,
    "async_scoped_session": lambda engine: async_scoped_session(async_sessionmaker(engine), asyncio.current_task),
}


def _library(sync: list[str], asynchronous: list[str]) -> dict[str, Opens]:
    return {
        f"{kind}-{driver.rpartition('+')[2]}": opens(driver, make)
        for drivers, opens, kinds in (
            (sync, with_sqlalchemy, SYNCHRONOUS),
            (asynchronous, with_asyncio, ASYNCHRONOUS),
        )
        for driver in drivers
        for kind, make in kinds.items()
    }


def _connect_psycopg(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url)


def _connect_psycopg_async(url: str) -> Awaitable[psycopg.AsyncConnection[Any]]:
    return psycopg.AsyncConnection.connect(url)


POSTGRES: dict[str, Opens] = {
    "psycopg": plainly(_connect_psycopg),
    "psycopg async": plainly(_connect_psycopg_async),
    "asyncpg": of_asyncpg,
    "asyncpg pool": of_asyncpgs_pool,
    **_library(["postgresql+psycopg", "postgresql+psycopg2"], ["postgresql+psycopg", "postgresql+asyncpg"]),
}
SQLITE: dict[str, Opens] = {
    "sqlite3": plainly(lambda url: sqlite3.connect(url.removeprefix("sqlite:///"))),
    "aiosqlite": plainly(lambda url: aiosqlite.connect(url.removeprefix("sqlite:///"))),
    **_library(["sqlite+pysqlite"], ["sqlite+aiosqlite"]),
}
OFTEN = {
    *("psycopg", "psycopg async", "asyncpg", "Session-psycopg", "AsyncConnection-psycopg", "AsyncSession-asyncpg"),
    *("sqlite3", "aiosqlite", "Connection-pysqlite", "AsyncSession-aiosqlite"),
}
"""What every run of the tests looks at; the others are ``rare``."""
