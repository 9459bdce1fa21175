"""PostgreSQL's catalog of a user's table and view, the states its CHECKs refuse, and the types that fit.

Statements that take a strong lock time out after a few seconds, so that others do not wait behind them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

import psycopg
from msgspec.structs import replace

from stowhand.jobs.job import State
from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.database.postgres_errors import is_connection_lost
from stowhand.stores.database.statements import load_statements
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.check import (
    COUNTER_COLUMNS,
    READ_ONLY_COLUMNS,
    CatalogFacts,
    Column,
    Index,
    Rule,
    refused_statement,
)
from stowhand.stores.table.ddl import POSTGRES_COLUMNS, shorten_name, trigger_ddl
from stowhand.stores.table.ddl import Index as Recommended
from stowhand.stores.table.names import TIME_COLUMNS, TOKEN_COLUMN, Relation, Shape, quote
from stowhand.stores.table.options import TableOptions

QUERY_TIMEOUT_SECONDS = 3
"""The limit of one query of rows, or of one CHECK."""
_STATEMENTS = load_statements(files(__package__).joinpath("catalog.sql"), {})


class Catalog:
    """Queries of the catalog in one transaction. They raise psycopg's errors."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def ask(self, name: str, *values: object) -> list[Row]:
        """Run a statement of catalog.sql, and return its rows."""
        return await rows(self._session, _STATEMENTS[name], values)

    async def query(self, statement: str) -> list[Row]:
        """Run a query with a time limit. Return no rows if it takes too long, or is not permitted."""
        try:
            async with self._session.transaction():
                await self._session.execute(b"set local statement_timeout = '%ds'" % QUERY_TIMEOUT_SECONDS)
                return await rows(self._session, statement.encode())
        except psycopg.Error as error:
            if is_connection_lost(error):
                raise
            return []

    async def relation(self, relation: Relation) -> Row | None:
        """Return the table or view of that name; ``None`` if there is none."""
        rows = await self.ask("relation", relation.name, relation.schema, relation.schema)
        return rows[0] if rows else None

    async def columns(self, relation: Row | None) -> dict[str, Column]:
        """Return the relation's columns by name."""
        rows = [] if relation is None else await self.ask("columns", relation[0], relation[0])
        return {row[0]: Column(*row) for row in rows}


async def survey(catalog: Catalog, options: TableOptions[Any], shape: Shape) -> CatalogFacts:
    """Read the catalog."""
    ((user, search_path),) = await catalog.ask("server")
    table = await catalog.relation(shape.table)
    view = await catalog.relation(shape.view) if shape.viewed else table
    await catalog.ask("search_path", "")
    facts = CatalogFacts(
        kind="" if table is None else table[2],
        columns=await catalog.columns(table),
        view_kind="" if view is None else view[2],
        view_columns=await catalog.columns(view),
        schema="" if table is None else table[1],
        view_schema="" if view is None else view[1],
    )
    if table is not None:
        facts = await _survey_table(catalog, facts, table, options, shape, user)
    await catalog.ask("search_path", search_path)
    return facts


async def _survey_table(
    catalog: Catalog,
    facts: CatalogFacts,
    table: Row,
    options: TableOptions[Any],
    shape: Shape,
    user: str,
) -> CatalogFacts:
    triggers = await catalog.ask("triggers", shape.columns["last_heartbeat_at"], table[0])
    problems = [*_table_findings(table, shape, user), *_time_zone_findings(facts, shape)]
    if options.notify_channel is not None and not any(on_insert for _, _, on_insert, _ in triggers):
        problem = f"notify_channel is {options.notify_channel!r}, and no trigger of the table notifies: workers poll"
        problems.append(Finding(problem, trigger_ddl(shape, options.notify_channel), fatal=False))
    rules = _rules_of_type(facts.column(shape, "state"))
    for row in await catalog.ask("rules", table[0]):
        rules += await _rules_of_check(catalog, row, facts, shape)
    return replace(
        facts,
        problems=problems,
        indexes=[
            Index(name, unique, tuple(own), predicate)
            for name, unique, own, predicate in await catalog.ask("indexes", table[0])
        ],
        triggers={name: text for name, text, _, at_heartbeat in triggers if at_heartbeat},
        rules=rules,
    )


