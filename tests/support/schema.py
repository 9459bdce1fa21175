"""The schema of the PostgreSQL store, installed."""

from __future__ import annotations

import asyncio

from stowhand.protocols.store import StoreOptions
from stowhand.stores.postgres.queue import PostgresStore


def install(url: str, *, roles: bool = False, schema: str = "stowhand") -> None:
    """As `stowhand migrate`; `roles`: and the four roles."""

    async def installed() -> None:
        store = PostgresStore(url, StoreOptions(schema=schema))
        try:
            await store.schema.install(roles=roles)
        finally:
            await store.close()

    asyncio.run(installed())
