"""The move of the jobs of a graphile-worker schema into ours, in one transaction.

look    read the contents and the obstacles to a move; change nothing
move    lock their tables, look again, rename their schema, install ours, copy

Their schema stays under another name. There are two layouts. Until 0.13, a job's row has the names of its task and
queue; later it has their ids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files

import msgspec
import psycopg

from stowhand.errors import SchemaError, StoreRefused
from stowhand.stores.database.link import Row, Session
from stowhand.stores.database.statements import load_statements, quote_identifier, quote_text
from stowhand.stores.postgres.queue.context import PostgresContext
from stowhand.stores.postgres.queue.installer import Installer

KEPT_SUFFIX = "_before_stowhand"
MAX_NAME_BYTES = 63
NEEDED_COLUMNS = {"key", "flags", "revision", "locked_at", "locked_by"}
"""Columns that their jobs must have; version 0.12 has all of them."""
KEEP_IDS_FILLINGS = {"id": "id,", "id_value": "j.id,", "overriding": "overriding system value"}
NEW_IDS_FILLINGS = dict.fromkeys(KEEP_IDS_FILLINGS, "")

Tables = Mapping[str, Sequence[str]]
"""Columns of their tables, by table name."""
Statements = Mapping[str, bytes]


class GraphileContents(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a graphile-worker schema, and the obstacles to a move."""

    jobs: int
    failed: int
    retried: int
    """Waiting jobs with an earlier attempt."""
    keys: int
    queued: int
    """Jobs that have a named queue."""
    queues: int
    flagged: int
    items: int
    """Known items of crontabs."""
    keeps_ids: bool = True
    problems: Sequence[str] = ()
    """Sentences that include the fix. Empty if the schema can be moved."""


