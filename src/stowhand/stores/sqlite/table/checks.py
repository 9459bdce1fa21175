"""A user's table and view, compared with the options: all that is wrong, each trouble with the DDL that mends it.

SQLite lets a column hold anything, so only that is wrong which changes what is written: TEXT columns declared as
numbers, counters declared as TEXT, STRICT tables of other types, a CHECK that lets too few states pass. It
cannot change a column's type or constraint either: the DDL makes another column, which is mapped, and the first one
stays as it is. No row is changed here, and rows are looked at within bounds.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stowhand.jobs.job import State
from stowhand.stores.sqlite.table.catalog import Column, Facts
from stowhand.stores.sqlite.table.moments import Kind, kind_of
from stowhand.stores.sqlite.table.refusals import refused_states
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.ddl import RECOMMENDED, SOUGHT, SQLITE_COLUMNS, index_ddl
from stowhand.stores.table.judging import CARRIED, COUNTERS, EMPTIED, absent, near_columns, near_relation, unused
from stowhand.stores.table.names import MOMENTS, OPTIONAL, TOKEN, Relation, Shape, quote
from stowhand.stores.table.triggers import said_of, sets_column

OLDEST = (3, 35, 0)
"""RETURNING."""
LOOKED_AT = 10_000
"""Rows."""
TEXTS = ("state", "failure_message", "execution_logs", "worker_hostname", TOKEN)
_EMPTIED = (*EMPTIED, TOKEN)


def judge(path: Path, facts: Facts, shape: Shape) -> Iterator[Finding]:
    """By the catalog alone, in the order in which it is best mended."""
    if sqlite3.sqlite_version_info < OLDEST:
        yield Finding(f"Python's SQLite is {sqlite3.sqlite_version}; 3.35 or newer is needed")
    given: dict[str, str] = {}
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        yield Finding(f"{path}, or its folder, may not be written by this user: SQLite writes both")
    if facts.kind is None:
        yield _absent(facts, shape, shape.table)
    elif facts.kind != "table":
        advice = "; give the table itself as table_name, and the view as view_name" if facts.kind == "view" else ""
        yield Finding(f"{shape.table.name} is a {facts.kind}{' table' * (facts.kind == 'virtual')}{advice}")
    else:
        found = [one for documented in shape.columns for one in _column(facts, shape, documented)]
        given = {documented: own for one in found for documented, own in one.columns.items()}
        yield from found
        yield from _key(facts, shape)
        yield from _triggers(facts, shape)
        for one in () if "state" in given else _check(facts, shape):
            given.update(one.columns)
            yield one
    if shape.viewed and facts.view_columns is None:
        yield _absent(facts, shape, shape.view)
    elif shape.viewed and not _shows_keys(facts, shape):
        yield Finding(f"the view {shape.view.name} has no column {shape.columns['id']}: it must show each record's key")
    if facts.kind == "table":
        yield from _advice(facts, msgspec.structs.replace(shape, columns={**shape.columns, **given}))


def look(connection: sqlite3.Connection, facts: Facts, shape: Shape) -> Iterator[Finding]:
    """At some rows."""
    table, row = shape.table.quoted, quote(shape.table.name)
    if facts.kind != "table" or facts.column(shape, "id") is None or facts.column(shape, "state") is None:
        return
    state = f"{row}.{shape['state']}"
    some = f"SELECT {row}.{shape['id']} AS stowhand_id, {state} AS stowhand_state FROM {table}"
    known = ", ".join(f"'{one.value}'" for one in State)
    strange = connection.execute(
        f"SELECT stowhand_state, count(*) FROM ({some} LIMIT {LOOKED_AT})"
        f" WHERE stowhand_state IS NULL OR stowhand_state NOT IN ({known}) GROUP BY 1 ORDER BY 2 DESC LIMIT 5"
    ).fetchall()
    for found, number in strange:
        mend = (
            f"UPDATE {table} SET {shape['state']} = 'queued' WHERE {shape['state']} IS NULL;" if found is None else ""
        )
        shown = "no state (NULL)" if found is None else f"the state {found!r}, which is unknown,"
        yield Finding(
            f"{number} of the first {LOOKED_AT} records have {shown} and are never claimed", mend, fatal=False
        )
    if facts.may_lack_id(shape):
        yield from _without_id(connection, facts, shape)
    if (after := facts.column(shape, "process_after")) is not None:
        moment = f"{row}.{quote(after.name)}"
        unreadable = connection.execute(
            f"SELECT count(*) FROM (SELECT {moment} AS moment FROM {table}"
            f" WHERE {state} IN ('queued', 'errored') AND {moment} IS NOT NULL LIMIT {LOOKED_AT})"
            " WHERE stowhand_micros(moment) IS NULL"
        ).fetchone()[0]
        if unreadable:
            yield Finding(f"column {after.name} of {unreadable} waiting records holds no moment", fatal=False)
    if shape.viewed and _shows_keys(facts, shape):
        yield from _seen(connection, shape, some, state)


def _without_id(connection: sqlite3.Connection, facts: Facts, shape: Shape) -> Iterator[Finding]:
    """Counted by the unique index. SQLite can forbid no NULL in a column that is there, so only rows are spoken of."""
    table, key = shape.table.quoted, f"{quote(shape.table.name)}.{shape['id']}"
    number = connection.execute(
        f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {key} IS NULL LIMIT {LOOKED_AT})"
    ).fetchone()[0]
    if not number:
        return
    column = facts.columns[shape.columns["id"].lower()]
    many = "1 record has" if number == 1 else f"{number} records have"
    if number == LOOKED_AT:
        many = f"{number} records or more have"
    new = "lower(hex(randomblob(16)))"
    if kind_of(column.declared) is Kind.INTEGER:
        new = f"(SELECT coalesce(max({shape['id']}), 0) FROM {table}) + rowid"
    yield Finding(
        f"{many} no {column.name} (NULL): never claimed, nor listed",
        f"UPDATE {table} SET {shape['id']} = {new} WHERE {shape['id']} IS NULL;",
        fatal=False,
        warned=True,
    )


def _seen(connection: sqlite3.Connection, shape: Shape, some: str, state: str) -> Iterator[Finding]:
    """Through the view. ``some``: keys and states of the table's records."""
    key = shape["id"]
    view = f"SELECT stowhand_view.{key} AS stowhand_id FROM {shape.view.quoted} AS stowhand_view"
    twice = connection.execute(
        f"SELECT stowhand_id FROM ({view} LIMIT {LOOKED_AT}) GROUP BY 1 HAVING count(*) > 1 LIMIT 1"
    ).fetchone()
    if twice is not None:
        yield Finding(
            f"the view {shape.view.name} shows a record more than once (id {twice[0]!r}, for one):"
            " its attempts will be errors",
            fatal=False,
            warned=True,
        )
    hidden = connection.execute(
        f"SELECT count(*) FROM ({some} WHERE {state} = 'processing' LIMIT 100) AS few"
        f" WHERE NOT EXISTS ({view} WHERE stowhand_view.{key} = few.stowhand_id)"
    ).fetchone()[0]
    if hidden:
        yield Finding(f"the view {shape.view.name} hides {hidden} records that are processing", fatal=False)


