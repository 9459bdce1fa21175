"""Bounded looks at rows: a statement with a few seconds, all of a small table, some pages of a large one."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.database.trouble import is_cut
from stowhand.stores.postgres.table.catalog import Facts
from stowhand.stores.postgres.table.fixes import Mender
from stowhand.stores.table.names import Shape

PATIENCE = 3
"""Seconds that one look may take."""
PAGES = 2000
"""Of a table, at most; spread over all of it."""


async def be_brief(line: Session) -> None:
    """For the rest of the transaction."""
    await line.execute(b"set local statement_timeout = '%ds'" % PATIENCE)


async def look(line: Session, statement: str) -> Sequence[Row] | None:
    """``None``: it may not be looked at, or it took too long. Raises what ends a connection."""
    try:
        async with line.transaction():
            return await rows(line, statement.encode())
    except psycopg.errors.SyntaxError:
        raise
    except psycopg.Error as error:
        if is_cut(error):
            raise
        return None


def records(count: int, facts: Facts | None = None) -> str:
    """``3 records have``, or of a sample. ``facts``: of the table that was perhaps not looked at as a whole."""
    among = "" if facts is None or _is_whole(facts) else " of a sample"
    return f"1 record{among} has" if count == 1 else f"{count} records{among} have"


def _is_whole(facts: Facts) -> bool:
    return facts.table is not None and facts.table.kind == "r" and facts.table.pages <= PAGES


def sample(facts: Facts, shape: Shape) -> str:
    """All of a small table; of a large one some pages, always the same."""
    assert facts.table is not None
    table = Mender(facts, shape).table
    if facts.table.kind != "r":
        return f"(SELECT * FROM {table} LIMIT {PAGES * 50}) AS sample"
    if _is_whole(facts):
        return table
    return f"{table} TABLESAMPLE SYSTEM ({100 * PAGES / facts.table.pages:.6f}) REPEATABLE (1)"
