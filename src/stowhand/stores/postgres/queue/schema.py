"""The schema's installation, in one transaction.

migrations/   tables, types, indexes, views: numbered, forward only, each applied once
functions/    the protocol: always the newest text, created anew by every installation. One whose arguments or result
              change is dropped by a migration first
numbers.sql   which migrations have been applied
roles.sql     the four roles, made where asked for; functions/grants.sql says what they may do
settings      what is stored in the schema and filled into the functions' texts

What other programs have changed since: comparing.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from stowhand.errors import ConfigurationError, SchemaError, SchemaMissing, SchemaOutdated, SchemaTooNew
from stowhand.jobs import limits
from stowhand.jobs.job import MAX_ATTEMPTS
from stowhand.protocols.queue_store import SchemaStatus
from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.database.statements import quote_identifier, quote_text
from stowhand.stores.postgres.queue.comparing import altered_functions, altered_relations
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.texts import (
    Migration,
    digest,
    newest_known,
    read_functions,
    read_migrations,
    read_text,
    sources,
)

Step = Callable[[Session], Awaitable[None]]
"""What runs in a transaction of the installer's."""
NUMBERS_MOVED = SETTINGS_SINCE = KEYS_SINCE = 12
"""From this number on the numbers are in `applied_migrations`, and before in `migrations`; the schema has settings;
and the history's days have keys."""
LAWFUL_SINCE = 19
"""From this number on one CHECK holds the rules of `live`."""
FAILED_SINCE = 29
"""From this number on failed jobs have one index, by the time at which they failed."""


def too_new(context: PostgresContext, installed: int) -> SchemaTooNew:
    """The error for a schema that a newer version has upgraded."""
    return SchemaTooNew(
        f"schema {context.schema!r} is at {installed}, this version knows {newest_known()}: upgrade this program"
    )


