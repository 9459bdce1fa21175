"""The seam ``Schema``: the file and its tables, made, looked at and taken away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from stowhand.jobs.job import MAX_ATTEMPTS
from stowhand.protocols.queue_store import SchemaStatus
from stowhand.protocols.validation import refuse_default_attempts
from stowhand.stores.database import sqlite_file as file
from stowhand.stores.database.sqlite_trouble import find_damage
from stowhand.stores.sqlite.queue import schema
from stowhand.stores.sqlite.queue.threads import Threads


class Tables(Threads):
    """Work on the schema asks for none: only these connections are not checked first."""

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        """Make the file (only its owner may read it) and its tables, or what is missing of them."""
        schema.refuse_roles(roles)

        def install() -> SchemaStatus:
            file.create(self._path)
            with self._unchecked(lambda connection: schema.write_ahead(connection, self._path)) as connection:
                return connection.write(schema.install)

        return await self._on_thread(self._writer, install)

    async def status(self) -> SchemaStatus:
        """What is there; a file that does not exist has nothing installed."""

        def status() -> SchemaStatus:
            file.check_place(self._path)
            if not self._path.exists():
                return SchemaStatus(None, schema.VERSION)
            with self._unchecked() as connection:
                return connection.read(lambda raw, _: schema.status(raw))

        return await self._on_thread(self._reader, status)

    async def plan(self, *, roles: bool = False) -> str:
        """What ``install`` would run."""
        schema.refuse_roles(roles)
        return schema.plan(await self.status())

    async def foreign_changes(self) -> Sequence[str]:
        """None: the tables' names begin with ours, and there are no functions."""
        return []

    async def default_max_attempts(self) -> int:
        """As the package has it."""
        return MAX_ATTEMPTS

    async def set_default_max_attempts(self, attempts: int) -> NoReturn:
        """There is nobody for whom it would be kept: jobs come from this package alone."""
        refuse_default_attempts()

    async def uninstall(self) -> None:
        """Remove everything of ours; the file stays."""

        def uninstall() -> None:
            if self._path.exists():
                with self._unchecked() as connection:
                    connection.write(lambda raw, _: schema.uninstall(raw))

        await self._on_thread(self._writer, uninstall)

    async def check(self) -> Sequence[str]:
        """What SQLite finds wrong with the file; reads all of it. Empty: it is sound."""
        return await self._read(lambda connection, _: find_damage(connection))
