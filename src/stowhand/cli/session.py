"""The store that one command opens and closes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from stowhand.app.own_store import DEFAULT_STORE_SOURCE, ResolvedStore
from stowhand.app.settings.resolver import unknown_variables
from stowhand.app.settings.settings import StoreSettings
from stowhand.app.start import traced
from stowhand.errors import ConfigurationError, SchemaMissing
from stowhand.observe.job_logger import core_logger
from stowhand.observe.propagation import TRACE_PARENT_VARIABLE
from stowhand.observe.safe_text import scrub
from stowhand.protocols.queue_store import QueueStore
from stowhand.service.store_opener import store_of

if TYPE_CHECKING:
    from stowhand.observe.traces import Traces

DEFAULT_STORE_HINT = (
    "no store was named, so this is the default one; for the store of an App add -A MODULE:APP, or write"
    ' app = "MODULE:APP" below [tool.stowhand] in pyproject.toml'
)
T = TypeVar("T")


def with_store(
    settings: StoreSettings, operation: Callable[[QueueStore], Awaitable[T]], traces: Traces | None = None
) -> T:
    """Open the store, run the operation, close it. Raise StoreUnreachable or SchemaError.

    ``traces`` makes spans of enqueued jobs, within the span that the environment names, if any.
    """

    if settings.connection.note:
        click.echo(f"note: {settings.connection.note}", err=True)
    for _, warning in unknown_variables(os.environ):
        click.echo(f"note: {warning}", err=True)

    async def session() -> T:
        async with unopened(settings) as store:
            try:
                await store.open()
            except SchemaMissing as error:
                if settings.connection.source != DEFAULT_STORE_SOURCE:
                    raise
                raise SchemaMissing(f"{DEFAULT_STORE_HINT}: {error}") from None
            return await operation(traced(store, traces))

    if traces is None:
        return asyncio.run(session())
    from stowhand.service.process import export_spans_at_exit

    export_spans_at_exit(traces)
    with traces.within(os.environ.get(TRACE_PARENT_VARIABLE)):
        return asyncio.run(session())


@asynccontextmanager
async def unopened(settings: StoreSettings) -> AsyncIterator[QueueStore]:
    """Yield a store that has not checked its schema, to install or examine one."""
    if settings.connection.scheme == "memory":
        raise ConfigurationError(
            f"{settings.connection.source}: its jobs are in the memory of another process, which this command cannot"
            " reach"
        )
    store = store_of(settings)
    try:
        yield store
    finally:
        await store.close()


def log_store(store: ResolvedStore) -> None:
    """Log the store of a process, and a warning about the choice."""
    core_logger().info(f"Store: {scrub(store.absolute_url)} ({store.source})")
    if store.note:
        core_logger().warning(store.note)


def remove_file(file: Path) -> None:
    """Delete an SQLite file with its WAL files."""
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
