"""Checks a table by its catalog, and composes the statements of a table that a worker can serve."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from stowhand.errors import TableUnsuitable
from stowhand.stores.database.sqlite_errors import is_busy
from stowhand.stores.sqlite.table.catalog import SqliteDialect, survey
from stowhand.stores.sqlite.table.composer import compose, kinds_of
from stowhand.stores.sqlite.table.connections import Table
from stowhand.stores.sqlite.table.timestamps import TimeFormat, kind_of
from stowhand.stores.sqlite.table.user_sql import Queries
from stowhand.stores.table.arguments import KeyType
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.check import CatalogFacts, find_problems, sample_findings, sample_statement
from stowhand.stores.table.names import OPTIONAL_COLUMNS, Relation, Shape
from stowhand.stores.table.options import TableOptions, order_of, select_expressions


def check(
    connection: sqlite3.Connection, options: TableOptions[Any], shape: Shape
) -> tuple[Table | None, list[Finding]]:
    """Return the table, if a worker can serve it, and every finding, fatal ones first."""
    facts = survey(connection, shape)
    findings = list(find_problems(facts, shape, options, SqliteDialect(shape)))
    table = None
    if not any(finding.fatal for finding in findings):
        try:
            table = _probe(connection, _table(facts, options, shape), facts)
            findings += sample_findings(shape, connection.execute(sample_statement(shape)).fetchall())
        except TableUnsuitable as error:
            findings.append(Finding(str(error)))
    return table, sorted(findings, key=lambda finding: not finding.fatal)


def _table(facts: CatalogFacts, options: TableOptions[Any], shape: Shape) -> Table:
    shape = shape.lacking(*(name for name in OPTIONAL_COLUMNS if facts.column(shape, name) is None))
    visible = tuple(column.name for column in facts.view_columns.values())
    kinds = kinds_of(shape, {column.name: column.type for column in facts.columns.values()})
    key = facts.column(shape, "id")
    assert key is not None
    columns = select_expressions(options, shape, visible)
    return Table(
        options=options,
        shape=shape,
        kinds=kinds,
        key=KeyType.INTEGER if kind_of(key.type) is TimeFormat.INTEGER else KeyType.TEXT,
        names=(),
        statements=compose(shape, options, kinds),
        queries=Queries(
            shape,
            kinds,
            retries=options.max_num_retries > 0,
            order=order_of(options, shape),
            columns=columns,
            shows_state=shape.viewed and shape.columns["state"].lower() in map(str.lower, visible),
        ),
    )


def _probe(connection: sqlite3.Connection, table: Table, facts: CatalogFacts) -> Table:
    """Let SQLite compile all statements. Return the table with the names of a record's columns."""
    queries = table.queries
    try:
        walks = _can_walk_index(connection, table, facts)
        records = queries.records()
        cursor = connection.execute(records.text, {**records.values, "ids": "[]"})
        names = tuple(column[0] for column in cursor.description[1:])
        cursor.close()
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise _unsuitable(
            error, table.shape.view, "column_expressions or order_by_expression cannot be selected from it"
        ) from error
    try:
        for statement in (queries.due(), *table.statements.values()):
            connection.execute(f"EXPLAIN {statement}", _AnyValue()).close()
    except sqlite3.Error as error:
        # For example, a CHECK or a trigger calls an application's own function.
        raise _unsuitable(error, table.shape.table, "a worker's writes are not possible here") from error
    return msgspec.structs.replace(table, names=names, walks=walks)


def _unsuitable(error: Exception, relation: Relation, problem: str) -> Exception:
    if isinstance(error, sqlite3.Error) and is_busy(error):
        return error
    return TableUnsuitable(f"{relation.display_name}: {problem}: {error}")


def _can_walk_index(connection: sqlite3.Connection, table: Table, facts: CatalogFacts) -> bool:
    """Return whether SQLite walks an index of waiting records in the order of claims. Otherwise sorting is better."""
    query = table.queries.candidates((), suspects=False, in_order=True)
    steps = connection.execute(f"EXPLAIN QUERY PLAN {query.text}", _AnyValue(query.values)).fetchall()
    first = str(steps[0][3])
    return (
        not any("TEMP B-TREE" in step[3] for step in steps)
        and first.startswith("SCAN")
        and any(first.endswith(f" INDEX {index.name}") for index in facts.indexes if index.predicate)
    )


class _AnyValue(dict[str, Any]):
    """A value for every parameter."""

    def __missing__(self, name: str) -> None:
        return None
