"""Compares a user's table and view with the options, in a read-only transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from stowhand.errors import ConfigurationError, TableUnsuitable
from stowhand.stores.database.link import Session, rows
from stowhand.stores.database.postgres_errors import first_line, is_connection_lost
from stowhand.stores.postgres.table.catalog import Catalog, PostgresDialect, survey
from stowhand.stores.postgres.table.composer import Composer
from stowhand.stores.table.backend import Finding, refuse_fatal
from stowhand.stores.table.check import CatalogFacts, find_problems, sample_findings, sample_statement
from stowhand.stores.table.names import OPTIONAL_COLUMNS, Shape
from stowhand.stores.table.options import TableOptions

LOCK_TIMEOUT_SECONDS = 5
"""Maximum time to wait for a lock."""


async def validate(
    session: Session, options: TableOptions[Any], shape: Shape
) -> tuple[CatalogFacts, Sequence[Finding]]:
    """Return the catalog and the warnings for a worker that opens the table.

    Raise TableUnsuitable with every fatal finding.
    """
    facts, findings = await check(session, options, shape)
    refuse_fatal(shape, findings)
    return facts, [finding for finding in findings if finding.warned]


async def check(session: Session, options: TableOptions[Any], shape: Shape) -> tuple[CatalogFacts, Sequence[Finding]]:
    """Return the catalog and every finding, fatal ones first. Raise psycopg's errors."""
    async with _read_only_transaction(session):
        catalog = Catalog(session)
        facts = await survey(catalog, options, shape)
        dialect = PostgresDialect(shape, schema=facts.schema, is_partitioned=facts.kind == "partitioned table")
        findings = list(find_problems(facts, shape, options, dialect))
        if not any(finding.fatal for finding in findings):
            existing_shape = shape.lacking(*absent_columns(facts, shape))
            findings += [finding async for finding in _expression_findings(session, options, existing_shape, facts)]
            if shape.viewed and await _hides_processing(catalog, shape):
                view_name = shape.view.display_name
                findings.append(
                    Finding(
                        f"the view {view_name} hides records that are processing, so claimed records could not be read;"
                        " leave the state out of its WHERE"
                    )
                )
            findings += sample_findings(shape, await catalog.query(sample_statement(shape)))
    return facts, sorted(findings, key=lambda finding: not finding.fatal)


async def _expression_findings(
    session: Session, options: TableOptions[Any], shape: Shape, facts: CatalogFacts
) -> AsyncIterator[Finding]:
    """Let the server parse the options' expressions, to find errors before the first claim."""
    try:
        composer = Composer(options, shape, facts)
    except (ConfigurationError, TableUnsuitable) as error:
        yield Finding(str(error))
        return
    for option, statement, values in (
        ("column_expressions", "read", {**composer.values, "ids": [], "now": None}),
        ("order_by_expression", "order", composer.order_values),
    ):
        try:
            async with session.transaction():
                await rows(session, composer.statements[statement], values)
        except psycopg.Error as error:
            if is_connection_lost(error):
                raise
            yield Finding(f"{option}: {first_line(error)}")


async def _hides_processing(catalog: Catalog, shape: Shape) -> bool:
    """Return whether the planner, without reading rows, excludes records in processing from the view."""
    await catalog.query("SELECT set_config('constraint_exclusion', 'on', true)")
    plan = await catalog.query(
        f"EXPLAIN (COSTS OFF) SELECT FROM {shape.view.quoted} WHERE {shape['state']} = 'processing'"
    )
    return [str(row[0]).strip() for row in plan[:2]] == ["Result", "One-Time Filter: false"]


@asynccontextmanager
async def _read_only_transaction(session: Session) -> AsyncIterator[None]:
    """Open a read-only transaction that waits only a few seconds for locks."""
    async with session.transaction():
        await session.execute(
            b"set transaction read only; set local timezone = 'UTC'; set local lock_timeout = '%ds'"
            % LOCK_TIMEOUT_SECONDS
        )
        yield


def absent_columns(facts: CatalogFacts, shape: Shape) -> tuple[str, ...]:
    """Return the optional columns that the table does not have, for ``Shape.lacking``."""
    return tuple(name for name in OPTIONAL_COLUMNS if facts.column(shape, name) is None)
