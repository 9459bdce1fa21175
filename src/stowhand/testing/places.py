"""Where the jobs of one test are kept: in memory, in a file of its own, in a schema that is emptied between tests."""

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
LISTED = 100_000
"""Jobs of one test that are looked at, at most."""
PATIENCE = 10.0
"""Seconds that a store on another thread's loop has to close."""
KEPT = ("applied_migrations", "settings")
"""Tables that migrations fill."""
SCHEMA = "stowhand_test"
TABLES = """
select string_agg(oid::regclass::text, ', ') from pg_class
where relnamespace = %s::regnamespace and relkind in ('r', 'p') and not relispartition and relname <> all (%s)"""


class Place(Protocol):
    """The jobs of one test, and of no other."""

    def make(self) -> QueueStore:
        """A store on these jobs, for one event loop."""

    def jobs(self) -> Sequence[Job]:
        """All of them, those that have ended too, in the order of their ids."""


class MemoryPlace:
    """In this process: one store for every loop."""

    def __init__(self, options: StoreOptions) -> None:
        self._store = MemoryStore(options=options, hears_commits=True)
        self._store.notices.on_warning(self._warned)

    def make(self) -> QueueStore:
        return self._store

    def _warned(self, warning: str, fix: str) -> None:
        """What writes it is made when there is something to write: most tests warn of nothing."""
        logging_events().emit(StoreWarning(self._store.description, warning, fix))

    def jobs(self) -> Sequence[Job]:
        return _answer(self._store.inspect.list(JobFilter(states=tuple(State), limit=LISTED)))


def _answer(question: Coroutine[Any, Any, T]) -> T:
    """A memory store answers without waiting, so this needs no event loop."""
    try:
        question.send(None)
    except StopIteration as answered:
        answer: T = answered.value
        return answer
    raise RuntimeError("a memory store waited for something")


class UrlPlace:
    """At a URL. A store that is made in an event loop is closed when that loop ends, or the test."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        self._url, self._options = url, options
        self._open: list[tuple[asyncio.AbstractEventLoop, AsyncGenerator[None, None]]] = []

    def make(self) -> QueueStore:
        store = open_store(self._url, self._options)
        with suppress(RuntimeError):  # there is no loop: it is for the caller's own connections, and has none
            self._open.append((asyncio.get_running_loop(), _begun(_until_closed(store))))
        return store

    def jobs(self) -> Sequence[Job]:
        async def listed(store: QueueStore) -> Sequence[Job]:
            return await store.inspect.list(JobFilter(states=tuple(State), limit=LISTED))

        return sorted(self.ask(listed), key=lambda job: job.id)

    def ask(self, question: Callable[[QueueStore], Awaitable[T]], *, opened: bool = True) -> T:
        """On a loop of its own: also where another runs, which waits meanwhile."""

        async def ask() -> T:
            store = open_store(self._url, self._options)
            try:
                if opened:
                    await store.open()
                return await question(store)
            finally:
                await store.close()

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(lambda: asyncio.run(ask())).result()

    def close(self) -> None:
        """Close what is open on loops that go on."""
        while self._open:
            loop, closing = self._open.pop()
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(_close(closing), loop).result(PATIENCE)
            elif not loop.is_closed():
                loop.run_until_complete(_close(closing))


class Server:
    """A schema of a PostgreSQL database that this process makes with the first test, and drops at its end.

    Processes of pytest-xdist, and other runs, have their own.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._schema = f"{SCHEMA}_{token_hex(6)}"
        self._is_made = False

    @contextmanager
    def emptied(self, options: StoreOptions) -> Iterator[UrlPlace]:
        """For one test."""
        place = UrlPlace(self.url, msgspec.structs.replace(options, schema=self._schema))
        if self._is_made:
            place.ask(self._empty)
        else:
            place.ask(_install, opened=False)
            self._is_made = True
        try:
            yield place
        finally:
            place.close()

    def drop(self) -> None:
        """At the end of the process."""
        if self._is_made:
            UrlPlace(self.url, StoreOptions(schema=self._schema)).ask(lambda store: store.schema.uninstall())

    async def _empty(self, store: QueueStore) -> None:
        async with lent_connection(store) as connection:
            ((tables,),) = await (await connection.execute(TABLES, [self._schema, list(KEPT)])).fetchall()
            await connection.execute(f"truncate {tables} restart identity cascade")


@contextmanager
def in_file(file: Path, options: StoreOptions) -> Iterator[UrlPlace]:
    """A new SQLite file."""
    place = UrlPlace(f"sqlite:///{file}", options)
    place.ask(_install, opened=False)
    try:
        yield place
    finally:
        place.close()


async def _install(store: QueueStore) -> None:
    await store.schema.install()


async def _until_closed(store: QueueStore) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await store.close()


async def _close(closing: AsyncGenerator[None, None]) -> None:
    await closing.aclose()


def _begun(closing: AsyncGenerator[None, None]) -> AsyncGenerator[None, None]:
    """Its first step, which waits for nothing: from now on the loop closes it when it ends (``shutdown_asyncgens``)."""
    with suppress(StopIteration):
        closing.__anext__().send(None)
    return closing
