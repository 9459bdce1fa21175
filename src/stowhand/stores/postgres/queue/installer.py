"""Installation of the schema, in one transaction.

migrations/   tables, types, indexes, views: numbered, forward only, each applied once (stores/database/migrations.py)
functions/    the protocol: every installation creates the newest text again. A migration first drops a function
              whose result type changes
roles.sql     the four roles, created on request; functions/grants.sql holds their rights
settings      values stored in the schema and filled into the functions' texts

Another program with the same schema name, or a person, may replace functions and alter types. Functions are compared by
their source. Views, types, columns, constraints and indexes are compared with those of a schema that is created in a
transaction and rolled back. They are not compared if the login may not create a schema. Additional objects are not
reported, as a user's own index or function is not a fault.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import psycopg

from stowhand.errors import ConfigurationError, SchemaError, SchemaMissing, SchemaTooNew
from stowhand.jobs import limits
from stowhand.jobs.job import DEFAULT_MAX_ATTEMPTS
from stowhand.protocols.queue_store import SchemaStatus
from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.database.migrations import HOW_TO_INSTALL, Applied, Migration, Migrations
from stowhand.stores.database.statements import quote_identifier, quote_text
from stowhand.stores.postgres.queue.context import PostgresContext, fillings_of
from stowhand.stores.postgres.queue.function_texts import MIGRATIONS, digest, filled, read_functions, read_text, sources

Step = Callable[[Session], Awaitable[None]]
"""Work in a transaction of the installer."""


def status_of(
    applied: Iterable[Applied], context: PostgresContext, migrations: Migrations = MIGRATIONS
) -> SchemaStatus:
    """Compare the rows of a ledger with the migrations of this version. Raise SchemaError."""
    removal = f"remove it (drop schema {context.fillings['schema']} cascade)"
    return migrations.status(applied, context.place, removal)


def check_status(status: SchemaStatus, context: PostgresContext, migrations: Migrations = MIGRATIONS) -> None:
    """Raise SchemaError unless this version can work with such a schema."""
    if status.installed is None:
        raise SchemaMissing(f"nothing is installed in {context.place}: {HOW_TO_INSTALL}")
    migrations.check(status, context.place)


class Installer:
    """Installer of the schema, which also compares and removes it."""

    def __init__(
        self,
        context: PostgresContext,
        connect: Callable[[], AbstractAsyncContextManager[Session]] | None = None,
        migrations: Migrations = MIGRATIONS,
    ) -> None:
        """``connect`` opens the connection to work on; ``None`` means one of the pool."""
        self._context = context
        self._connect = connect or (lambda: context.pool.connection("schema"))
        self._migrations = migrations

    async def install(self, *, roles: bool = False) -> SchemaStatus:
        """Install the missing parts. Take the lock first, as concurrent ``create … if not exists`` statements collide.

        ``roles``: create the four roles and grant their rights. Raise SchemaError.
        """
        async with self._locked() as connection:
            await _run_texts(connection, await self._script(connection, roles=roles, always=True))
        return await self.status()

    async def install_between(self, before: Step, after: Step, *, roles: bool = False) -> None:
        """Install in one transaction with the steps before and after. The schema must be absent or current."""
        async with self._locked() as connection:
            await before(connection)
            await _run_texts(connection, await self._script(connection, roles=roles, always=True))
            await connection.execute(b"reset role")
            await after(connection)

    async def status(self) -> SchemaStatus:
        """Return the status of the installed schema."""
        async with self._connection() as connection:
            return await self.status_on(connection)

    async def status_on(self, connection: Session) -> SchemaStatus:
        """Return the status of the installed schema, read on this connection. Raise SchemaError."""
        return status_of(await self._applied(connection), self._context, self._migrations)

    async def plan(self, *, roles: bool = False) -> str:
        """Return the statements of ``install`` as a script for a login with the rights to run them."""
        altered = bool(await self.foreign_changes())
        async with self._connection() as connection:
            texts = await self._script(connection, roles=roles, always=altered)
        return "\n".join(["begin;", self._text("lock_schema"), *texts, "commit;"]) if texts else ""

    async def find_damage(self) -> None:
        """Return ``None``: the server checks its own files."""

    async def uninstall(self) -> None:
        """Drop the schema, which holds everything of ours."""
        async with self._locked() as connection:
            await self._ask(connection, "drop_schema")

    async def check(self) -> None:
        """Raise SchemaError if this version cannot work with the installed schema."""
        check_status(await self.status(), self._context, self._migrations)

    async def default_max_attempts(self) -> int:
        """Return ``max_attempts`` of a job that is enqueued without a value. Raise SchemaError."""
        await self.check()
        async with self._connection() as connection:
            ((attempts,),) = await self._ask(connection, "settings")
            return int(attempts)

    async def set_default_max_attempts(self, attempts: int) -> None:
        """Set the default for new jobs, in functions and table. Raise SchemaError or InvalidJob."""
        limits.check_max_attempts(attempts)
        await self.check()
        table = f"alter table {self._context.fillings['schema']}.live"
        async with self._locked() as connection:
            status = await self.status_on(connection)
            if status.installed != status.expected:  # the installed functions are not those of this version
                raise self._too_new(status, "set the default")
            await _run_texts(connection, await self._act_as_owner(connection))
            await self._ask(connection, "be_patient")
            await self._ask(connection, "set_max_attempts", attempts)
            await _run_texts(connection, [f"{table} alter column max_attempts set default {attempts:d}"])
            await _run_texts(connection, await self._functions(connection))

    async def foreign_changes(self) -> list[str]:
        """Return differences from the schema of this version; none for a schema of another number."""
        async with self._connection() as connection:
            if (await self.status_on(connection)).installed != self._migrations.newest:
                return []
            functions = [*await self._functions(connection), *self._texts(self._migrations.all)]
            return [
                *await altered_functions(connection, self._context, functions),
                *await altered_relations(connection, self._context, self._migrations),
            ]

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Session]:
        with self._context.translated():
            async with self._connect() as connection:
                yield connection

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[Session]:
        """Open a transaction that excludes all others that work on the schema."""
        async with self._connection() as connection, connection.transaction():
            await self._ask(connection, "lock_schema")
            yield connection

    async def _script(self, connection: Session, *, roles: bool, always: bool) -> list[str]:
        """Return the texts to run, in order. ``always``: include the functions even if nothing is missing."""
        status = await self.status_on(connection)
        self._migrations.refuse_newer(status, self._context.place)
        if status.installed is not None and status.installed > status.expected:
            if roles:
                raise self._too_new(status, "grant its roles")
            return []
        missing = self._migrations.missing(status)
        if not (missing or roles or always):
            return []
        texts = [read_text("roles.sql", self._context.fillings)] if roles else []
        # Use an existing schema, as the login may not be allowed to create one.
        texts += [] if await self._is_true(connection, "has_schema") else [self._text("create_schema")]
        texts += [self._text("let_roles_in")] if roles else []
        texts += await self._act_as_owner(connection)
        for migration, text in zip(missing, self._texts(missing), strict=True):
            texts += [text, self._ledger_insert(migration)]
        functions = await self._functions(connection, is_installed=status.installed is not None)
        return [*texts, *functions, self._drop_strays(functions)]

    def _too_new(self, status: SchemaStatus, name: str) -> SchemaTooNew:
        return SchemaTooNew(
            f"{self._context.place} has number {status.installed}: let the version that knows it {name}"
        )

    def _texts(self, migrations: Iterable[Migration]) -> list[str]:
        return [filled(migration.text, self._context.fillings) for migration in migrations]

    async def _functions(self, connection: Session, *, is_installed: bool = True) -> list[str]:
        """Return the functions' texts with the schema's settings, or with the defaults if no schema is installed."""
        ((attempts,),) = await self._ask(connection, "settings") if is_installed else [(DEFAULT_MAX_ATTEMPTS,)]
        return read_functions(self._context.fillings | {"max_attempts": str(attempts)})

    def _drop_strays(self, functions: list[str]) -> str:
        """Return a text that drops functions with our names but other arguments, which another version left."""
        expected_functions = ", ".join(f"({quote_text(name)}, '{digest(body)}')" for name, body in sources(functions))
        return read_text("strays.sql", self._context.fillings | {"functions": expected_functions})

    def _text(self, name: str) -> str:
        """Return a statement without values as part of a script, in which % is an ordinary character."""
        return self._context.statements[name].decode().replace("%%", "%") + ";\n"

    def _ledger_insert(self, migration: Migration) -> str:
        values = f"({migration.number}, {str(migration.breaking).lower()}, {quote_text(migration.fingerprint)})"
        table = f"{self._context.fillings['schema']}.applied_migrations"
        return f"insert into {table} (id, breaking, fingerprint) values {values};\n"

    async def _act_as_owner(self, connection: Session) -> list[str]:
        """Return texts that switch to the owner, so that no function runs with an administrator's rights."""
        owners = await self._ask(connection, "owner_to_be")
        return [f"set local role {quote_identifier(owner)};\n" for (owner,) in owners]

    async def _applied(self, connection: Session) -> list[Row]:
        """Return the ledger's rows; none if no schema is installed."""
        ((expected, theirs, live, nulls),) = await self._ask(connection, "standing")
        if not nulls:
            raise ConfigurationError(
                f"{self._context.address}: array_nulls is off for this login, database or server, so a NULL in an array"
                " would arrive as the text 'NULL', and settlements would fail: ALTER ROLE … SET"
                " array_nulls = on"
            )
        if not (expected or theirs):
            return []
        if not (expected and live) or theirs == "r":  # graphile-worker's own table is called `migrations`
            name = self._context.schema
            raise SchemaError(
                f"{self._context.place} has tables of another program: use another name (--schema). If they are"
                f" graphile-worker's: `stowhand migrate --from-graphile {name}` moves its jobs"
                " (docs/how-to/come-from-graphile-worker.md)"
            )
        return await self._ask(connection, "applied")

    async def _is_true(self, connection: Session, name: str) -> bool:
        ((answer,),) = await self._ask(connection, name)
        return bool(answer)

    async def _ask(self, connection: Session, name: str, *values: object) -> list[Row]:
        return await rows(connection, self._context.statements[name], values)


