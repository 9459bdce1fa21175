"""``enqueue_in`` with Django's connections: whose transaction it is, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import InternalError, ProgrammingError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from stowhand.app.app import App
from stowhand.django.database import Database
from stowhand.errors import ConfigurationError
from stowhand.jobs.job import NewJob
from stowhand.protocols.queue_store import JobFilter
from stowhand.protocols.store import StoreOptions
from stowhand.testing import MemoryStore

GIVEN = "100 % ü ? :now %(x)s"
KINDS = ("sqlite", "postgres")


@pytest.fixture
def alias(request: pytest.FixtureRequest, site: None) -> str:
    kind: str = request.param
    return {"sqlite": "default"}.get(kind, kind)


@pytest.fixture
def app(alias: str) -> Iterator[App]:
    app = App(Database(alias, StoreOptions()).url)
    app.sync.counts()  # it is opened, which writes
    yield app
    for one in app.sync.list(JobFilter(task="tell")):
        app.sync.cancel(one.id)
    app.sync.close()


def declared(app: App) -> Any:
    @app.task(unique="arguments")
    async def tell(to: str) -> None: ...

    return tell


@pytest.mark.parametrize("alias", KINDS, indirect=True)
def test_atomic_commits_the_job(alias: str, app: App) -> None:
    tell = declared(app)
    with transaction.atomic(using=alias), CaptureQueriesContext(connections[alias]) as queries:
        first = tell.enqueue_in(connections[alias], GIVEN)
        assert tell.enqueue_in(connections[alias], GIVEN).id == first.id
        assert first.payload == {"to": GIVEN}
        assert app.sync.get(first.id) is None
        try:
            with transaction.atomic(using=alias):
                tell.enqueue_in(connections[alias], "rolled back alone")
                raise ZeroDivisionError
        except ZeroDivisionError:
            kept = tell.enqueue_in(connections[alias], "kept")
    if alias != "default":  # on SQLite the statements run on the driver's connection
        assert any("stowhand" in one["sql"] for one in queries.captured_queries)
    with transaction.atomic(using=alias):
        tell.enqueue_in(connections[alias], "rolled back")
        transaction.set_rollback(True, using=alias)
    assert {one.id for one in app.sync.list(JobFilter(task="tell"))} == {first.id, kept.id}


@pytest.mark.parametrize("alias", KINDS, indirect=True)
def test_outside_of_atomic_an_enqueue_needs_manual_commits(alias: str, app: App) -> None:
    tell = declared(app)
    with pytest.raises(ConfigurationError, match=rf"transaction\.atomic\(using='{alias}'\)"):
        tell.enqueue_in(connections[alias], GIVEN)
    connections[alias].set_autocommit(False)
    try:
        job = tell.enqueue_in(connections[alias], GIVEN)
        connections[alias].commit()
    finally:
        connections[alias].set_autocommit(True)
    assert app.sync.get(job.id) is not None


@pytest.mark.parametrize("alias", KINDS, indirect=True)
def test_a_connection_to_another_database_is_refused(alias: str, app: App) -> None:
    other = "postgres" if alias == "default" else "default"
    for one in (other, "memory"):
        with (
            transaction.atomic(using=one),
            pytest.raises(ConfigurationError, match=r"enqueue_in needs|the queue is|database in memory"),
        ):
            app.enqueue_in(connections[one], NewJob(task="tell"))


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_the_proxy_of_the_default_connection_is_recognized(alias: str, app: App) -> None:
    with transaction.atomic():
        job = app.enqueue_in(connection, NewJob(task="tell"))
    assert app.sync.get(job.id) is not None


@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
def test_a_failed_transaction_raises_djangos_error(alias: str, app: App) -> None:
    def goes_on() -> None:
        with transaction.atomic(using=alias):
            with suppress(ProgrammingError), connections[alias].cursor() as cursor:
                cursor.execute("select * from nonesuch")
            app.enqueue_in(connections[alias], NewJob(task="tell"))

    with pytest.raises(InternalError, match="current transaction is aborted"):
        goes_on()


@pytest.mark.usefixtures("site")
def test_in_a_test_in_memory_the_job_exists_after_the_commit() -> None:
    app = App(store=MemoryStore(supports_enqueue_in=True))
    tell = declared(app)
    with transaction.atomic():
        tell.enqueue_in(connection, "a")
        with suppress(ZeroDivisionError), transaction.atomic():
            tell.enqueue_in(connection, "rolled back alone")
            raise ZeroDivisionError
        assert app.sync.list() == []
    assert [job.payload["to"] for job in app.sync.list()] == ["a"]
    with pytest.raises(ConfigurationError, match="in no transaction"):
        tell.enqueue_in(connection, "b")
    app.sync.close()
