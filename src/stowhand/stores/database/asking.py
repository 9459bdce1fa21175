"""One statement of an application's own, on whatever connection it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

Values = Sequence[object] | Mapping[str, object] | None


async def ask(connection: psycopg.AsyncConnection[Any], statement: Any, values: Values = None) -> list[dict[str, Any]]:
    """Its rows, each a dict by column; none for a statement that gives no rows. Raises what psycopg raises.

    ``statement``: text, or what ``psycopg.sql`` composes.
    """
    async with psycopg.AsyncCursor(connection, row_factory=dict_row) as cursor:
        await cursor.execute(statement.encode() if isinstance(statement, str) else statement, values)
        return await cursor.fetchall() if cursor.description is not None else []
