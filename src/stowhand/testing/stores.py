"""Storage of the jobs of one test: in memory, in a new file, or in a schema that is emptied between tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol, TypeVar

import msgspec

from stowhand.app.start import logging_events
from stowhand.events import StoreWarning
from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import JobFilter, QueueStore, lent_connection
from stowhand.protocols.store import StoreOptions
from stowhand.stores.sqlite.queue.memory import MemoryStore
from stowhand.stores.url import open_store

T = TypeVar("T")
MAX_JOBS_LISTED = 100_000
"""Maximum number of jobs of one test that are read."""
CLOSE_TIMEOUT_SECONDS = 10.0
"""Time that a store on another thread's loop has to close."""
KEPT_TABLES = ("applied_migrations", "settings")
"""Tables that migrations fill."""
SCHEMA_PREFIX = "stowhand_test"
LIST_TABLES_SQL = """
select string_agg(oid::regclass::text, ', ') from pg_class
where relnamespace = %s::regnamespace and relkind in ('r', 'p') and not relispartition and relname <> all (%s)"""


class JobStorage(Protocol):
    """Storage with the jobs of one test only."""

    def make(self) -> QueueStore:
        """Return a store of these jobs, for one event loop."""

    def jobs(self) -> Sequence[Job]:
        """Return all jobs, including finished ones, ordered by id."""


class MemoryStorage:
    """Storage in memory: one store for all loops of this process."""

    def __init__(self, options: StoreOptions) -> None:
        self._store = MemoryStore(options=options, supports_enqueue_in=True)
        self._store.notices.on_warning(self._log_warning)

    def make(self) -> QueueStore:
        return self._store

    def _log_warning(self, warning: str, fix: str) -> None:
        """Log a warning. The log listener is made only when there is a warning, because most tests have none."""
        logging_events().emit(StoreWarning(self._store.description, warning, fix))

    def jobs(self) -> Sequence[Job]:
        return _run_without_waiting(self._store.inspect.list(JobFilter(states=tuple(State), limit=MAX_JOBS_LISTED)))


def _run_without_waiting(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a memory store, which never waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("a store in memory must not wait")


class UrlStorage:
    """Storage at a URL. A store that is made in an event loop is closed when that loop or the test ends."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        self._url, self._options = url, options
        self._open: list[tuple[asyncio.AbstractEventLoop, AsyncGenerator[None, None]]] = []

    def make(self) -> QueueStore:
        store = open_store(self._url, self._options)
        with suppress(RuntimeError):  # without a loop the store uses only connections of the caller
            self._open.append((asyncio.get_running_loop(), _start(_until_closed(store))))
        return store

    def jobs(self) -> Sequence[Job]:
        async def list_jobs(store: QueueStore) -> Sequence[Job]:
            return await store.inspect.list(JobFilter(states=tuple(State), limit=MAX_JOBS_LISTED))

        return sorted(self.call(list_jobs), key=lambda job: job.id)

    def call(self, coroutine: Callable[[QueueStore], Awaitable[T]], *, opened: bool = True) -> T:
        """Call a coroutine function with a new store on a separate loop, and wait, even if another loop runs."""

        async def call() -> T:
            store = open_store(self._url, self._options)
            try:
                if opened:
                    await store.open()
                return await coroutine(store)
            finally:
                await store.close()

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(lambda: asyncio.run(call())).result()

    def close(self) -> None:
        """Close the stores of loops that are still open."""
        while self._open:
            loop, closing = self._open.pop()
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(_close(closing), loop).result(CLOSE_TIMEOUT_SECONDS)
            elif not loop.is_closed():
                loop.run_until_complete(_close(closing))


class ServerSchema:
    """A schema of a PostgreSQL database, created for the first test and dropped at the end of the process.

    Each process of pytest-xdist has its own schema.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._schema = f"{SCHEMA_PREFIX}_{token_hex(6)}"
        self._was_created = False

    @contextmanager
    def emptied(self, options: StoreOptions) -> Iterator[UrlStorage]:
        """Empty the schema for one test, and close its stores afterwards."""
        storage = UrlStorage(self.url, msgspec.structs.replace(options, schema=self._schema))
        if self._was_created:
            storage.call(self._empty)
        else:
            storage.call(_install, opened=False)
            self._was_created = True
        try:
            yield storage
        finally:
            storage.close()

    def drop(self) -> None:
        """Drop the schema at the end of the process."""
        if self._was_created:
            UrlStorage(self.url, StoreOptions(schema=self._schema)).call(lambda store: store.schema.uninstall())

    async def _empty(self, store: QueueStore) -> None:
        async with lent_connection(store) as connection:
            ((tables,),) = await (
                await connection.execute(LIST_TABLES_SQL, [self._schema, list(KEPT_TABLES)])
            ).fetchall()
            await connection.execute(f"truncate {tables} restart identity cascade")


@contextmanager
def in_file(file: Path, options: StoreOptions) -> Iterator[UrlStorage]:
    """Storage in a new SQLite file."""
    storage = UrlStorage(f"sqlite:///{file}", options)
    storage.call(_install, opened=False)
    try:
        yield storage
    finally:
        storage.close()


async def _install(store: QueueStore) -> None:
    await store.schema.install()


async def _until_closed(store: QueueStore) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await store.close()


async def _close(closing: AsyncGenerator[None, None]) -> None:
    await closing.aclose()


def _start(closing: AsyncGenerator[None, None]) -> AsyncGenerator[None, None]:
    """Take the first step of a generator, which does not wait, so that the loop closes it (``shutdown_asyncgens``)."""
    with suppress(StopIteration):
        closing.__anext__().send(None)
    return closing
