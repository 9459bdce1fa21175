"""What the benchmarks count is what the server did."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from benchmarks.counters import Counters, Counts, Reading, quiet_server
from tests.support.databases import Databases
from tests.support.servers import PostgresServer


def test_the_share_of_a_job_is_counted_between_checkpoints() -> None:
    before = Reading(Counts(wal=100, commits=1), Counts(wal=900, commits=1, xids=10, server=1.0))
    after = Reading(Counts(wal=2900, commits=41, xids=30, multixacts=2, dead=60, server=1.5), Counts(wal=5000))
    assert dict((after - before).a_job(20)) == {
        "WAL, bytes a job": 100,
        "commits a job": 2,
        "transaction ids a job": 1,
        "MultiXacts a job": 0.1,
        "dead row versions a job": 3,
        "processor time of the server, us a job": 25_000,
    }


def test_the_parts_of_a_jobs_life_add_up() -> None:
    assert Counts(1, 2, 3, 4, 5, 6.0) + Counts(10, 20, 30, 40, 50, 60.0) == Counts(11, 22, 33, 44, 55, 66.0)


@pytest.fixture
def quiet_url(postgres_server: Databases) -> Iterator[str]:
    """A database to which nobody is connected; to those that tests are lent again, one connection stays open."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


def test_commits_row_versions_and_ids_are_counted_without_our_own(postgres_server: Databases, quiet_url: str) -> None:
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("DATABASE_URL names a server that others use")
    counters = Counters(postgres_server.admin_url, quiet_url, postgres_server.pid)
    with quiet_server(postgres_server.admin_url):
        before = counters.read()
        again = counters.read() - before
        assert (again.commits, again.dead) == (0, 0)
        with psycopg.connect(quiet_url, autocommit=True) as connection:
            connection.execute("create table numbers (n int)")
            connection.execute("insert into numbers select generate_series(1, 100)")
            connection.execute("update numbers set n = 0 where n > 60")
            connection.execute("delete from numbers where n = 0")
        counted = counters.read() - before
    connected = 1
    assert counted.commits == 4 + connected
    assert counted.dead >= 80  # and some of the catalog
    # Of the whole server, where a vacuum may be under way.
    assert counted.xids >= 4
    assert counted.wal > 100 * 60
    assert counted.server > 0
