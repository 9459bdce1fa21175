"""Asynchronous connections that reconnect by themselves: one (`Link`), or a few (`Pool`).

An error closes a connection that it may have left in an unknown state, and the next use connects again. The caller
decides how long to wait before that. Every statement has a deadline, so a server that stops answering counts as lost.

Why not ``psycopg_pool``, which is as fast (borrow and return: 15 us, here 14 us)? It opens connections in background
tasks, which would have no owner here. All its connections share one application name, and it cannot keep one back from
those of the application. An application that has such a pool passes it, and we borrow from it (borrowed_pool.py).
"""

from __future__ import annotations

import asyncio
import os
import re
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.rows import dict_row, tuple_row

from stowhand.clock import SystemClock, stopwatch
from stowhand.errors import ConfigurationError, StoreUnreachable
from stowhand.fork import replace_sockets
from stowhand.stores.database.address import STATEMENT_DEADLINE_SECONDS, Address
from stowhand.stores.database.pool_places import POOL_ADVICE, Places
from stowhand.stores.database.postgres_errors import ends_connection, first_line, is_client_error
from stowhand.stores.database.timestamps import read_timestamps_as_utc

Row = tuple[Any, ...]
DEFAULT_ISOLATION = b"select pg_catalog.current_setting('default_transaction_isolation')"
READ_ONLY = b"""
    select pg_catalog.set_config('transaction_read_only', 'on', true),
           pg_catalog.set_config('statement_timeout', %s, true)
"""
ONE_SNAPSHOT = b"set transaction isolation level repeatable read"
READ_COMMITTED_LEVELS = ("read committed", "read uncommitted")
MAX_ANSWER_SECONDS = STATEMENT_DEADLINE_SECONDS - 1.0
"""Upper bound of a call's own time limit. It is shorter than the deadline of all statements, which asks the server to
cancel the statement and waits for that."""
Values = Sequence[object] | Mapping[str, object]
"""The values of a statement's placeholders: in order, or by name."""
T = TypeVar("T")
_ABSENT_DATABASE = re.compile(r'database "([^"]+)" does not exist')
C = TypeVar("C", bound=psycopg.AsyncConnection[Any])


class Session(Protocol):
    """A connection for our own statements: one of ours, or a borrowed one (borrowed_pool.py)."""

    def reader(self) -> psycopg.AsyncCursor[Row]:
        """Return the cursor for all statements, one after the other; it reads binary."""

    def prepare_setting(self, should_prepare: bool | None) -> bool | None:
        """Return the argument ``prepare`` of ``execute``, where the caller requests ``should_prepare``."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Run several statements in one transaction."""

    @property
    def needs_transaction(self) -> bool:
        """Whether each statement needs a transaction that sets its isolation level or makes it read-only."""

    def single_statement(self) -> AbstractAsyncContextManager[Any]:
        """Surround a single statement with a transaction that is read committed, whatever the server's default."""

    def read_transaction(self, *, one_snapshot: bool = False) -> AbstractAsyncContextManager[Any]:
        """Open a transaction whose statements are sent together, up to the first whose rows are fetched (``fetch``).

        ``one_snapshot``: all of them see the same snapshot.
        """

    async def execute(self, query: bytes) -> object:
        """Run a text without values, which may contain several statements."""


