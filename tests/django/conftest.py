"""A project of Django's with a file of SQLite, a PostgreSQL and a database in memory; one of each per run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.databases import Databases
from tests.support.other_python import is_there

if TYPE_CHECKING:
    from stowhand.django import StowhandBackend

KINDS = ("sqlite", "postgres", "memory")
ALIASES = {"sqlite": "default"}


@pytest.fixture(scope="session")
def site(postgres_server: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Django is set up, and all databases are migrated."""
    import django

    with postgres_server.lend(None) as url:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "tests.django.site.settings",
            "SITE_SQLITE": str(tmp_path_factory.mktemp("site") / "site.sqlite3"),
            "SITE_POSTGRES": parts.path.removeprefix("/"),
            "SITE_POSTGRES_HOST": query["host"][0] if "host" in query else parts.hostname or "",
            "SITE_POSTGRES_PORT": query["port"][0] if "port" in query else str(parts.port or 5432),
        }
        os.environ.pop("DATABASE_URL", None)  # else the command says that it does not use it
        django.setup()
        from django.core.management import call_command
        from django.db import connections

        for alias in connections:
            call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
        yield
        connections.close_all()


@pytest.fixture(params=KINDS)
def alias(request: pytest.FixtureRequest, site: None) -> str:
    """Of a database and of its backend."""
    kind: str = request.param
    return ALIASES.get(kind, kind)


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest, site: None) -> Any:
    """On which a worker can work; nothing is due there."""
    from django.tasks import task_backends

    result = task_backends["default" if request.param == "sqlite" else "postgres"]
    drain(result)
    return result


@pytest.fixture
def shop(site: None) -> Any:
    """The module of tasks."""
    from tests.django.site.shop import tasks

    return tasks


def drain(backend: StowhandBackend, queues: Sequence[str] | None = None) -> None:
    """A worker in this process, until nothing is due."""
    from stowhand.django.project import app_of

    async def work() -> None:
        async with (app := app_of(backend)):
            await app.worker(once=True, name="here", queues=queues).run()

    asyncio.run(work())


if not is_there():
    collect_ignore_glob = ["site/*"]