async def _run_texts(connection: Session, texts: Sequence[str]) -> None:
    for text in texts:
        await connection.execute(text.encode())


_SHARED_NAME = "shared_name"


async def altered_functions(connection: Session, context: PostgresContext, functions: list[str]) -> list[str]:
    """Return a message for each function of ours that differs from ``functions``, the texts of this version."""
    existing = {(name, body) for name, body in await rows(connection, context.statements["function_digests"], ())}
    expected = {(name, digest(body)) for name, body in sources(functions)}
    names = {name for name, _ in expected}
    existing_names = {name for name, _ in existing}
    changed = {name for name, _ in expected - existing}
    changed |= {name for name, _ in existing - expected if name in names}
    return [
        f"the function {name} is {'not the one of this version' if name in existing_names else 'missing'}"
        for name in sorted(changed)
    ]


async def altered_relations(connection: Session, context: PostgresContext, migrations: Migrations) -> list[str]:
    """Return a message for each table, view or type of ours that differs."""
    scratch = fillings_of(f"stowhand_compared_{uuid.uuid4().hex}")
    expected: list[Row] = []
    existing: dict[str, str] = {}
    with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction):
        async with connection.transaction():
            for text in _table_texts(scratch, migrations):
                await connection.execute(text.encode())
            expected = await _shape(connection, context, scratch)
            existing = dict(await _shape(connection, context, context.fillings))
            raise psycopg.Rollback
    return list(_differences(expected, existing))


def _table_texts(fillings: dict[str, str], migrations: Migrations) -> Iterator[str]:
    schema = fillings["schema"]
    yield f"create schema {schema}"
    for migration in migrations.all:
        yield filled(migration.text, fillings)
    yield from read_functions(fillings, ["views", _SHARED_NAME])


async def _shape(connection: Session, context: PostgresContext, fillings: dict[str, str]) -> list[Row]:
    """Return (name, definition) of every object, with names as seen inside the schema."""
    await connection.execute(f"set local search_path = {fillings['schema']}".encode())
    return await rows(connection, context.statements["shape"], ())


def _differences(expected: list[Row], existing: dict[str, str]) -> Iterator[str]:
    for name, definition in expected:
        if name not in existing:
            yield f"the {name} is missing"
        elif existing[name] != definition:
            yield f"the {name} is not the one of this version"
