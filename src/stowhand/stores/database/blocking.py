"""A blocking connection that comes back by itself, for one thread that is not the loop's.

Its statements have a deadline too. It is kept while psycopg waits for the socket, without any session setting, so it
holds behind a pooler.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import psycopg

from stowhand.clock import stopwatch
from stowhand.errors import StoreUnreachable
from stowhand.stores.database.address import DEADLINE, Address
from stowhand.stores.database.link import DEFAULT_ISOLATION, USUAL_ISOLATIONS
from stowhand.stores.database.timestamps import read_timestamps_as_utc
from stowhand.stores.database.trouble import ends_connection

Row = tuple[Any, ...]
_T = TypeVar("_T")


class BlockingLink:
    """One blocking connection in autocommit. Not for two threads at once."""

    def __init__(self, address: Address, role: Callable[[], str], prepared: bool = True) -> None:
        self._address = address
        self._role = role
        self._prepared = prepared
        self._connection: _Connection | None = None

    def rows(
        self, statement: bytes, values: Sequence[object] | Mapping[str, object] = (), deadline: float = DEADLINE
    ) -> list[Row]:
        """Run one statement in a transaction of its own, in so many seconds at most.

        Raises what psycopg raises, StoreUnreachable, TimeoutError.
        """
        if self._connection is None or self._connection.closed:
            self._connection = self._dial()
        self._connection.deadline = deadline
        try:
            cursor = self._connection.cursor(binary=True)
            with self._connection.alone() if self._connection.begins else nullcontext():
                cursor.execute(statement, values, prepare=self._prepared or None)
            return cursor.fetchall() if cursor.rownumber is not None else []
        except BaseException as error:
            if ends_connection(error) or not isinstance(error, psycopg.Error):
                self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next use makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def unreachable(self, error: BaseException) -> StoreUnreachable:
        """The error that says so to the caller."""
        return StoreUnreachable(f"{self._address}: {self._address.scrub(str(error).strip()) or 'no answer in time'}")

    def _dial(self) -> _Connection:
        parameters = self._address.parameters(self._role())
        try:
            connection = _Connection.connect(
                **parameters, autocommit=True, prepare_threshold=5 if self._prepared else None
            )
        except (psycopg.Error, OSError) as error:
            raise self.unreachable(error) from None
        read_timestamps_as_utc(connection)
        try:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            ((level,),) = connection.execute(DEFAULT_ISOLATION, prepare=False).fetchall()
        except (psycopg.Error, TimeoutError) as error:
            connection.close()
            raise self.unreachable(error) from None
        connection.begins = level not in USUAL_ISOLATIONS
        return connection


class _Connection(psycopg.Connection[Row]):
    """psycopg's, with a deadline on every wait."""

    deadline = DEADLINE
    """Seconds."""
    begins = False
    """As link.Connection has it."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """As link.Connection has it."""
        with self.pipeline(), self.transaction():
            yield

    def wait(self, gen: Generator[Any, Any, _T], *args: Any, **options: Any) -> _T:
        return super().wait(_until(gen, stopwatch() + self.deadline), *args, **options)


def _until(gen: Generator[Any, Any, _T], deadline: float) -> Generator[Any, Any, _T]:
    """``gen``, resumed by psycopg whenever the socket is ready or an interval has passed; but not past the deadline."""
    wanted: Any = None
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and stopwatch() > deadline:
                raise TimeoutError("no answer in time")
            wanted = gen.send(ready)
    except StopIteration as end:
        result: _T = end.value
        return result