def _triggers(facts: Facts, shape: Shape) -> Iterator[Finding]:
    """A claim is known by its token and by when it began."""
    began = shape.columns["started_at"]
    for trigger, text in facts.stirred.items():
        if sets_column(text, began):
            yield Finding(said_of(trigger, began), fatal=False, warned=True)


def _shows_keys(facts: Facts, shape: Shape) -> bool:
    return shape.columns["id"].lower() in map(str.lower, facts.view_columns or ())


def _absent(facts: Facts, shape: Shape, wanted: Relation) -> Finding:
    if wanted.schema is not None and wanted.schema.lower() != "main":
        option = "table_name" if wanted is shape.table else "view_name"
        shown = ".".join(wanted.parts)
        return Finding(f"{shown}: no file is attached as {wanted.schema}; give {option}={quote(wanted.name)!r}")
    return absent(shape, wanted, near_relation(wanted, facts.around), "sqlite", makeable=facts.kind == "table")


def _column(facts: Facts, shape: Shape, documented: str) -> Iterator[Finding]:
    own, column = shape.columns[documented], facts.column(shape, documented)
    if column is None:
        if documented not in OPTIONAL or documented in shape.mapped:
            yield _missing(facts, shape, documented)
        return
    if column.generated and documented not in ("id", "cancel"):
        yield _beside(facts, shape, documented, f"column {own} computes itself; a worker writes it")
    elif trouble := _type_trouble(documented, column, facts.strict):
        yield _beside(facts, shape, documented, f"column {own} is {column.declared or 'of no type'}: {trouble}")
    elif documented in _EMPTIED and column.filled:
        yield _beside(facts, shape, documented, f"column {own} is NOT NULL; a worker empties it")
    elif documented == "state" and (column.default or "").strip("()'\"") != State.QUEUED:
        has = f"the default {column.default}" if column.default else "no default"
        problem = f"column {own} has {has}: an INSERT that does not name it makes a record that is never claimed"
        yield _beside(facts, shape, documented, problem, fatal=False)


