"""A store for the length of one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import click

from stowhand.queue_store import QueueStore
from stowhand.service.settings import StoreSettings
from stowhand.stores import open_store

T = TypeVar("T")


def with_store(settings: StoreSettings, doing: Callable[[QueueStore], Awaitable[T]]) -> T:
    """Open the store, do one thing, close it. Raises StoreUnreachable, SchemaError."""

    if settings.connection.note:
        click.echo(f"note: {settings.connection.note}", err=True)

    async def session() -> T:
        async with unopened(settings) as store:
            await store.open()
            return await doing(store)

    return asyncio.run(session())


@asynccontextmanager
async def unopened(settings: StoreSettings) -> AsyncIterator[QueueStore]:
    """A store that has not looked at its schema: for installing and examining one."""
    store = open_store(settings.url, settings.options())
    try:
        yield store
    finally:
        await store.close()
