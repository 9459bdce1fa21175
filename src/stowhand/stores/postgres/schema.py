"""The schema's installation: numbered files, forward only, each applied once, all in one transaction."""

from __future__ import annotations

import re
from importlib.resources import files

from stowhand.database.link import Connection, Row, rows
from stowhand.database.statements import fill
from stowhand.errors import SchemaMissing, SchemaOutdated, SchemaTooNew
from stowhand.store import SchemaStatus
from stowhand.stores.postgres.home import Home

_FILE = re.compile(r"(\d{6})_\w+\.sql")
_BREAKING = "-- breaking"


class Migration:
    """One numbered file."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.breaking = text.startswith(_BREAKING)
        """Older versions of this package cannot work with it."""


def read_migrations(fillings: dict[str, str]) -> list[Migration]:
    """All of them, in order, with the schema's name filled in."""
    folder = files("stowhand.stores.postgres") / "migrations"
    found = [(match, file) for file in folder.iterdir() if (match := _FILE.fullmatch(file.name))]
    found.sort(key=lambda pair: pair[0][1])
    return [Migration(int(match[1]), fill(file.read_text("utf-8"), fillings)) for match, file in found]


class Installer:
    """Installs, compares and removes the schema."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._migrations = read_migrations(home.fillings)
        self._expected = self._migrations[-1].number

    async def install(self) -> SchemaStatus:
        """Whatever is missing. The lock comes first of all: concurrent ``create … if not exists`` do collide."""
        with self._home.translated():
            async with self._home.pool.connection("schema") as connection, connection.transaction():
                await self._ask(connection, "lock_schema")
                applied = await self._applied(connection)
                for statement in await self._frame(connection, applied):
                    await rows(connection, self._home.statements[statement])
                for migration in self._missing(applied):
                    await connection.execute(migration.text.encode())
                    await self._ask(connection, "note_migration", migration.number, migration.breaking)
        return await self.status()

    async def status(self) -> SchemaStatus:
        """What is there."""
        with self._home.translated():
            async with self._home.pool.connection("schema") as connection:
                return self._judge(await self._applied(connection))

    async def plan(self) -> str:
        """The statements that ``install`` would run."""
        with self._home.translated():
            async with self._home.pool.connection("schema") as connection:
                applied = await self._applied(connection)
                texts = [
                    self._home.statements[name].decode() + ";\n" for name in await self._frame(connection, applied)
                ]
        return "\n".join(texts + [migration.text for migration in self._missing(applied)])

    async def uninstall(self) -> None:
        """Everything of ours is in the schema."""
        with self._home.translated():
            async with self._home.pool.connection("schema") as connection, connection.transaction():
                await self._ask(connection, "lock_schema")
                await self._ask(connection, "drop_schema")

    async def check(self) -> None:
        """Raises SchemaError when this version cannot work with what is there."""
        status = await self.status()
        name = self._home.schema
        if status.installed is None:
            raise SchemaMissing(
                f"nothing is installed in schema {name!r} at {self._home.address}: run `stowhand migrate`, or start a "
                "worker, which installs it"
            )
        if status.installed < status.expected:
            raise SchemaOutdated(
                f"schema {name!r} is at {status.installed}, this version needs {status.expected}: "
                "run `stowhand migrate`"
            )
        if status.breaking:
            raise SchemaTooNew(
                f"schema {name!r} is at {status.installed}, this version knows {status.expected}: upgrade this program"
            )

    def _judge(self, applied: list[Row] | None) -> SchemaStatus:
        if not applied:
            return SchemaStatus(installed=None, expected=self._expected)
        breaking = any(number > self._expected and breaks for number, breaks in applied)
        return SchemaStatus(installed=applied[-1][0], expected=self._expected, breaking=breaking)

    def _missing(self, applied: list[Row] | None) -> list[Migration]:
        newest = applied[-1][0] if applied else 0
        return [migration for migration in self._migrations if migration.number > newest]

    async def _applied(self, connection: Connection) -> list[Row] | None:
        """Numbers and whether they break; ``None`` when even the table of them is absent."""
        if not await self._says(connection, "has_migrations"):
            return None
        return await self._ask(connection, "migrations")

    async def _frame(self, connection: Connection, applied: list[Row] | None) -> list[str]:
        """What must be there before the first migration. An existing schema is used: creating it may be forbidden."""
        if applied is not None:
            return []
        there = await self._says(connection, "has_schema")
        return ["create_migrations"] if there else ["create_schema", "create_migrations"]

    async def _says(self, connection: Connection, name: str) -> bool:
        ((answer,),) = await self._ask(connection, name)
        return bool(answer)

    async def _ask(self, connection: Connection, name: str, *values: object) -> list[Row]:
        return await rows(connection, self._home.statements[name], values)