def _missing(facts: Facts, shape: Shape, documented: str) -> Finding:
    own = shape.columns[documented]
    near = _meant(facts, shape, documented)
    hint = f'; if {near} is meant: alternate_column_names={{"{documented}": {near!r}}}' if near else ""
    called = "" if own == documented else f" (for {documented})"
    table = shape.table.quoted
    add = "" if documented == "id" else f"ALTER TABLE {table} ADD COLUMN {quote(own)} {_made(documented)};"
    if documented == "state":
        # What was there before was never meant to run.
        add += f"\nUPDATE {table} SET {quote(own)} = '{State.COMPLETED}';"
    return Finding(f"there is no column {own}{called}{hint}", add)


def _meant(facts: Facts, shape: Shape, documented: str) -> str | None:
    """A column that a worker may write over: its name is alike, its type fits, nothing else writes it."""
    taken = {name.lower() for name in shape.columns.values()}
    free = {column.name: column for name, column in facts.columns.items() if name not in taken}
    ours = _made(documented).partition("DEFAULT ")[2].strip("'")
    for name in near_columns(documented, shape.columns[documented], free):
        column = free[name]
        if column.generated or _type_trouble(documented, column, facts.strict):
            continue
        default = (column.default or "").strip("()'\"")
        emptied = documented in _EMPTIED and column.filled
        if not emptied and default == (ours if documented == "state" or column.filled or default else ""):
            return column.name
    return None


def _type_trouble(documented: str, column: Column, strict: bool) -> str:
    declared = column.declared.upper()
    number = kind_of(declared) is not Kind.TEXT
    if documented == "id":
        return "keys are INTEGER or TEXT" if "BLOB" in declared or kind_of(declared) is Kind.REAL else ""
    if documented in TEXTS and (number or (strict and declared not in ("TEXT", "ANY"))):
        return "it must keep text as it is"
    textual = any(word in declared for word in ("CHAR", "CLOB", "TEXT"))
    if documented in COUNTERS and not number and (textual or (strict and declared != "ANY")):
        return "it must keep a number"
    if strict and documented in (*MOMENTS, "cancel") and declared == "BLOB":
        return "it must keep a moment" if documented in MOMENTS else "it must keep a truth"
    return ""


