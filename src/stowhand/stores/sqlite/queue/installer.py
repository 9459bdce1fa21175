"""Installation, checks and removal of the tables, on connections that do not require them."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.jobs.job import DEFAULT_MAX_ATTEMPTS
from stowhand.protocols.queue_store import SchemaStatus
from stowhand.stores.database.migrations import Migrations
from stowhand.stores.database.sqlite_errors import find_damage
from stowhand.stores.sqlite.queue import schema
from stowhand.stores.sqlite.queue.connections import Connections


class Installer:
    """Installer of one database, which may also hold an application's tables."""

    def __init__(self, connections: Connections, migrations: Migrations = schema.MIGRATIONS) -> None:
        self._connections = connections
        self._migrations = migrations
        self._place = f"{connections.path}: the schema"

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        """Create the database and its missing tables."""
        schema.refuse_roles(roles)

        def install() -> SchemaStatus:
            self._connections.create()
            with self._connections.unchecked(writes=True) as connection:
                return connection.write(lambda tx: schema.install(tx, self._place, self._migrations))

        return await self._connections.on_writer(install)

    async def status(self) -> SchemaStatus:
        """Return the status of the installed schema; nothing is installed if the database does not exist."""

        def status() -> SchemaStatus:
            if not self._connections.exists():
                return SchemaStatus(None, self._migrations.newest)
            with self._connections.unchecked() as connection:
                return connection.read(lambda tx: schema.status(tx.raw, self._place, self._migrations))

        return await self._connections.on_reader(status)

    async def plan(self, *, roles: bool = False) -> str:
        """Return the statements of ``install``."""
        schema.refuse_roles(roles)
        status = await self.status()
        self._migrations.refuse_newer(status, self._place)
        missing = self._migrations.missing(status)
        return "\n\n".join(statement for migration in missing for statement in schema.statements(migration.text))

    async def foreign_changes(self) -> Sequence[str]:
        """Return no differences: only this package changes its tables, and SQLite has no stored functions."""
        return []

    async def default_max_attempts(self) -> int:
        """Return the package's default: a file stores no default of its own."""
        return DEFAULT_MAX_ATTEMPTS

    async def uninstall(self) -> None:
        """Remove our tables and views; the file stays."""

        def uninstall() -> None:
            if self._connections.exists():
                with self._connections.unchecked() as connection:
                    connection.write(lambda tx: schema.uninstall(tx.raw))

        await self._connections.on_writer(uninstall)

    async def find_damage(self) -> Sequence[str]:
        """Read the whole file. Return the damage that SQLite reports; empty for a sound file."""
        return await self._connections.read(lambda tx: find_damage(tx.raw))