class Connection(psycopg.AsyncConnection[Row]):
    """A psycopg connection with one cursor for all statements, as a new cursor costs more than a short statement."""

    _reader: psycopg.AsyncCursor[Row] | None = None
    needs_transaction = False
    _deadline: float | None = None
    read_timeout_seconds: float | None = None
    """Time limit of each statement, none of which may write; ``None``: statements may write."""

    @contextmanager
    def answering_within(self, seconds: float) -> Iterator[None]:
        """Raise TimeoutError at the limit. A cancelled task would first ask the server to cancel its statement."""
        self._deadline = stopwatch() + seconds
        try:
            yield
        finally:
            self._deadline = None

    async def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        if self._deadline is None:
            return await super().wait(gen, *args, **options)
        try:
            return await super().wait(_with_deadline(gen, self._deadline), *args, **options)
        except _NoAnswer:
            raise TimeoutError("no answer in time") from None

    @asynccontextmanager
    async def single_statement(self) -> AsyncIterator[None]:
        """Send BEGIN, statement and COMMIT in one round trip. Behind a pooler a session setting would not last."""
        if not is_idle(self):
            yield  # inside a transaction that has the right settings
            return
        async with self.read_transaction():
            yield

    @asynccontextmanager
    async def read_transaction(self, *, one_snapshot: bool = False) -> AsyncIterator[None]:
        """Open a transaction whose BEGIN is sent with the first statement."""
        async with self.pipeline(), self.transaction():
            if one_snapshot:
                await self.execute(ONE_SNAPSHOT)
            if self.read_timeout_seconds is not None:
                await self.execute(READ_ONLY, [str(round(self.read_timeout_seconds * 1000))])
            yield

    def reader(self) -> psycopg.AsyncCursor[Row]:
        """Return the cursor; it reads binary."""
        if self._reader is None:
            self._reader = self.cursor(binary=True)
        return self._reader

    def prepare_setting(self, should_prepare: bool | None) -> bool | None:
        """Return the request: on our own connection the caller decides."""
        return should_prepare


class Dialer:
    """Opens connections to one address."""

    def __init__(self, address: Address, prepared: bool = True, read_timeout_seconds: float | None = None) -> None:
        """``read_timeout_seconds``: if not ``None``, connections are read-only and statements have this limit."""
        self.address = address
        self.prepared = prepared
        self._read_timeout_seconds = read_timeout_seconds
        self._needs_transaction: bool | None = None

    async def dial(self, role: str) -> Connection:
        """Open a connection in autocommit. Raise StoreUnreachable, without a password in its message."""
        connection = await self._dial(Connection, role, autocommit=True)
        read_timestamps_as_utc(connection)
        try:
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            if self._needs_transaction is None:  # read it once, on the first connection
                ((level,),) = await rows(connection, DEFAULT_ISOLATION, (), prepare=False)
                self._needs_transaction = level not in READ_COMMITTED_LEVELS
            if self._read_timeout_seconds is not None:
                await connection.set_read_only(True)
        except (psycopg.Error, TimeoutError) as error:
            await disconnect(connection)
            raise self.unreachable(error) from None
        # Behind a pooler a session setting would not last, so each statement is a transaction with its settings.
        connection.needs_transaction = self._needs_transaction or self._read_timeout_seconds is not None
        connection.read_timeout_seconds = self._read_timeout_seconds
        return connection

    async def dial_plain(self, role: str) -> psycopg.AsyncConnection[Row]:
        """Open a plain psycopg connection for an application's own statements. Raise StoreUnreachable."""
        connection = await self._dial(psycopg.AsyncConnection[Row], role, autocommit=False)
        if self._read_timeout_seconds is not None:
            await connection.set_read_only(True)
        return connection

    async def _dial(self, kind: type[C], role: str, *, autocommit: bool) -> C:
        try:
            async with asyncio.timeout(self.address.connect_timeout_seconds):
                connection = await kind.connect(
                    **self.address.parameters(role),
                    autocommit=autocommit,
                    prepare_threshold=5 if self.prepared else None,
                )
        except (psycopg.Error, OSError) as error:
            if is_client_error(error):
                raise ConfigurationError(f"{self.address}: {self.address.scrub(first_line(error))}") from None
            raise self.unreachable(error) from None
        keep_from_children(connection)
        return connection

    def unreachable(self, error: BaseException) -> StoreUnreachable:
        """Return the error for the caller, with advice if the cause is known."""
        message = self.address.scrub(str(error).strip()) or type(error).__name__
        if isinstance(error, TimeoutError):
            message = "no answer in time"
        elif absent := _ABSENT_DATABASE.search(message):
            message += f"; create it: createdb {absent[1]}"
        elif name := self.address.bare_name:
            message += (
                f"\n{name!r} was read as the name of a database; name its server by postgresql://HOST/{name},"
                f" or a file of SQLite by sqlite:///{name}.db"
            )
        return StoreUnreachable(f"{self.address}: {message}")