def _key(facts: Facts, shape: Shape) -> Iterator[Finding]:
    """One row for one id, always."""
    own = shape.columns["id"]
    column = facts.column(shape, "id")
    if column is None:
        return
    primary = [name for name, one in facts.columns.items() if one.place_in_key]
    if primary == [own.lower()]:
        return
    names = [
        tuple((name or "").lower() for name in index.columns)
        for index in facts.indexes
        if index.unique and not index.predicate
    ]
    if (own.lower(),) not in names:
        name = quote(f"{shape.table.name}_{own}")
        yield Finding(
            f"column {own} has no unique index",
            f"CREATE UNIQUE INDEX {name} ON {quote(shape.table.name)} ({shape['id']});",
        )


def _check(facts: Facts, shape: Shape) -> Iterator[Finding]:
    if refused := refused_states(facts, shape):
        problem = f"a CHECK of {shape.table.name} does not let pass a record that is {', '.join(refused)}"
        found = _beside(facts, shape, "state", problem)
        renamed = msgspec.structs.replace(shape, columns={**shape.columns, **found.columns})
        added = {own: Column(own, "TEXT", True, "'queued'", 0, generated=False) for own in found.columns.values()}
        then = msgspec.structs.replace(facts, columns={**facts.columns, **added})
        yield Finding(problem) if refused_states(then, renamed, found.mend) else found


def _advice(facts: Facts, shape: Shape) -> Iterator[Finding]:
    for wanted in RECOMMENDED:
        if "id" in wanted.columns and facts.column(shape, "id") is None:
            continue
        columns = tuple(shape.columns[name].lower() for name in wanted.columns)
        predicate = _normal(wanted.predicate(shape))
        if not any(
            tuple((name or "").lower() for name in index.columns[: len(columns)]) == columns
            and _normal(index.predicate) in ("", predicate)
            for index in facts.indexes
        ):
            where = f" where {wanted.predicate(shape)}" if predicate else ""
            yield Finding(
                f"no index on ({', '.join(columns)}){where}: claims and resets would walk over what is finished",
                index_ddl(shape, wanted, "sqlite"),
                fatal=False,
                warned=wanted.suffix in SOUGHT and not _finds(facts, shape, SOUGHT[wanted.suffix]),
            )


def _finds(facts: Facts, shape: Shape, states: Sequence[str]) -> bool:
    """Does any index lead to the rows in these states, whatever their order?"""
    own = shape.columns["state"].lower()
    return any(
        ((index.columns or (None,))[0] or "").lower() == own
        if not index.predicate
        else own in index.predicate.lower() and all(f"'{state}'" in index.predicate for state in states)
        for index in facts.indexes
    )


def _normal(predicate: str) -> str:
    return re.sub(r'[\s"`;()\[\]]+', "", predicate).lower()


def _made(documented: str) -> str:
    """The declaration of a column that is added. SQLite adds none whose default is the time."""
    return SQLITE_COLUMNS.get(documented, "").removesuffix(" DEFAULT CURRENT_TIMESTAMP")


def _beside(facts: Facts, shape: Shape, documented: str, problem: str, *, fatal: bool = True) -> Finding:
    """A column of the worker's own: the one that is there keeps what it holds, and its type and constraints."""
    if documented == "id":
        return Finding(problem, fatal=fatal)
    own = unused(f"job_{documented}", lambda name: name.lower() in facts.columns)
    table, old, new = shape.table.quoted, shape[documented], quote(own)
    mend = f"ALTER TABLE {table} ADD COLUMN {new} {_made(documented)};"
    if documented == "state":
        known = ", ".join(f"'{state}'" for state in State)
        mend += f"\nUPDATE {table} SET {new} = CASE WHEN {old} IN ({known}) THEN {old} ELSE '{State.COMPLETED}' END;"
    elif documented in CARRIED:
        mend += f"\nUPDATE {table} SET {new} = {old} WHERE {old} IS NOT NULL;"
    text = f"{problem}; the worker gets a column of its own, {own}"
    return Finding(text, mend, fatal, columns={documented: own})
