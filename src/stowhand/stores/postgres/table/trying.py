"""The options' expressions, shown to the server: what it says against one, it says here, and not at the first claim.

They are put into a SELECT that gives no row, so nothing is computed of anybody's record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import psycopg

from stowhand.errors import ConfigurationError, TableUnsuitable
from stowhand.stores.database.link import Session, rows
from stowhand.stores.database.trouble import first_line, is_cut, is_forbidden, is_transient
from stowhand.stores.postgres.table.catalog import Facts
from stowhand.stores.postgres.table.composing import Composer
from stowhand.stores.postgres.table.fixes import grant
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.names import Shape
from stowhand.stores.table.options import TableOptions


async def try_expressions(
    line: Session, shape: Shape, options: TableOptions[Any], facts: Facts
) -> AsyncIterator[Finding]:
    """For a table without fatal findings, in a transaction that only reads."""
    try:
        composer = Composer(options, shape, facts)
    except (ConfigurationError, TableUnsuitable) as error:
        yield Finding(str(error))
        return
    values = {**composer.values, "ids": [], "now": None}
    for option, statement, given in (
        ("column_expressions", composer.statements["read"], values),
        ("order_by_expression", composer.statements["order"], composer.order_values),
    ):
        refusal = await _refused(line, statement, given)
        if refusal is not None:
            granted = grant("SELECT", facts.view, facts.server.user) if facts.view is not None else ""
            yield Finding(f"{option}: {first_line(refusal)}", granted if is_forbidden(refusal) else "")


async def _refused(line: Session, statement: bytes, values: Mapping[str, object]) -> psycopg.Error | None:
    try:
        async with line.transaction():
            await rows(line, statement, values)
    except psycopg.Error as error:
        if is_cut(error):
            raise
        return None if is_transient(error) else error
    return None