class Link:
    """One connection for one kind of call. Calls wait for each other; they do not overlap."""

    def __init__(
        self, dialer: Dialer, role: Callable[[], str], adapt: Callable[[psycopg.AsyncCursor[Row]], None] | None = None
    ) -> None:
        """``adapt`` is called with the cursor of each new connection, to register special loaders."""
        self._dialer = dialer
        self._role = role
        self._adapt = adapt
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._was_used = False
        self._idle_timer = IdleTimer(self._close_if_idle)

    @property
    def connected(self) -> bool:
        """Whether a connection is open, as far as this process knows."""
        return self._connection is not None

    async def rows(
        self, statement: bytes, values: Values = (), time_limit: Callable[[], float] | None = None
    ) -> list[Row]:
        """Run one statement in a transaction of its own.

        ``time_limit`` returns the seconds to wait for the answer. It is called once a connection is open, as connecting
        takes time. Raise psycopg's errors, StoreUnreachable, TimeoutError.
        """
        async with self.connection() as connection:
            with (
                nullcontext()
                if time_limit is None
                else connection.answering_within(min(time_limit(), MAX_ANSWER_SECONDS))
            ):
                return await rows(connection, statement, values, prepare=self._dialer.prepared)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Hold the connection for several statements in a row."""
        async with self._lock:
            if self._connection is not None and is_stale(self._connection):
                await self._drop()
            if self._connection is None:
                self._connection = await self._dialer.dial(self._role())
                self._idle_timer.start()
                if self._adapt is not None:
                    self._adapt(self._connection.reader())
            self._was_used = True
            try:
                yield self._connection
            except BaseException as error:
                if not is_usable(self._connection, error):
                    await self._drop()
                raise

    async def close(self) -> None:
        """Close the connection."""
        async with self._lock:
            await self._drop()

    def _close_if_idle(self) -> bool:
        if self._connection is not None and not (self._was_used or self._lock.locked()):
            close_now(self._connection)
            self._connection = None
        self._was_used = False
        return self._connection is not None

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await disconnect(connection)


class Pool:
    """A few connections, opened on demand and closed after a while without use.

    The connections of the application are separate, so its settings do not affect the package's own statements.
    One place is never given to the application (pool_places.py).
    """

    def __init__(self, dialer: Dialer, size: int, name: Callable[[str], str]) -> None:
        self._dialer = dialer
        self._name = name
        self._free_own: list[Connection] = []
        self._free_application: list[psycopg.AsyncConnection[Row]] = []
        """Free connections that the application has used."""
        self._spare = {id(free): 0 for free in (self._free_own, self._free_application)}
        """The number of connections of each list that were not needed since the last idle check."""
        self._idle_timer = IdleTimer(self._close_idle)
        self._places = Places(size)
        self._closed = False

    async def rows(self, role: str, statement: bytes, values: Values = ()) -> list[Row]:
        """Run one statement in a transaction of its own."""
        if self._places.fits(for_application=False):
            return await self._rows_at_once(role, statement, values)
        async with self.connection(role) as connection:
            return await rows(connection, statement, values, prepare=self._dialer.prepared or None)

    async def _rows_at_once(self, role: str, statement: bytes, values: Values) -> list[Row]:
        """Do what ``connection`` does, without its context managers, which cost as much as sending the statement."""
        self._places.enter(for_application=False)
        connection: Connection | None = None
        try:
            connection = await self._take_connection(role, self._free_own, self._free_application, self._dialer.dial)
            return await rows(connection, statement, values, prepare=self._dialer.prepared or None)
        except BaseException as error:
            if connection is not None and not is_usable(connection, error):
                await disconnect(connection)
            raise
        finally:
            if connection is not None:
                await self._put_back(connection, self._free_own)
            self._places.leave(for_application=False)

    @asynccontextmanager
    async def connection(self, role: str) -> AsyncIterator[Session]:
        """Open or reuse a connection. Raise StoreUnreachable if all are in use for too long."""
        async with self._occupy(
            role, self._free_own, self._free_application, self._dialer.dial, for_application=False
        ) as connection:
            yield connection

    @asynccontextmanager
    async def application_connection(self, role: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Give a connection to the application. Commit at the end of the block, or roll back if it raises."""
        async with self._occupy(
            role, self._free_application, self._free_own, self._dialer.dial_plain, for_application=True
        ) as connection:
            connection.row_factory = tuple_row
            await connection.set_autocommit(False)
            yield connection
            await connection.commit()

    def grow(self, size: int) -> None:
        """Raise the number of connections to ``size``."""
        self._places.grow(size)

    async def close(self) -> None:
        """Close the free connections now, and those in use when they are returned."""
        self._closed = True
        for free in (self._free_own, self._free_application):
            while free:
                await disconnect(free.pop())

    @asynccontextmanager
    async def _occupy(
        self,
        role: str,
        free: list[C],
        others: list[Any],
        dial: Callable[[str], Awaitable[C]],
        *,
        for_application: bool,
    ) -> AsyncIterator[C]:
        if self._places.fits(for_application=for_application):
            self._places.enter(for_application=for_application)
        else:
            await self._wait_for_place(for_application=for_application)
        try:
            connection = await self._take_connection(role, free, others, dial)
            try:
                yield connection
            except BaseException as error:
                if not is_usable(connection, error):
                    await disconnect(connection)
                raise
            finally:
                await self._put_back(connection, free)
        finally:
            self._places.leave(for_application=for_application)

    async def _put_back(self, connection: C, free: list[C]) -> None:
        if self._closed:
            await disconnect(connection)
        elif not connection.closed:
            free.append(connection)

    async def _wait_for_place(self, *, for_application: bool) -> None:
        try:
            async with asyncio.timeout(STATEMENT_DEADLINE_SECONDS):
                await self._places.wait(for_application=for_application)
        except TimeoutError:
            if for_application:
                number = f"{self._places.application_size} that tasks may have"
            else:
                number = f"{self._places.size} of the pool"
            raise StoreUnreachable(
                f"{self._dialer.address}: all connections ({number}) are in use, and none became free within"
                f" {STATEMENT_DEADLINE_SECONDS:g} s{POOL_ADVICE}"
            ) from None

    async def _take_connection(
        self,
        role: str,
        free: list[C],
        others: list[Any],
        dial: Callable[[str], Awaitable[C]],
    ) -> C:
        self._closed = False
        while free:
            connection = free.pop()
            self._spare[id(free)] = min(self._spare[id(free)], len(free))
            if not is_stale(connection):
                return connection
            await disconnect(connection)
        if self._places.used + len(others) > self._places.size:  # make room: close a free connection of the other kind
            await disconnect(others.pop())
        connection = await dial(self._name(role))
        self._idle_timer.start()
        return connection

    def _close_idle(self) -> bool:
        """Close connections that were not needed. They are the first of each list, as its last one is used first."""
        for free in (self._free_own, self._free_application):
            spare = min(self._spare[id(free)], len(free))
            for connection in free[:spare]:
                close_now(connection)
            del free[:spare]
            self._spare[id(free)] = len(free)
        return bool(self._free_own or self._free_application or self._places.used)