class Installer:
    """Installs, compares and removes the schema."""

    def __init__(
        self, context: PostgresContext, connect: Callable[[], AbstractAsyncContextManager[Session]] | None = None
    ) -> None:
        """``connect``: gives the connection to work on; ``None``: one of the pool."""
        self._context = context
        self._connect = connect or (lambda: context.pool.connection("schema"))
        self._expected = newest_known()

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        """Installs what is missing. The lock comes first of all: concurrent ``create … if not exists`` do collide.

        ``roles``: make the four roles, and grant them what each may do. Raises SchemaTooNew.
        """
        async with self._connection() as connection:
            await self._prepare_keys(connection)
            await self._prepare_index(connection)
        async with self._locked() as connection:
            await _run(connection, await self._script(connection, roles=roles, anyway=True))
        async with self._locked() as connection:
            await _run(connection, await self._proof(connection, await self._applied(connection)))
        return await self.status()

    async def install_between(self, before: Step, after: Step, *, roles: bool = False) -> None:
        """Install in one transaction with what comes before and after. Of an absent or a current schema."""
        async with self._locked() as connection:
            await before(connection)
            await _run(connection, await self._script(connection, roles=roles, anyway=True))
            await connection.execute(b"reset role")
            await after(connection)
        async with self._locked() as connection:
            await _run(connection, await self._proof(connection, await self._applied(connection)))

    async def status(self) -> SchemaStatus:
        """What is there."""
        async with self._connection() as connection:
            return await self.status_on(connection)

    async def status_on(self, connection: Session) -> SchemaStatus:
        """What is there, as this connection sees it."""
        return self._judge(await self._applied(connection))

    async def plan(self, *, roles: bool = False) -> str:
        """The statements that ``install`` would run, as a script for a login that may run them."""
        altered = bool(await self.foreign_changes())
        async with self._connection() as connection:
            texts = await self._script(connection, roles=roles, anyway=altered)
            proof = await self._proof(connection, await self._applied(connection))
        if proof:
            proof = ["begin;", *proof, "commit;"]
        return "\n".join(["begin;", self._text("lock_schema"), *texts, "commit;", *proof] if texts else proof)

    async def find_damage(self) -> None:
        """``None``: the server looks after its files."""

    async def uninstall(self) -> None:
        """Everything of ours is in the schema."""
        async with self._locked() as connection:
            await self._ask(connection, "drop_schema")

    async def check(self) -> None:
        """Raises SchemaError when this version cannot work with what is there."""
        status = await self.status()
        name = self._context.schema
        if status.installed is None:
            raise SchemaMissing(
                f"nothing is installed in schema {name!r} at {self._context.address}: run `stowhand migrate`, or "
                "start a worker, which installs it"
            )
        if status.installed < status.expected:
            raise SchemaOutdated(
                f"schema {name!r} is at {status.installed}, this version needs {status.expected}: "
                "run `stowhand migrate`"
            )
        if status.breaking:
            raise too_new(self._context, status.installed)

    async def default_max_attempts(self) -> int:
        """Of a job that is enqueued without one. Raises SchemaError."""
        await self.check()
        async with self._connection() as connection:
            ((attempts,),) = await self._ask(connection, "settings")
            return int(attempts)

    async def set_default_max_attempts(self, attempts: int) -> None:
        """From now on, in functions and table. Raises SchemaError, InvalidJob for an impossible number."""
        limits.check_max_attempts(attempts)
        await self.check()
        table = f"alter table {self._context.fillings['schema']}.live"
        async with self._locked() as connection:
            await _run(connection, await self._act_as_owner(connection))
            await self._ask(connection, "be_patient")
            await self._ask(connection, "set_max_attempts", attempts)
            await _run(connection, [f"{table} alter column max_attempts set default {attempts:d}"])
            await _run(connection, await self._functions(connection, []))

    async def foreign_changes(self) -> list[str]:
        """What is not as this version makes it; empty for a schema of another number."""
        async with self._connection() as connection:
            applied = await self._applied(connection)
            if not applied or applied[-1][0] != self._expected:
                return []
            functions = await self._functions(connection, [])
            functions += [migration.text for migration in read_migrations(self._context.fillings)]
            return [
                *await altered_functions(connection, self._context, functions),
                *await altered_relations(connection, self._context),
            ]

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Session]:
        with self._context.translated():
            async with self._connect() as connection:
                yield connection

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[Session]:
        """In a transaction, beside no other that works on the schema."""
        async with self._connection() as connection, connection.transaction():
            await self._ask(connection, "lock_schema")
            yield connection

    def _judge(self, applied: list[Row] | None) -> SchemaStatus:
        if not applied:
            return SchemaStatus(installed=None, expected=self._expected)
        breaking = any(number > self._expected and breaks for number, breaks in applied)
        return SchemaStatus(installed=applied[-1][0], expected=self._expected, breaking=breaking)

    async def _script(self, connection: Session, *, roles: bool, anyway: bool) -> list[str]:
        """What to run here and now, in order. ``anyway``: the functions too, if nothing is missing."""
        applied = await self._applied(connection)
        newest = applied[-1][0] if applied else 0
        if self._judge(applied).breaking:
            raise too_new(self._context, newest)
        if newest > self._expected:
            if roles:
                raise SchemaTooNew(f"the schema is at {newest}: let the version that knows it grant its roles")
            return []
        missing = [migration for migration in read_migrations(self._context.fillings) if migration.number > newest]
        if not (missing or roles or anyway):
            return []
        texts = [read_text("roles.sql", self._context.fillings)] if roles else []
        # An existing schema is used: creating it may be forbidden.
        texts += [] if await self._is_true(connection, "has_schema") else [self._text("create_schema")]
        texts += [self._text("let_roles_in")] if roles else []
        texts += await self._act_as_owner(connection)
        if not applied or newest < NUMBERS_MOVED:
            texts += [read_text("numbers.sql", self._context.fillings)]
            texts += [self._text("move_applied")] if applied else []
        for migration in missing:
            texts += [migration.text, self._note(migration)]
        functions = await self._functions(connection, missing)
        return [*texts, *functions, self._drop_strays(functions)]

    async def _functions(self, connection: Session, missing: list[Migration]) -> list[str]:
        """Their texts, with the schema's own settings. Where these are not stored yet, they are the package's."""
        stored = not any(migration.number == SETTINGS_SINCE for migration in missing)
        ((attempts,),) = await self._ask(connection, "settings") if stored else [(MAX_ATTEMPTS,)]
        return read_functions(self._context.fillings | {"max_attempts": str(attempts)})

    def _drop_strays(self, functions: list[str]) -> str:
        """A function of one of our names that is none of these is an older version's, left with other arguments."""
        known = ", ".join(f"({quote_text(name)}, '{digest(body)}')" for name, body in sources(functions))
        return read_text("strays.sql", self._context.fillings | {"functions": known})

    async def _prepare_keys(self, connection: Session) -> None:
        """Before number 12, during work: the keys of large days, one at a time. What was interrupted is redone."""
        applied = await self._applied(connection)
        if not applied or applied[-1][0] >= KEYS_SINCE:
            return
        schema = self._context.fillings["schema"]
        for day, key, sound in await self._ask(connection, "large_days"):
            dropped = [f"drop index concurrently if exists {schema}.{key}"] if sound is False else []
            made = f"create unique index concurrently {key} on {schema}.{day} (id, finished_at)"
            await _run(connection, [*dropped, made])

    async def _prepare_index(self, connection: Session) -> None:
        """Before number 29, during work: its index of failed jobs. What was interrupted is redone."""
        applied = await self._applied(connection)
        if not applied or applied[-1][0] >= FAILED_SINCE:
            return
        schema = self._context.fillings["schema"]
        ((is_large, sound),) = await self._ask(connection, "large_live")
        dropped = [f"drop index concurrently if exists {schema}.live_failed_last"] if sound is False else []
        made = (
            f"create index concurrently if not exists live_failed_last on {schema}.live (finished_at, id)"
            " where state = 'failed'"
        )
        await _run(connection, [*dropped, *([made] if is_large else [])])

    async def _proof(self, connection: Session, applied: list[Row] | None) -> list[str]:
        """What number 19 leaves to be done after its commit: rows that were there are read while others work.

        ``applied``: those that are. A proof that was cut off is due again.
        """
        if not applied or (applied[-1][0] >= LAWFUL_SINCE and not await self._is_true(connection, "is_unproved")):
            return []
        return [*await self._act_as_owner(connection), self._text("prove_live")]

    def _text(self, name: str) -> str:
        """A statement without values, as part of a script, in which % is just a character."""
        return self._context.statements[name].decode().replace("%%", "%") + ";\n"

    def _note(self, migration: Migration) -> str:
        values = f"({migration.number}, {str(migration.breaking).lower()})"
        return f"insert into {self._context.fillings['schema']}.applied_migrations (id, breaking) values {values};\n"

    async def _act_as_owner(self, connection: Session) -> list[str]:
        """An administrator's upgrade must not leave functions that run with an administrator's rights."""
        owners = await self._ask(connection, "owner_to_be")
        return [f"set local role {quote_identifier(owner)};\n" for (owner,) in owners]

    async def _applied(self, connection: Session) -> list[Row] | None:
        """Numbers and whether they break; ``None`` when nothing is there."""
        ((ours, theirs, live, nulls),) = await self._ask(connection, "standing")
        if not nulls:
            raise ConfigurationError(
                f"{self._context.address}: array_nulls is off for this login, database or server, so that what is NULL"
                " in an array would arrive as the text 'NULL', and settlements would fail: ALTER ROLE … SET"
                " array_nulls = on"
            )
        if not (ours or theirs):
            return None
        if not live or (ours and theirs == "r") or not (ours or theirs == "r"):
            # graphile-worker keeps its own table `migrations`; its numbers must not be taken for ours.
            name = self._context.schema
            raise SchemaError(
                f"schema {name!r} at {self._context.address} holds tables of something else: give another name"
                f" (--schema). If they are graphile-worker's: `stowhand migrate --from-graphile {name}` moves its jobs"
                " (docs/how-to/come-from-graphile-worker.md)"
            )
        return await self._ask(connection, "applied" if ours else "applied_before_12")

    async def _is_true(self, connection: Session, name: str) -> bool:
        ((answer,),) = await self._ask(connection, name)
        return bool(answer)

    async def _ask(self, connection: Session, name: str, *values: object) -> list[Row]:
        return await rows(connection, self._context.statements[name], values)


async def _run(connection: Session, texts: Sequence[str]) -> None:
    for text in texts:
        await connection.execute(text.encode())
