"""The schema's installation, in one transaction.

migrations/   tables, types, indexes, views: numbered, forward only, each applied once
functions/    the protocol: always the newest text, created anew by every installation. One whose arguments or result
              change is dropped by a migration first
roles.sql     the four roles, for those who ask for them; what they may do stands in functions/grants.sql
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from stowhand.database.link import Line, Row, rows
from stowhand.database.statements import fill, quote_identifier
from stowhand.errors import SchemaError, SchemaMissing, SchemaOutdated, SchemaTooNew
from stowhand.queue_store import SchemaStatus
from stowhand.stores.postgres.home import Home

_FILE = re.compile(r"(\d{6})_\w+\.sql")
_HERE = files("stowhand.stores.postgres")
_BREAKING = "-- breaking"
_FUNCTIONS = (
    *("time", "enqueue", "queues", "claim", "idle", "settle", "leases", "inspect", "jobs", "administer", "cron"),
    *("flows", "operate", "maintain", "finish", "grants"),
)
"""In this order: SQL functions are checked when they are made."""


class Migration:
    """One numbered file."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.breaking = text.startswith(_BREAKING)
        """Older versions of this package cannot work with it."""


@cache
def newest_known() -> int:
    """The number of this version's last migration."""
    return max(int(match[1]) for file in (_HERE / "migrations").iterdir() if (match := _FILE.fullmatch(file.name)))


def too_new(home: Home, installed: int) -> SchemaTooNew:
    """What to say about a schema that a newer version has made its own."""
    return SchemaTooNew(
        f"schema {home.schema!r} is at {installed}, this version knows {newest_known()}: upgrade this program"
    )


def read_migrations(fillings: dict[str, str]) -> list[Migration]:
    """All of them, in order, with the schema's name filled in."""
    folder = _HERE / "migrations"
    found = [(match, file) for file in folder.iterdir() if (match := _FILE.fullmatch(file.name))]
    found.sort(key=lambda pair: pair[0][1])
    return [Migration(int(match[1]), fill(file.read_text("utf-8"), fillings)) for match, file in found]


def read_functions(fillings: dict[str, str]) -> list[str]:
    """The texts of all functions, with the schema's name filled in."""
    folder = _HERE / "functions"
    return [fill((folder / f"{name}.sql").read_text("utf-8"), fillings) for name in _FUNCTIONS]


class Installer:
    """Installs, compares and removes the schema."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._migrations = read_migrations(home.fillings)
        self._functions = read_functions(home.fillings)
        self._roles = fill((_HERE / "roles.sql").read_text("utf-8"), home.fillings)
        self._expected = newest_known()

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        """Whatever is missing. The lock comes first of all: concurrent ``create … if not exists`` do collide.

        ``roles``: make the four roles, and grant them what each may do. Raises SchemaTooNew.
        """
        with self._home.translated():
            async with self._home.pool.connection("schema") as connection, connection.transaction():
                await self._ask(connection, "lock_schema")
                for text in await self._script(connection, roles=roles, anyway=True):
                    await connection.execute(text.encode())
        return await self.status()

    async def status(self) -> SchemaStatus:
        """What is there."""
        with self._home.translated():
            async with self._home.pool.connection("schema") as connection:
                return self._judge(await self._applied(connection))

    async def plan(self, *, roles: bool = False) -> str:
        """The statements that ``install`` would run, as a script for somebody who may run them."""
        with self._home.translated():
            async with self._home.pool.connection("schema") as connection:
                texts = await self._script(connection, roles=roles, anyway=False)
        if not texts:
            return ""
        lock = self._home.statements["lock_schema"].decode()
        return "\n".join(["begin;", f"{lock};", *texts, "commit;"])

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
            raise too_new(self._home, status.installed)

    def _judge(self, applied: list[Row] | None) -> SchemaStatus:
        if not applied:
            return SchemaStatus(installed=None, expected=self._expected)
        breaking = any(number > self._expected and breaks for number, breaks in applied)
        return SchemaStatus(installed=applied[-1][0], expected=self._expected, breaking=breaking)

    async def _script(self, connection: Line, *, roles: bool, anyway: bool) -> list[str]:
        """What to run here and now, in order. ``anyway``: the functions too, if nothing is missing."""
        applied = await self._applied(connection)
        newest = applied[-1][0] if applied else 0
        if newest > self._expected:
            if roles:
                raise SchemaTooNew(f"the schema is at {newest}: let the version that knows it grant its roles")
            return []
        missing = [migration for migration in self._migrations if migration.number > newest]
        if not (missing or roles or anyway):
            return []
        texts = [self._roles] if roles else []
        texts += await self._frame(connection, applied)
        if roles:
            texts.append(self._home.statements["let_roles_in"].decode() + ";\n")
        texts += await self._act_as_owner(connection)
        for migration in missing:
            texts += [migration.text, self._note(migration)]
        return texts + self._functions

    def _note(self, migration: Migration) -> str:
        values = f"({migration.number}, {str(migration.breaking).lower()})"
        return f"insert into {self._home.fillings['schema']}.migrations (id, breaking) values {values};\n"

    async def _act_as_owner(self, connection: Line) -> list[str]:
        """An administrator's upgrade must not leave functions that run with an administrator's rights."""
        owners = await self._ask(connection, "owner_to_be")
        return [f"set local role {quote_identifier(owner)};\n" for (owner,) in owners]

    async def _applied(self, connection: Line) -> list[Row] | None:
        """Numbers and whether they break; ``None`` when even the table of them is absent."""
        if not await self._says(connection, "has_migrations"):
            return None
        if not await self._says(connection, "has_live"):
            # graphile-worker keeps its own table of this name; its numbers must not be taken for ours.
            raise SchemaError(
                f"schema {self._home.schema!r} at {self._home.address} holds tables of something else:"
                " give another name (--schema)"
            )
        return await self._ask(connection, "migrations")

    async def _frame(self, connection: Line, applied: list[Row] | None) -> list[str]:
        """What must be there before the first migration. An existing schema is used: creating it may be forbidden."""
        if applied is not None:
            return []
        there = await self._says(connection, "has_schema")
        names = ["create_migrations"] if there else ["create_schema", "create_migrations"]
        return [self._home.statements[name].decode() + ";\n" for name in names]

    async def _says(self, connection: Line, name: str) -> bool:
        ((answer,),) = await self._ask(connection, name)
        return bool(answer)

    async def _ask(self, connection: Line, name: str, *values: object) -> list[Row]:
        return await rows(connection, self._home.statements[name], values)
