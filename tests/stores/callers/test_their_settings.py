"""What a caller has set on its connection breaks nothing of ours, and nothing of ours changes what it has set."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from stowhand.app.app import App
from stowhand.jobs.job import KeyMode, NewJob
from stowhand.tasks.job_handle import JobHandle
from tests.conftest import Run
from tests.support import callers
from tests.support.callers import settled
from tests.support.imported import modules_after

JOB = NewJob(task="t", payload='{"to": "100 % : ? ü"}', flags=("b", "a"), key="k", delay=1.0)


class Shouting(TextLoader):
    def load(self, data: Any) -> str:
        return str(super().load(data)).upper()


@contextmanager
def plain(url: str, **options: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, **options) as connection:
        yield connection
        connection.rollback()


@contextmanager
def with_loaders(url: str) -> Iterator[psycopg.Connection[Any]]:
    with plain(url) as connection:
        for kind in ("text", "json", "timestamptz", "int8", "bool"):
            connection.adapters.register_loader(kind, Shouting)
        yield connection


@contextmanager
def in_a_pipeline(url: str) -> Iterator[psycopg.Connection[Any]]:
    with plain(url) as connection, connection.pipeline():
        connection.execute("select 1")
        yield connection


@contextmanager
def in_a_block(url: str) -> Iterator[psycopg.Connection[Any]]:
    with plain(url, autocommit=True) as connection, connection.transaction(force_rollback=True):
        yield connection


@contextmanager
def of_an_engine(url: str, driver: str = "postgresql+psycopg", **options: Any) -> Iterator[Session]:
    engine = create_engine(make_url(url).set(drivername=driver), **options)
    with Session(engine) as session:
        yield session
    engine.dispose()


SYNCHRONOUS: dict[str, Callable[[str], Any]] = {
    "rows as dictionaries": lambda url: plain(url, row_factory=dict_row),
    "cursors that bind themselves": lambda url: plain(url, cursor_factory=psycopg.ClientCursor),
    "cursors with $1": lambda url: plain(url, cursor_factory=psycopg.RawCursor),
    "everything prepared": lambda url: plain(url, prepare_threshold=0),
    "nothing prepared": lambda url: plain(url, prepare_threshold=None),
    "loaders of its own": with_loaders,
    "a pipeline": in_a_pipeline,
    "autocommit, in a block": in_a_block,
    "another encoding, zone, style and path": lambda url: plain(
        url, options="-c client_encoding=UTF8 -c timezone=Asia/Kolkata -c datestyle=sql,dmy -c search_path=nowhere"
    ),
    "a serializer of JSON": lambda url: of_an_engine(url, json_serializer=str, json_deserializer=len),
    "statements of SQLAlchemy, plain": lambda url: of_an_engine(url, use_insertmanyvalues=False, query_cache_size=0),
    "serializable, translated": lambda url: of_an_engine(
        url,
        isolation_level="SERIALIZABLE",
        execution_options={"schema_translate_map": {None: "nowhere", "stowhand": "nowhere"}},
    ),
    "a URL that names its path": lambda url: of_an_engine(url, connect_args={"options": "-c search_path=nowhere"}),
}


@pytest.mark.parametrize("opens", SYNCHRONOUS.values(), ids=SYNCHRONOUS.keys())
def test_settings_of_a_synchronous_connection_do_not_matter(opens: Callable[[str], Any], postgres_url: str) -> None:
    app = App(postgres_url)
    with opens(postgres_url) as connection:
        check(app.enqueue_in(connection, JOB))


@asynccontextmanager
async def of_asyncpg(url: str, **options: Any) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url, **options)
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=str, decoder=len, schema="pg_catalog")
    async with connection.transaction():
        yield connection
    await connection.close()


@asynccontextmanager
async def of_an_async_engine(url: str, **options: Any) -> AsyncIterator[AsyncSession]:
    engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"), **options)
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


class Record(asyncpg.Record):  # type: ignore[misc]
    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)


ASYNCHRONOUS: dict[str, Callable[[str], Any]] = {
    "codecs, and no cache, as behind a pooler": lambda url: of_asyncpg(url, statement_cache_size=0),
    "records and a path of its own": lambda url: of_asyncpg(
        url, record_class=Record, server_settings={"search_path": "nowhere", "timezone": "Asia/Kolkata"}
    ),
    "no cache of SQLAlchemy's": lambda url: of_an_async_engine(
        url, connect_args={"statement_cache_size": 0, "prepared_statement_cache_size": 0}, json_deserializer=len
    ),
}


@pytest.mark.parametrize("opens", ASYNCHRONOUS.values(), ids=ASYNCHRONOUS.keys())
def test_settings_of_an_asynchronous_connection_do_not_matter(
    opens: Callable[[str], Any], postgres_url: str, run: Run
) -> None:
    app = App(postgres_url)

    async def story() -> None:
        async with opens(postgres_url) as connection:
            check(await app.enqueue_in(connection, JOB))

    run(story())


def test_a_session_in_the_transaction_of_a_test_leaves_no_job(postgres_url: str) -> None:
    app = App(postgres_url)
    app.sync.counts()
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            check(app.enqueue_in(session, JOB))
            session.commit()
            seen = connection.scalar(text("select count(*) from stowhand.live"))
        outer.rollback()
    engine.dispose()
    assert (seen, app.sync.list()) == (1, [])
    app.sync.close()


def test_no_optional_library_is_imported(tmp_path: Path) -> None:
    program = """
