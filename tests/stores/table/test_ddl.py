"""The SQL of a table runs as printed, and makes what a worker can serve."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import psycopg
import pytest

from stowhand.errors import ConfigurationError
from stowhand.stores.table.ddl import KEY_TYPES, DdlOptions, full_ddl
from stowhand.stores.table.names import read_shape
from tests.support.databases import Databases

ODD = {"state": '"it\'s $stowhand$ %s {x} \\"', "id": '"Key"', "lease_token": "token"}


@pytest.fixture(scope="module")
def database(postgres_server: Databases) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    """Nothing of a test stays."""
    with psycopg.connect(database) as connection:
        yield connection
        connection.rollback()


@pytest.mark.parametrize("key", KEY_TYPES)
@pytest.mark.parametrize("name", ["jobs", 'app."Jobs ""of"" %s \\ $stowhand$"', '"' + "ä" * 30 + '"'])
def test_what_is_printed_for_postgres_runs_once_and_again(connection: psycopg.Connection, key: str, name: str) -> None:
    connection.execute("create schema app")
    columns = ODD if name.startswith("app") else {}
    shape = read_shape(name, "seen s", columns)
    for again in (False, True):
        plan = DdlOptions(shape=shape, key=key, channel="it's \\ $stowhand$", if_not_exists=again)
        connection.execute(full_ddl(plan).encode())
    table, state = shape.table.quoted, shape["state"]
    instance = "('k')" if key == "text" else "(default)"
    connection.execute(f"insert into {table} ({shape['id']}) values {instance}".encode())
    assert connection.execute(f"select {state} from seen".encode()).fetchall() == [("queued",)]


@pytest.mark.parametrize("key", KEY_TYPES)
def test_what_is_printed_for_sqlite_runs_once_and_again(key: str) -> None:
    connection = sqlite3.connect(":memory:")
    shape = read_shape('"Jobs ""of"" x"', "seen", ODD, folds=False)
    for again in (False, True):
        connection.executescript(full_ddl(DdlOptions(shape=shape, dialect="sqlite", key=key, if_not_exists=again)))
    connection.execute("""insert into "Jobs ""of"" x" ("Key") values (1)""")
    assert connection.execute(f"select {shape['state']} from seen").fetchall() == [("queued",)]
    connection.close()


def test_a_view_that_is_there_is_left_as_it_is(connection: psycopg.Connection) -> None:
    connection.execute("create view seen as select 1 as id, 2 as joined")
    plan = DdlOptions(shape=read_shape("jobs", "seen", {}), if_not_exists=True)
    connection.execute(full_ddl(plan).encode())
    assert connection.execute("select joined from seen").fetchall() == [(2,)]


def test_the_trigger_notifies_once_and_only_of_what_became_claimable(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as one, psycopg.connect(database, autocommit=True) as ear:
        one.execute(full_ddl(DdlOptions(shape=read_shape("heard", None, {}), channel="Heard")).encode())
        ear.execute('listen "Heard"')
        for statement, times in {
            "insert into heard (state) select 'queued' from generate_series(1, 100)": 1,
            "insert into heard (state) values ('completed')": 0,
            "begin; insert into heard default values; insert into heard default values; commit": 1,
            "update heard set state = 'processing' where id < 10": 0,
            "update heard set failure_message = 'x' where state = 'queued'": 0,
            "update heard set state = 'errored' where id < 5": 0,
            "update heard set state = 'queued' where id < 10": 1,
            "update heard set process_after = now() where id = 1": 1,
            "delete from heard": 0,
        }.items():
            one.execute(statement.encode())
            one.execute("notify \"Heard\", 'end'")
            heard = []
            for notice in ear.notifies(timeout=10):
                if notice.payload == "end":
                    break
                heard.append(notice.channel)
            assert heard == ["Heard"] * times, statement


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dialect": "sqlite", "channel": "c"}, "SQLite has no NOTIFY"),
        ({"channel": ""}, "1 to 63 bytes"),
        ({"channel": "ä" * 32}, "1 to 63 bytes"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        DdlOptions(shape=read_shape("jobs", None, {}), **given)  # type: ignore[arg-type]