async def rows(connection: Session, statement: bytes, values: Values = (), prepare: bool | None = None) -> list[Row]:
    """Run one statement with a deadline and return its rows, read as binary."""
    async with asyncio.timeout(STATEMENT_DEADLINE_SECONDS):
        cursor = connection.reader()
        if connection.needs_transaction:
            async with connection.single_statement():
                await cursor.execute(statement, values, prepare=connection.prepare_setting(prepare))
        else:
            await cursor.execute(statement, values, prepare=connection.prepare_setting(prepare))
        return await cursor.fetchall() if cursor.rownumber is not None else []


async def fetch(connection: Session, statement: bytes, values: Values) -> list[Row]:
    """Run one statement inside ``Session.read_transaction`` and return its rows."""
    async with asyncio.timeout(STATEMENT_DEADLINE_SECONDS):
        cursor = connection.reader()
        await cursor.execute(statement, values, prepare=connection.prepare_setting(None))
        return await cursor.fetchall()


async def ask(
    connection: psycopg.AsyncConnection[Any], statement: Any, values: Values | None = None
) -> list[dict[str, Any]]:
    """Run a statement of the application and return its rows, each a dict by column. Raise psycopg's errors.

    ``statement``: text, or an object of ``psycopg.sql``. The list is empty for a statement without rows.
    """
    async with psycopg.AsyncCursor(connection, row_factory=dict_row) as cursor:
        await cursor.execute(statement.encode() if isinstance(statement, str) else statement, values)
        return await cursor.fetchall() if cursor.description is not None else []