class GraphileImport:
    """The move of one graphile-worker schema."""

    def __init__(self, context: PostgresContext, installer: Installer, theirs: str) -> None:
        self._context = context
        self._installer = installer
        self.theirs = theirs
        self.kept = theirs.encode()[: MAX_NAME_BYTES - len(KEPT_SUFFIX)].decode(errors="ignore") + KEPT_SUFFIX
        """The new name of their schema."""

    async def look(self) -> GraphileContents:
        """Return what would be moved. Raise SchemaError if there is no readable graphile-worker schema."""
        with self._context.translated(), self._explain_missing_rights():
            async with self._context.pool.connection("schema") as connection, connection.transaction():
                return await self._look(connection, await self._tables(connection))

    async def move(self, *, roles: bool = False) -> GraphileContents:
        """Move the schema and return what was moved. Raise SchemaError with all problems; then nothing has changed."""
        contents: GraphileContents | None = None
        tables: Tables = {}

        async def prepare(connection: Session) -> None:
            nonlocal contents, tables
            tables = await self._tables(connection)
            statements = self._statements(tables, self.theirs)
            await self._lock(connection, statements)
            contents = await self._look(connection, tables)
            if contents.problems:
                raise SchemaError("\n".join(contents.problems))
            await _run_statements(connection, statements, "rename")

        async def copy(connection: Session) -> None:
            assert contents is not None
            ids = KEEP_IDS_FILLINGS if contents.keeps_ids else NEW_IDS_FILLINGS
            statements = self._statements(tables, self.kept, ids)
            await _run_statements(connection, statements, "copy_jobs", "continue_ids", "copy_crontab", "copy_ticks")
            await _run_statements(connection, statements, "count_for_planner", "wake")

        with self._explain_missing_rights():
            await self._installer.install_between(prepare, copy, roles=roles)
        assert contents is not None
        return contents

    async def _tables(self, connection: Session) -> Tables:
        """Return their tables and columns. Raise SchemaError if they are not graphile-worker's, or too old."""
        tables: Tables = dict(await _read_rows(connection, self._statements({}, self.theirs)["tables"]))
        jobs = tables.get(_table_name("jobs", tables))
        if jobs is None or "migrations" not in tables:
            raise SchemaError(
                f"schema {self.theirs!r} at {self._context.address} has no tables of graphile-worker: name its schema,"
                f" which usually is graphile_worker. A schema that was moved is called {self.kept!r}"
            )
        if _table_name("known_crontabs", tables) not in tables or not NEEDED_COLUMNS.issubset(jobs):
            raise SchemaError(
                f"schema {self.theirs!r} is of a version before 0.12: let graphile-worker 0.13 migrate it first"
            )
        return tables

    def _statements(self, tables: Tables, schema: str, ids: Mapping[str, str] = NEW_IDS_FILLINGS) -> Statements:
        """Return the statements for their tables in a schema of this name."""
        fillings = {"task": "j.task_identifier", "queue": "j.queue_name", "joins": ""}
        if "task_identifier" not in tables.get(_table_name("jobs", tables), ()):
            fillings = {
                "task": "t.identifier",
                "queue": "q.queue_name",
                "joins": f"join {_quoted_table('tasks', tables, schema)} t on t.id = j.task_id"
                f" left join {_quoted_table('job_queues', tables, schema)} q on q.id = j.job_queue_id",
            }
        names = {
            "theirs": quote_identifier(self.theirs),
            "theirs_name": quote_text(quote_identifier(self.theirs)),
            "kept": quote_identifier(self.kept),
            "kept_name": quote_text(quote_identifier(self.kept)),
            "jobs": _quoted_table("jobs", tables, schema),
            "crontabs": _quoted_table("known_crontabs", tables, schema),
        }
        file = files("stowhand.stores.postgres.queue") / "from_graphile.sql"
        return load_statements(file, {**self._context.fillings, **names, **fillings, **ids})

    @contextmanager
    def _explain_missing_rights(self) -> Iterator[None]:
        """Translate errors about missing rights: row security hides jobs, and only the owner can rename a schema."""
        try:
            yield
        except (psycopg.errors.InsufficientPrivilege, StoreRefused) as error:
            raise SchemaError(
                f"this login cannot move schema {self.theirs!r}: use the login that owns it, or a superuser ({error})"
            ) from error

    async def _lock(self, connection: Session, statements: Statements) -> None:
        try:
            await connection.execute(self._context.statements["be_patient"])
            await _run_statements(connection, statements, "lock_theirs")
        except psycopg.errors.LockNotAvailable as error:
            raise SchemaError(
                f"another session has used the tables of schema {self.theirs!r} for 5 s: stop graphile-worker's workers"
                " and what enqueues, then try again"
            ) from error

    async def _look(self, connection: Session, tables: Tables) -> GraphileContents:
        statements = self._statements(tables, self.theirs)
        await _run_statements(connection, statements, "see_all_rows")
        ((*numbers,),) = await _read_rows(connection, statements["counts"])
        contents = GraphileContents(**dict(zip(GraphileContents.__struct_fields__, numbers, strict=False)))
        problems = [problem async for problem in self._problems(connection, tables)]
        if self._context.schema == self.theirs:
            return msgspec.structs.replace(contents, problems=problems)
        keeps_ids = True
        status = await self._installer.status_on(connection)
        if status.installed is not None and status.installed != status.expected:
            problems.append(
                f"schema {self._context.schema!r} has number {status.installed}, this version needs {status.expected}:"
                " run `stowhand migrate` first"
            )
        elif status.installed is not None:
            ((keeps_ids,),) = await _read_rows(connection, statements["is_unused"])
            ((conflicts, keys),) = await _read_rows(connection, statements["taken_keys"])
            if conflicts:
                problems.append(
                    f"{conflicts:,} of their keys are those of live jobs in schema {self._context.schema!r}:"
                    f" {_join(keys)}. Remove one of the two"
                )
        return msgspec.structs.replace(contents, keeps_ids=keeps_ids, problems=problems)

    async def _problems(self, connection: Session, tables: Tables) -> AsyncIterator[str]:
        statements = self._statements(tables, self.theirs)
        ((has_kept,),) = await _read_rows(connection, statements["has_kept"])
        if has_kept:
            yield f"there is a schema {self.kept!r} already, the name that theirs would get: rename or drop it"
        for worker, number in await _read_rows(connection, statements["holders"]):
            unlock = f"update {_quoted_table('jobs', tables, self.theirs)} set locked_at = null, locked_by = null"
            yield (
                f"worker {worker} holds {number:,} {'job' if number == 1 else 'jobs'}: stop it. If it is dead, unlock"
                f" them: {unlock} where locked_by = {quote_text(worker)}"
            )
        ((invalid_jobs, ids),) = await _read_rows(connection, statements["misfits"])
        if invalid_jobs:
            noun = "job is" if invalid_jobs == 1 else "jobs are"
            yield (
                f"{invalid_jobs:,} {noun} beyond the limits of a job (docs/reference/limits.md), or of a built-in task:"
                f" {_join(ids)}. Change or delete them"
            )


def _table_name(table: str, tables: Tables) -> str:
    """Return the name of one of their tables in this layout. Before 0.16 the names begin with ``_private_``."""
    return f"_private_{table}" if "_private_jobs" in tables else table


def _quoted_table(table: str, tables: Tables, schema: str) -> str:
    return f"{quote_identifier(schema)}.{_table_name(table, tables)}"


def _join(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


async def _run_statements(connection: Session, statements: Statements, *names: str) -> None:
    for name in names:
        await connection.execute(statements[name])


async def _read_rows(connection: Session, statement: bytes) -> list[Row]:
    """Read without a timeout, as a large table may be read as a whole."""
    cursor = connection.reader()
    await cursor.execute(statement)
    return await cursor.fetchall()
