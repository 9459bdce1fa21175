"""Compares what is in the schema with what this version puts there.

Another program that takes the schema for its own (one of the same name) replaces functions and alters types; so may a
person. Functions are compared by their source. Views, types, columns, constraints and indexes are compared with those
of a schema that is made in a transaction and rolled back with it; where the login may not make one, they are not.
What else is there is not reported: an index or a function of a user's own is no fault.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress

import psycopg

from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.database.migrations import Migrations
from stowhand.stores.postgres.queue.context import PostgresContext, fillings_of
from stowhand.stores.postgres.queue.texts import digest, filled, read_functions, sources

_SHARED_NAME = "shared_name"


async def altered_functions(connection: Session, context: PostgresContext, functions: list[str]) -> list[str]:
    """One message for each function of ours that differs from ``functions``, the texts of this version."""
    found = {(name, body) for name, body in await rows(connection, context.statements["function_digests"], ())}
    ours = {(name, digest(body)) for name, body in sources(functions)}
    names = {name for name, _ in ours}
    there = {name for name, _ in found}
    changed = {name for name, _ in (ours - found)} | {name for name, body in (found - ours) if name in names}
    return [
        f"the function {name} is {'not the one of this version' if name in there else 'gone'}"
        for name in sorted(changed)
    ]


async def altered_relations(connection: Session, context: PostgresContext, migrations: Migrations) -> list[str]:
    """One message for each table, view or type of ours that differs."""
    scratch = fillings_of(f"stowhand_compared_{uuid.uuid4().hex}")
    expected: list[Row] = []
    found: dict[str, str] = {}
    with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction):
        async with connection.transaction():
            for text in _tables(scratch, migrations):
                await connection.execute(text.encode())
            expected = await _shape(connection, context, scratch)
            found = dict(await _shape(connection, context, context.fillings))
            raise psycopg.Rollback
    return list(_differences(expected, found))


def _tables(fillings: dict[str, str], migrations: Migrations) -> Iterator[str]:
    schema = fillings["schema"]
    yield f"create schema {schema}"
    for migration in migrations.all:
        yield filled(migration.text, fillings)
    yield from read_functions(fillings, ["views", _SHARED_NAME])


async def _shape(connection: Session, context: PostgresContext, fillings: dict[str, str]) -> list[Row]:
    """(what, definition) of everything, with names as they read inside the schema."""
    await connection.execute(f"set local search_path = {fillings['schema']}".encode())
    return await rows(connection, context.statements["shape"], ())


def _differences(expected: list[Row], found: dict[str, str]) -> Iterator[str]:
    for what, definition in expected:
        if what not in found:
            yield f"the {what} is gone"
        elif found[what] != definition:
            yield f"the {what} is not the one of this version"
