"""A made-up migration after those of the package: what installs it, and what knows it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stowhand.protocols.queue_store import Schema
from stowhand.protocols.store import StoreOptions
from stowhand.stores.database.migrations import Migrations
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.function_texts import MIGRATIONS as POSTGRES
from stowhand.stores.postgres.queue.installer import Installer as PostgresInstaller
from stowhand.stores.sqlite.queue import schema as sqlite_schema
from stowhand.stores.sqlite.queue.connections import FileConnections
from stowhand.stores.sqlite.queue.installer import Installer as SqliteInstaller
from tests.support.sources import PACKAGE

NUMBER = 101


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


def one_more(url: str, folder: Path, text: str) -> Migrations:
    """The package's migrations for the store at ``url``, and one of this text; {live} is its table of jobs."""
    kind, live = ("sqlite", "stowhand_jobs") if is_sqlite(url) else ("postgres", "{schema}.live")
    shutil.copytree(PACKAGE / "stores" / kind / "queue" / "migrations", folder, dirs_exist_ok=True)
    (folder / f"{NUMBER:06}_made_up.sql").write_text(text.replace("{live}", live))
    return Migrations(folder)


@asynccontextmanager
async def schema_of(url: str, migrations: Migrations | None = None) -> AsyncIterator[Schema]:
    """The schema of the store at ``url``, for a program that knows these migrations."""
    if is_sqlite(url):
        connections = FileConnections(Path(url.removeprefix("sqlite:///")), StoreOptions(), lambda *_: None)
        yield SqliteInstaller(connections, migrations or sqlite_schema.MIGRATIONS)
        await connections.close()
    else:
        context = PostgresContext(url, StoreOptions())
        yield PostgresInstaller(context, migrations=migrations or POSTGRES)
        await context.pool.close()
