"""What a PostgreSQL server counts about a database: for measuring how quiet an idle worker is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stowhand.stores.database.address import Address
from stowhand.stores.database.link import Connection, Dialer, hang_up, rows

REPORTING_DELAY = 11.0
"""Seconds after which what a connection did is surely counted: an idle one reports after ten."""

_QUESTION = b"""
    select xact_commit + xact_rollback from pg_catalog.pg_stat_database
    where datname = pg_catalog.current_database()
"""


class Statistics:
    """One connection, kept, so that asking costs one transaction and no more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked = 0

    async def transactions(self) -> int:
        """Committed and rolled back so far by other connections: this one's own statements are subtracted."""
        ((counted,),) = await rows(self._connection, _QUESTION)
        asked, self._asked = self._asked, self._asked + 1
        return int(counted) - asked


@asynccontextmanager
async def open_statistics(url: str) -> AsyncIterator[Statistics]:
    """Of the database that the URL names. Raises StoreUnreachable."""
    connection = await Dialer(Address(url)).dial("statistics")
    try:
        yield Statistics(connection)
    finally:
        await hang_up(connection)
