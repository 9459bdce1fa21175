"""The tables by `manage.py migrate`, beside `stowhand migrate`, and what is refused."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.db.migrations.exceptions import IrreversibleError
from django.tasks import task_backends
from django.test import override_settings

from stowhand.django.project import app_of
from stowhand.django.tables import databases_of
from stowhand.errors import ConfigurationError, SchemaError, SchemaMissing
from tests.support.databases import Databases

Kinds = ["default", "postgres"]


@pytest.fixture(params=Kinds)
def empty(request: pytest.FixtureRequest, site: None, tmp_path: Path, postgres_server: Databases) -> Iterator[Any]:
    """A backend whose database holds nothing."""
    alias = request.param
    connection = connections[alias]
    connection.close()
    before = dict(connection.settings_dict)
    with postgres_server.lend(None) as url:
        name = str(tmp_path / "new.sqlite3") if alias == "default" else url.partition("?")[0].rpartition("/")[2]
        connection.settings_dict["NAME"] = name
        try:
            yield task_backends[alias]
        finally:
            connection.close()
            connection.settings_dict.update(before)


def migrate(backend: Any, *to: str) -> None:
    call_command("migrate", "stowhand", *to, database=backend.database.alias, verbosity=0)


def install(backend: Any) -> None:
    """As `stowhand migrate` does."""

    async def do() -> None:
        async with app_of(backend) as app:
            await (await app.open()).schema.install()

    async def open_and_install() -> None:
        app = app_of(backend)
        await app.open(install=True)
        await app.close()

    asyncio.run(open_and_install())
    asyncio.run(do())


def status(backend: Any) -> tuple[int | None, int]:
    async def ask() -> Any:
        store = app_of(backend).any_store()
        try:
            return await store.schema.status()
        finally:
            await store.close()

    result = asyncio.run(ask())
    return result.installed, result.expected


def enqueue(backend: Any) -> str:
    from tests.django.site.shop import tasks

    return str(tasks.add.using(backend=backend.alias).enqueue(1).id)


def test_a_migration_installs_the_newest_schema(empty: Any) -> None:
    with pytest.raises(SchemaMissing, match=r"manage.py migrate"):
        enqueue(empty)
    connections[empty.database.alias].close()
    migrate(empty)
    installed, expected = status(empty)
    assert installed == expected
    assert empty.get_result(enqueue(empty)).args == [1]


def test_stowhand_migrate_runs_before_or_after_the_migration(empty: Any) -> None:
    install(empty)
    kept = enqueue(empty)
    migrate(empty)
    assert empty.get_result(kept).args == [1]
    install(empty)
    assert empty.get_result(kept).args == [1]
    installed, expected = status(empty)
    assert installed == expected


def test_the_migration_is_not_reversed_while_jobs_exist(empty: Any) -> None:
    migrate(empty)
    enqueue(empty)
    with pytest.raises(IrreversibleError, match="1 jobs are not finished"):
        migrate(empty, "zero")
    assert status(empty)[0] is not None


def test_the_reversed_migration_leaves_nothing(empty: Any) -> None:
    migrate(empty)
    migrate(empty, "zero")
    connections[empty.database.alias].close()
    assert status(empty)[0] is None


def test_tables_of_another_baseline_are_refused_until_they_are_removed(empty: Any) -> None:
    migrate(empty)
    ledger = "stowhand_schema" if empty.database.alias == "default" else "stowhand.applied_migrations"
    with connections[empty.database.alias].cursor() as cursor:
        cursor.execute(f"UPDATE {ledger} SET fingerprint = 'another'")
    connections[empty.database.alias].close()
    with pytest.raises(SchemaError, match="before the first release"):
        install(empty)
    migrate(empty, "zero")
    migrate(empty)
    installed, expected = status(empty)
    assert installed == expected


@pytest.fixture
def apps(empty: Any) -> Iterator[str]:
    """The module of Apps, imported anew, because an App keeps a store that it has opened."""
    name = "tests.django.site.jobs"
    sys.modules.pop(name, None)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("tasks", [{}, None])
def test_the_app_of_the_settings_gets_tables_in_its_schema(empty: Any, apps: str, tasks: dict[str, Any] | None) -> None:
    """Besides those of a backend, if there is one."""
    alias = empty.database.alias
    settings = {"STOWHAND_APP": f"{apps}:on_{alias}"} | ({} if tasks is None else {"TASKS": tasks})
    with override_settings(**settings):
        (*_, database) = databases = databases_of(alias)
        assert len(databases) == (1 if tasks == {} or alias == "default" else 2)
        migrate(empty)
        with transaction.atomic(using=alias):
            job = sys.modules[apps].tasks[alias].enqueue_in(connections[alias])
            transaction.set_rollback(True, using=alias)
        assert job.id == 1
        assert database.jobs.count_unfinished() == 0
        migrate(empty, "zero")
        with pytest.raises(SchemaMissing, match=r"stowhand_jobs|jobs_of_app"), database.explained():
            database.jobs.count_unfinished()


@pytest.mark.parametrize("app", [None, "on_a_file", "in_memory"])
def test_an_app_with_another_store_gets_no_tables(empty: Any, apps: str, app: str | None) -> None:
    with override_settings(TASKS={}, STOWHAND_APP=app and f"{apps}:{app}"):
        assert databases_of(empty.database.alias) == []
        migrate(empty)
        migrate(empty, "zero")


def test_an_app_that_cannot_be_imported_fails_the_migration(empty: Any) -> None:
    """Otherwise the migration would be recorded, and a corrected setting would install nothing."""
    with (
        override_settings(STOWHAND_APP="tests.django.site.jobz:app"),
        pytest.raises(ConfigurationError, match=r"STOWHAND_APP: .*no module named 'tests\.django\.site\.jobz'.*jobs"),
    ):
        migrate(empty)
    migrate(empty)
    assert enqueue(empty) == "1"


def test_makemigrations_finds_nothing_to_do(site: None) -> None:
    call_command("makemigrations", "stowhand", check=True, dry_run=True, verbosity=0)


def test_a_database_without_jobs_gets_no_tables(site: None, tmp_path: Path) -> None:
    connection = connections["default"]
    connection.close()
    before = dict(connection.settings_dict)
    connection.settings_dict["NAME"] = str(tmp_path / "other.sqlite3")
    backend = {"BACKEND": "stowhand.django.StowhandBackend", "OPTIONS": {"database": "postgres"}}
    try:
        with override_settings(TASKS={"default": backend}):
            call_command("migrate", "stowhand", verbosity=0)
        with connection.cursor() as cursor:
            assert "stowhand_jobs" not in connection.introspection.table_names(cursor)
    finally:
        connection.close()
        connection.settings_dict.update(before)


@pytest.mark.parametrize("alias", Kinds)
@pytest.mark.parametrize("all_rows", [False, True])
def test_dumpdata_leaves_jobs_out(site: None, alias: str, all_rows: bool) -> None:
    out = io.StringIO()
    call_command("dumpdata", "stowhand", "shop", database=alias, use_base_manager=all_rows, stdout=out)
    assert "stowhand" not in out.getvalue()