class _NoAnswer(Exception):
    """No answer before the deadline. psycopg's generators treat a TimeoutError as a closed socket."""


def _with_deadline(generator: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """Run psycopg's ``generator`` until the deadline. It resumes when the socket is ready or an interval has passed."""
    ready = None
    try:
        while True:
            ready = yield generator.send(ready)
            if not ready and stopwatch() > deadline:
                raise _NoAnswer
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def is_stale(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Return whether the server closed the connection or sent something unrequested, before we send anything."""
    if connection.closed:
        return True
    poll = select.poll()  # unlike ``select``, it accepts descriptors above 1023
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def is_usable(connection: psycopg.AsyncConnection[Any], error: BaseException) -> bool:
    """Return whether the connection may serve the next call after this error."""
    if isinstance(error, asyncio.CancelledError) or ends_connection(error):
        return False
    return is_idle(connection)


def is_idle(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Return whether the connection is open, with no statement or transaction in progress."""
    return not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def disconnect(connection: psycopg.AsyncConnection[Any]) -> None:
    """Close a connection in any state."""
    await connection.close()


_own_connections: WeakSet[psycopg.AsyncConnection[Any]] = WeakSet()


# A forked process inherits its parent's sockets. Anything it sends there, even the message that closes a connection,
# would be part of the parent's session. So the child replaces each socket. Its next use finds the connection closed and
# connects again.


def keep_from_children(connection: psycopg.AsyncConnection[Any]) -> None:
    """Close this connection in forked child processes."""
    _own_connections.add(connection)


def _replace_inherited_sockets() -> None:
    descriptors = []
    for connection in list(_own_connections):
        with suppress(psycopg.Error):  # closed
            descriptors.append(connection.fileno())
    replace_sockets(descriptors)
    _own_connections.clear()


os.register_at_fork(after_in_child=_replace_inherited_sockets)


IDLE_SECONDS = 60.0


class IdleTimer:
    """Calls ``close_idle`` every ``IDLE_SECONDS`` while connections are open.

    ``close_idle`` closes connections that were not used since its last call, and returns whether any is still open.
    """

    def __init__(self, close_idle: Callable[[], bool]) -> None:
        self._close_idle = close_idle
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the timer for a new connection. Repeated calls have no effect."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # a timer of a loop that has ended never fires
            self._loop = loop
            SystemClock().call_later(IDLE_SECONDS, self._run)

    def _run(self) -> None:
        self._loop = None
        if self._close_idle():
            self.start()


def close_now(connection: psycopg.AsyncConnection[Any]) -> None:
    """Close an idle connection, for a caller that cannot await."""
    connection.pgconn.finish()