import sqlite3
from stowhand import App, NewJob
app = App("sqlite:///{}")
app.sync.install()
app.enqueue_in(sqlite3.connect("{}"), NewJob(task="t"))"""
    file = tmp_path / "shop.db"
    loaded = modules_after(program.format(file, file))
    assert "stowhand.stores.callers.connection_types" in loaded
    assert not {"sqlalchemy", "asyncpg", "aiosqlite", "django", "stowhand.stores.callers.sqlalchemy"} & loaded


def test_a_session_within_run_sync_is_synchronous(postgres_url: str, run: Run) -> None:
    app = App(postgres_url)

    async def story() -> None:
        async with of_an_async_engine(postgres_url) as session:
            check(await session.run_sync(lambda inside: app.enqueue_in(inside, JOB)))

    run(story())


@pytest.mark.parametrize("name", ["psycopg", "asyncpg", "Session-psycopg", "AsyncSession-asyncpg"])
def test_special_characters_in_the_schema_name_are_escaped(name: str, postgres_url: str, run: Run) -> None:
    app = App(postgres_url, schema='a "b" :job %s %% ? $1 {c} \\:d')
    app.sync.install()

    async def story() -> JobHandle[Any]:
        async with callers.POSTGRES[name](postgres_url) as held:
            job = await settled(app.enqueue_in(held.given, JOB))
            await held.commit()
            return check(job)

    assert app.sync.get(run(story()).id) is not None
    app.sync.close()
    with psycopg.connect(postgres_url) as connection:
        connection.execute(b'drop schema "a ""b"" :job %s %% ? $1 {c} \\:d" cascade')


@pytest.mark.parametrize("moment", ["infinity", "-infinity", "12026-11-23 12:00:00+00"])
def test_a_run_time_beyond_python_is_the_last_or_first_time(moment: str, postgres_url: str) -> None:
    app = App(postgres_url)
    again = NewJob(task="t", key="k", key_mode=KeyMode.UNSAFE_DEDUPE)
    with of_an_engine(postgres_url) as session:
        session.execute(
            text("select stowhand.add_job('t', job_key := 'k', run_at := cast(:at as timestamptz))"), {"at": moment}
        )
        result = app.enqueue_in(session, again)
        plainly = app.enqueue_in(session.connection().connection.driver_connection, again)  # type: ignore[arg-type]
        assert isinstance(plainly, JobHandle)
        assert (result.run_at, result.id) == (plainly.run_at, plainly.id)


def beginning_by_itself(url: str, **options: Any) -> Engine:
    """As SQLAlchemy's page on SQLite advises where savepoints are used."""
    engine = create_engine(url, **options)

    @event.listens_for(engine, "connect")
    def stop_beginning(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def test_savepoints_of_a_session_on_sqlite_work_if_it_begins_transactions_itself(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db")
    app.sync.install()
    with Session(beginning_by_itself(f"sqlite:///{tmp_path}/shop.db")) as session:
        inner = session.begin_nested()
        app.enqueue_in(session, JOB)
        inner.rollback()
        with session.begin_nested():
            kept = app.enqueue_in(session, NewJob(task="kept"))
        assert app.sync.list() == []
        session.commit()
        session.bind.dispose()  # type: ignore[union-attr]
    assert [job.id for job in app.sync.list()] == [kept.id]
    app.sync.close()


def test_the_factories_of_aiosqlite_stay_unchanged(tmp_path: Path, run: Run) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db")
    app.sync.install()

    async def story() -> None:
        async with aiosqlite.connect(tmp_path / "shop.db", isolation_level=None) as connection:
            connection.row_factory, connection.text_factory = aiosqlite.Row, bytes
            check(await app.enqueue_in(connection, JOB))
            assert (connection.row_factory, connection.text_factory) == (aiosqlite.Row, bytes)
            await connection.commit()

    run(story())
    assert len(app.sync.list()) == 1
    app.sync.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit=False since Python 3.12")
def test_a_connection_that_is_always_in_a_transaction_works(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db")
    app.sync.install()
    options: dict[str, Any] = {"autocommit": False}
    with closing(sqlite3.connect(tmp_path / "shop.db", **options)) as connection:
        check(app.enqueue_in(connection, JOB))
        connection.rollback()
        check(app.enqueue_in(connection, JOB))
        connection.commit()
    with of_an_engine(f"sqlite:///{tmp_path}/shop.db", "sqlite", connect_args=options) as session:
        session.execute(text("select 1"))
        app.enqueue_in(session, NewJob(task="t"))
        session.commit()
    assert len(app.sync.list()) == 2
    app.sync.close()


def check(job: JobHandle[Any]) -> JobHandle[Any]:
    assert (job.task, job.payload_text, job.flags, job.key) == (JOB.task, JOB.payload, JOB.flags, "k")
    assert (job.run_at - job.created_at).total_seconds() == 1
    offset = job.run_at.utcoffset()
    assert offset is not None
    assert offset.total_seconds() == 0
    return job