def _table_findings(table: Row, shape: Shape, user: str) -> Iterator[Finding]:
    _, schema, _, is_writable, keys = table
    written = [
        own for documented, own in shape.columns.items() if documented not in READ_ONLY_COLUMNS and own in (keys or ())
    ]
    display_name = shape.table.display_name
    if written:
        yield Finding(
            f"{display_name} is partitioned by {', '.join(written)}, which a worker writes: the row would move to"
            " another partition under its lock; partition by another column, or map that one to another"
        )
    if not is_writable:
        table_name = Relation(shape.table.name, schema).quoted
        grant = f"GRANT SELECT, UPDATE ON {table_name} TO {quote(user)};"
        yield Finding(f"{user} may not read and update {display_name}", grant)


def _time_zone_findings(facts: CatalogFacts, shape: Shape) -> Iterator[Finding]:
    names = [column.name for name in TIME_COLUMNS if (column := facts.column(shape, name)) and "without" in column.type]
    if names:
        yield Finding(
            f"timestamps without time zone ({', '.join(names)}) are read and written as UTC; a default of now() is"
            " right only in sessions whose time zone is UTC",
            fatal=False,
        )


# -- rules that refuse states --------------------------------------------------------------------


def _rules_of_type(state: Column | None) -> list[Rule]:
    if state is None or state.labels is None or State.QUEUED not in state.labels:
        return []
    missing = [label for label in State if label not in state.labels]
    fix = "\n".join(f"ALTER TYPE {state.type} ADD VALUE IF NOT EXISTS '{label}';" for label in missing)
    return [Rule(f"the type {state.type} of column {state.name}", [state.name], missing, fix)]


async def _rules_of_check(catalog: Catalog, row: Row, facts: CatalogFacts, shape: Shape) -> list[Rule]:
    """Return the rule of a CHECK on columns that a worker writes."""
    name, expression, columns = row
    written = [own for documented, own in shape.columns.items() if documented not in READ_ONLY_COLUMNS]
    own_columns = [own for own in written if own in (columns or ())]
    subject = f"the CHECK {name} on {', '.join(own_columns)}"
    state = facts.column(shape, "state")
    if state is None or columns != [state.name]:
        return [Rule(subject, own_columns)] if own_columns else []
    refused = [State(row[0]) for row in await catalog.query(refused_statement(state, expression))]
    return [Rule(subject, own_columns, refused, widened_check(shape, facts.schema, name, expression))]


INTEGER_TYPES = ("smallint", "integer", "bigint")
_STATE_LITERALS = ", ".join(f"'{state}'" for state in State)
_MARK_CHARACTERS = 130
"""The length of a claim's mark: a host's name (64), the rest of the worker's name, a slash and a token."""
_REQUIRED_CHARACTERS = {"state": max(map(len, State)), "worker_hostname": _MARK_CHARACTERS, TOKEN_COLUMN: 36}
"""The length of the texts that a worker writes, by column."""
_VARYING_PATTERN = re.compile(r"character varying(?:\((\d+)\))?")
_UNLABELED_MISFIT = "an enum without 'queued' is not a state of a record"


