"""Refused connections: their owner cannot commit, or they are not connections. Errors of the owner."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import psycopg_pool
import pytest
from sqlalchemy import create_engine, exc, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from stowhand.app.app import App
from stowhand.errors import ConfigurationError, InvalidJob, SchemaError, SchemaMissing, SchemaTooNew
from stowhand.jobs.job import Job, NewJob
from stowhand.stores.callers import connection_types
from tests.conftest import Run
from tests.support.callers import settled

JOB = NewJob(task="t")


class Made:
    """Makes what a test hands over, and closes it."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self._stack = stack

    def engine(self, driver: str = "postgresql+psycopg", **options: Any) -> Any:
        engine = create_engine(make_url(self.url).set(drivername=driver), **options)
        self._stack.callback(engine.dispose)
        return engine

    def connection(self, driver: str = "postgresql+psycopg", **options: Any) -> Any:
        return self._stack.enter_context(self.engine(driver, **options).connect())

    def async_engine(self, driver: str = "postgresql+asyncpg", **options: Any) -> Any:
        engine = create_async_engine(make_url(self.url).set(drivername=driver), **options)
        self._stack.push_async_callback(engine.dispose)
        return engine

    async def async_connection(self, driver: str = "postgresql+asyncpg", **options: Any) -> Any:
        return await self._stack.enter_async_context(self.async_engine(driver, **options).connect())

    async def asyncpg(self, **options: Any) -> Any:
        connection = await asyncpg.connect(self.url, **options)
        self._stack.push_async_callback(connection.close)
        return connection

    async def asyncpg_in_a_block(self, **options: Any) -> Any:
        connection = await self.asyncpg(**options)
        await connection.transaction().start()
        return connection

    async def psycopg(self, **options: Any) -> Any:
        return await self._stack.enter_async_context(await psycopg.AsyncConnection.connect(self.url, **options))

    async def pool(self) -> Any:
        return await self._stack.enter_async_context(asyncpg.create_pool(self.url, min_size=1))

    def psycopg_pool(self) -> Any:
        return self._stack.enter_context(psycopg_pool.ConnectionPool(self.url, min_size=1, open=True))

    def session(self, *given: Any, **options: Any) -> Any:
        return self._stack.enter_context(Session(*given, **options))


@asynccontextmanager
async def making(url: str) -> AsyncIterator[Made]:
    async with AsyncExitStack() as stack:
        yield Made(url, stack)


async def _inside(made: Made, of: Callable[[Any], Any]) -> Any:
    return of((await made.async_connection()).sync_connection)


AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}
REFUSED: dict[str, tuple[Callable[[Made], Any], str]] = {
    "an Engine": (lambda made: made.engine(), r"`with engine\.begin\(\)"),
    "an AsyncEngine": (lambda made: made.async_engine(), r"`async with engine\.begin\(\)"),
    "a sessionmaker": (lambda made: sessionmaker(made.engine()), r"`with make_session\.begin\(\)"),
    "an async_sessionmaker": (lambda made: async_sessionmaker(made.async_engine()), r"`async with make_session"),
    "a session without a bind": (lambda made: made.session(), "no bind"),
    "a session in two phases": (lambda made: made.session(made.engine(), twophase=True), "two phases"),
    "an engine in AUTOCOMMIT": (lambda made: made.connection(**AUTOCOMMIT), "is in AUTOCOMMIT"),
    "the same, asynchronous": (lambda made: made.async_connection(**AUTOCOMMIT), "is in AUTOCOMMIT"),
    "over psycopg, asynchronous": (
        lambda made: made.async_connection("postgresql+psycopg", **AUTOCOMMIT),
        "is in AUTOCOMMIT",
    ),
    "a connection in AUTOCOMMIT": (lambda made: made.connection().execution_options(**AUTOCOMMIT), "is in AUTOCOMMIT"),
    "the inside of an asynchronous connection": (
        lambda made: _inside(made, lambda inside: inside),
        "hand over the asynchronous one",
    ),
    "the inside of an asynchronous session": (
        lambda made: _inside(made, made.session),
        "hand over the asynchronous one",
    ),
    "a transaction of SQLAlchemy's": (lambda made: made.connection().begin(), "hand over its connection"),
    "a pool of SQLAlchemy's": (lambda made: made.engine().pool, "take a connection from it"),
    "asyncpg in no block": (lambda made: made.asyncpg(), r"open one, `async with connection\.transaction\(\)"),
    "a pool of asyncpg's": (lambda made: made.pool(), "take a connection from it"),
    "a pool of psycopg's": (lambda made: made.psycopg_pool(), "take a connection from it"),
    "psycopg in autocommit": (lambda made: made.psycopg(autocommit=True), r"`with connection\.transaction\(\)"),
    "psycopg to another database": (lambda made: made.psycopg(dbname="postgres"), "to the database 'postgres'"),
    "asyncpg to another": (lambda made: made.asyncpg_in_a_block(database="postgres"), "database 'postgres'"),
    "SQLAlchemy over asyncpg to another": (
        lambda made: made.async_connection(connect_args={"database": "postgres"}),
        "database 'postgres'",
    ),
    "SQLAlchemy to another": (lambda made: made.connection(connect_args={"dbname": "postgres"}), "database 'postgres'"),
    "the same beneath psycopg2": (
        lambda made: made.connection("postgresql+psycopg2", connect_args={"dbname": "postgres"}),
        "database 'postgres'",
    ),
    "SQLAlchemy to SQLite": (lambda made: create_engine("sqlite://").connect(), "PostgreSQL .* to sqlite"),
    "sqlite3": (lambda made: sqlite3.connect(":memory:"), r"PostgreSQL .*not a sqlite3\.Connection"),
    "psycopg2 alone": (lambda made: psycopg2.connect(made.url), "psycopg2 alone is not supported"),
    "nothing": (lambda made: None, "NoneType"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_connection_that_cannot_be_committed_is_refused_with_the_fix(what: str, postgres_url: str, run: Run) -> None:
    make, said = REFUSED[what]
    app = App(postgres_url)

    async def story() -> None:
        async with making(postgres_url) as made:
            value = await settled(make(made))
            with pytest.raises(ConfigurationError, match=said):
                await settled(app.enqueue_in(value, JOB))
            if hasattr(value, "close") and not hasattr(value, "__aexit__"):
                await settled(value.close())

    run(story())
    assert _count(postgres_url) == 0


def test_another_file_is_refused_and_another_name_of_the_same_is_not(tmp_path: Path, run: Run) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db")
    app.sync.install()
    for url in (f"sqlite:///{tmp_path}/other.db", "sqlite://", "sqlite:///file:x?mode=memory&cache=shared&uri=true"):
        with (
            create_engine(url, poolclass=StaticPool).connect() as connection,
            pytest.raises(ConfigurationError, match="the queue is"),
        ):
            app.enqueue_in(connection, JOB)
    for url in (f"sqlite:///file:{tmp_path}/shop.db?uri=true", f"sqlite:///{tmp_path}/../{tmp_path.name}/shop.db"):
        with create_engine(url).begin() as connection:
            app.enqueue_in(connection, JOB)
    for options in (AUTOCOMMIT, {}):
        engine = create_engine(f"sqlite:///{tmp_path}/shop.db", **options)
        with engine.connect() as connection:
            connection = connection.execution_options(**AUTOCOMMIT)
            with pytest.raises(ConfigurationError, match="is in AUTOCOMMIT"):
                app.enqueue_in(connection, JOB)

    async def elsewhere() -> None:
        async with aiosqlite.connect(tmp_path / "other.db") as connection:
            with pytest.raises(ConfigurationError, match="the queue is"):
                await app.enqueue_in(connection, JOB)

    run(elsewhere())
    assert len(app.sync.list()) == 2
    app.sync.close()


def test_an_asynchronous_connection_is_refused_without_an_event_loop(postgres_url: str, run: Run) -> None:
    app = App(postgres_url)

    @app.task
    def send(to: str) -> None: ...

    async def story() -> None:
        async with making(postgres_url) as made:
            for given in (await made.psycopg(), await made.async_connection(), await made.asyncpg()):
                with pytest.raises(ConfigurationError, match=r"await send\.enqueue_in"):
                    app.sync.enqueue_in(given, send, "x")
            assert app.sync.enqueue_in(made.session(made.engine()), send, "x").payload == {"to": "x"}

    run(story())


def test_a_job_that_the_server_refuses_is_an_invalid_job_whatever_the_library(postgres_url: str, run: Run) -> None:
    # Nothing else than the server looks at it: what a store is given has passed the checks before.
    app = App(postgres_url)
    transactions = app.any_store().transactions
    assert transactions is not None
    huge = NewJob(task="t", payload=f'"{"x" * 1_048_577}"')

    async def story() -> None:
        async with making(postgres_url) as made:
            connection = await made.asyncpg()
            for given in (made.connection(), made.session(made.engine()), await made.async_connection(), connection):
                block = connection.transaction()
                await block.start()
                with pytest.raises(InvalidJob, match=r"task 't': The payload would take 1048579 bytes.*Nothing was"):
                    await settled(transactions.enqueue_in(given, huge))
                await block.rollback()

    run(story())


def test_a_schema_without_the_function_is_reported_with_the_migrate_command(postgres_url: str, run: Run) -> None:
    app, absent = App(postgres_url), App(postgres_url, schema="elsewhere")

    async def story() -> None:
        async with making(postgres_url) as made:
            session = made.session(made.engine())
            session.execute(text("alter function stowhand.enqueue_text(text) rename to of_a_later_version"))
            with pytest.raises(SchemaMissing, match=r"enqueue_text.*stowhand migrate"):
                app.enqueue_in(session, JOB)
            connection = await made.asyncpg()
            async with connection.transaction():
                with pytest.raises(SchemaMissing, match=r"elsewhere.*stowhand migrate"):
                    await absent.enqueue_in(connection, JOB)
                with pytest.raises(asyncpg.InFailedSQLTransactionError):
                    await app.enqueue_in(connection, JOB)

    run(story())


@pytest.mark.parametrize(
    ("change", "refused", "words"),
    [
        ("update stowhand.applied_migrations set fingerprint = 'another'", SchemaError, "stowhand migrate"),
        ("update stowhand.applied_migrations set id = 20", SchemaError, "stowhand migrate"),
        ("delete from stowhand.applied_migrations", SchemaMissing, "stowhand migrate"),
        (
            "insert into stowhand.applied_migrations (id, breaking, fingerprint) values (999, true, '')",
            SchemaTooNew,
            "upgrade",
        ),
    ],
    ids=["another baseline", "of before the first release", "none", "too new"],
)
def test_no_job_is_written_into_a_schema_of_another_version(
    change: str, refused: type[SchemaError], words: str, postgres_url: str, run: Run
) -> None:
    async def story() -> None:
        with psycopg.connect(postgres_url) as connection:
            connection.execute(change)
            app = App(postgres_url)
            for _ in range(2):
                with pytest.raises(refused, match=words):
                    app.enqueue_in(connection, JOB)
            assert connection.execute("select count(*) from stowhand.live").fetchone() == (0,)
            connection.rollback()
        async with making(postgres_url) as made:
            awaited = await made.asyncpg()
            block = awaited.transaction()
            await block.start()
            await awaited.execute(change)
            with pytest.raises(refused, match=words):
                await settled(app.enqueue_in(awaited, JOB))
            await block.rollback()

    run(story())


def test_the_schema_is_checked_once(postgres_url: str) -> None:
    app = App(postgres_url)
    with psycopg.connect(postgres_url) as connection:
        app.enqueue_in(connection, JOB)
        connection.execute("alter table stowhand.applied_migrations rename to seen_before")
        app.enqueue_in(connection, JOB)
        assert connection.execute("select count(*) from stowhand.live").fetchone() == (2,)
        connection.rollback()


def test_an_option_that_the_schema_lacks_is_never_ignored(postgres_url: str) -> None:
    with (
        psycopg.connect(postgres_url) as connection,
        pytest.raises(psycopg.errors.UndefinedFunction, match='does not know "color": it is older than the program'),
    ):
        connection.execute("""select stowhand.enqueue_text('{"task": "t", "color": "red"}')""")


def test_the_function_accepts_and_returns_every_field_of_a_job(postgres_url: str) -> None:
    value = dict.fromkeys(NewJob.__struct_encode_fields__) | {"task": "t"}
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("select stowhand.enqueue_text(%s)", [json.dumps(value)]).fetchone()
        connection.rollback()
    assert row is not None
    assert set(json.loads(row[0])) == set(Job.__struct_encode_fields__) - {"result"}, "which a new job never has"


@pytest.mark.parametrize("payload", [{"to": "ada", "n": 1.5}, '{"to": "ada", "n": 1.5}'])
def test_the_functions_payload_is_an_object_or_a_text(payload: object, postgres_url: str) -> None:
    value = json.dumps({"task": "t", "payload": payload})
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("select stowhand.enqueue_text(%s)", [value]).fetchone()
        connection.rollback()
    assert row is not None
    assert json.loads(json.loads(row[0])["payload"]) == {"to": "ada", "n": 1.5}


def test_a_closed_or_failed_connection_raises_the_error_of_its_library(
    postgres_url: str, tmp_path: Path, run: Run
) -> None:
    app, lite = App(postgres_url), App(f"sqlite:///{tmp_path}/shop.db")
    lite.sync.install()

    async def story() -> None:
        async with making(postgres_url) as made:
            connection = made.connection()
            with pytest.raises(exc.ProgrammingError, match="nonesuch"):
                connection.execute(text("select * from nonesuch"))
            with pytest.raises(exc.InternalError, match="current transaction is aborted"):
                app.enqueue_in(connection, JOB)
            connection.close()
            with pytest.raises(exc.ResourceClosedError):
                app.enqueue_in(connection, JOB)
            session = AsyncSession(made.async_engine(), autobegin=False)
            with pytest.raises(exc.InvalidRequestError, match="begin"):
                await app.enqueue_in(session, JOB)
            pool = await made.pool()
            async with pool.acquire() as released:
                pass
            with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
                await app.enqueue_in(released, JOB)
            closed = await asyncpg.connect(postgres_url)
            await closed.close()
            with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
                await app.enqueue_in(closed, JOB)
            at_last = await psycopg.AsyncConnection.connect(postgres_url)
            await at_last.close()
            with pytest.raises(psycopg.OperationalError, match="the connection is closed"):
                await app.enqueue_in(at_last, JOB)
            with pytest.raises(ValueError, match="Connection closed"):
                await lite.enqueue_in(aiosqlite.connect(tmp_path / "shop.db"), JOB)

    run(story())
    lite.sync.close()


def test_the_names_of_classes_are_those_of_the_libraries() -> None:
    for name in connection_types._ADVICE_BY_CLASS:
        module, _, cls = name.rpartition(".")
        if module.partition(".")[0] in ("django", "flask_sqlalchemy"):
            continue
        rows = __import__(module, fromlist=[cls])
        assert f"{getattr(rows, cls).__module__}.{cls}" == name


def _count(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("select count(*) from stowhand.live").fetchone()
    assert row is not None
    return int(row[0])