class PostgresDialect:
    """PostgreSQL's types and statements for one table."""

    name = "postgres"

    def __init__(self, shape: Shape, *, schema: str, is_partitioned: bool) -> None:
        self._shape = shape
        self.table = Relation(shape.table.name, schema or shape.table.schema).quoted
        self._schema = schema
        self._is_partitioned = is_partitioned

    def misfit(self, documented: str, column: Column) -> str:
        """Return why the type does not fit; empty if it fits."""
        bare = re.sub(r"\(\d+\)", "", column.type)
        if documented in TIME_COLUMNS:
            return "" if bare.startswith("timestamp") else "it must be timestamptz"
        if documented in COUNTER_COLUMNS:
            return "" if column.type in INTEGER_TYPES else "it must be integer"
        if documented == "cancel":
            return "" if column.type == "boolean" else "it must be boolean"
        if documented == "execution_logs":
            return "" if column.type in ("json[]", "jsonb[]") else "it must be json[]"
        if column.type in ("text", "citext") or column.type.endswith(".citext"):
            return ""
        if documented == "id" and column.type in (*INTEGER_TYPES, "uuid"):
            return ""
        if column.type == "uuid" and documented == TOKEN_COLUMN:
            return ""
        if documented == "state" and column.labels is not None:
            return "" if State.QUEUED in column.labels else _UNLABELED_MISFIT
        varying = _VARYING_PATTERN.fullmatch(column.type)
        if varying is None:
            return "it must be text"
        required_characters = _REQUIRED_CHARACTERS.get(documented, 0)
        is_short = varying[1] is not None and int(varying[1]) < required_characters
        return f"{required_characters} characters are written there" if is_short else ""

    def add(self, documented: str, own: str) -> str:
        """Return one statement, so that a row inserted meanwhile has the value of old rows or its own."""
        name, declared = quote(own), POSTGRES_COLUMNS[documented]
        if documented == "state":
            actions = f"ADD COLUMN {name} text NOT NULL DEFAULT 'completed', ALTER COLUMN {name} SET DEFAULT 'queued'"
        elif documented == "queued_at":  # existing rows were not queued now
            actions = f"ADD COLUMN {name} timestamptz, ALTER COLUMN {name} SET DEFAULT now()"
        else:
            actions = f"ADD COLUMN {name} {declared}"
        return with_lock_timeout(f"ALTER TABLE {self.table} {actions};")

    def default(self, documented: str) -> str:
        """Return SET DEFAULT with the value of our own DDL."""
        value = POSTGRES_COLUMNS[documented].partition("DEFAULT ")[2]
        return with_lock_timeout(
            f"ALTER TABLE {self.table} ALTER COLUMN {self._shape[documented]} SET DEFAULT {value};"
        )

    def index(self, shape: Shape, recommended: Recommended, columns: Sequence[str], *, unique: bool = False) -> str:
        """Return CREATE INDEX CONCURRENTLY, for no transaction. Empty for partitioned tables, which lack it."""
        if self._is_partitioned:
            return ""
        name = quote(shorten_name(f"{shape.table.name}_{recommended.suffix}"))
        where = f" WHERE {predicate}" if (predicate := recommended.predicate(shape)) else ""
        kind = "UNIQUE INDEX" if unique else "INDEX"
        return f"CREATE {kind} CONCURRENTLY {name} ON {self.table} ({', '.join(map(quote, columns))}){where};"


def widened_check(shape: Shape, schema: str, name: str, expression: str) -> str:
    """Return SQL that makes a CHECK accept our states too. The table always has the old or the new CHECK."""
    table, rule = Relation(shape.table.name, schema).quoted, quote(name)
    wider_expression = f"({expression}) OR {shape['state']} IN ({_STATE_LITERALS})"
    change = f"ALTER TABLE {table} DROP CONSTRAINT {rule}, ADD CONSTRAINT {rule} CHECK ({wider_expression}) NOT VALID;"
    return f"{with_lock_timeout(change)}\nALTER TABLE {table} VALIDATE CONSTRAINT {rule};"


def with_lock_timeout(statement: str) -> str:
    """Return the statement with a lock timeout of 5 s, so that others do not wait behind it."""
    return f"BEGIN;\nSET LOCAL lock_timeout = '5s';\n{statement}\nCOMMIT;"
