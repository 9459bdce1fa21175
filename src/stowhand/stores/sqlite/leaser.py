"""What the heartbeats of the queue and of a user's table share: a connection of their own, and what it was refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stowhand.clock import SystemClock
from stowhand.jobs.lease import JobId
from stowhand.jobs.text import clean
from stowhand.protocols.store import Refusal
from stowhand.stores.database.refused_rows import write_each
from stowhand.stores.database.sqlite_connection import OnConnection, SqliteConnection
from stowhand.stores.database.sqlite_trouble import concerns_call, said
from stowhand.stores.database.sqlite_writable import WriteProbe

K = TypeVar("K", bound=JobId | tuple[JobId, str])
"""A job's id, or that with its token."""
R = TypeVar("R")
X = TypeVar("X", bound=OnConnection)
_CLOCK = SystemClock()


class Leaser(Generic[X]):
    """Used from one other thread, whose loop its calls block."""

    def __init__(self, connection: SqliteConnection[X], probe: WriteProbe | None) -> None:
        self._connection = connection
        self._probe = probe
        self._refused: list[Refusal] = []

    def refused(self) -> Sequence[Refusal]:
        """What the file refused to change since the last call."""
        refused, self._refused = self._refused, []
        return refused

    async def check_writable(self) -> None:
        """Writes, and rolls it back."""
        if self._probe is not None:
            self._probe.look()

    async def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        if self._probe is not None:
            self._probe.close()

    async def _write_each(
        self, doing: str, items: Sequence[K], write: Callable[[X, Sequence[K]], Sequence[R]]
    ) -> tuple[list[R], set[K]]:
        """The answers, and the items that the file refuses (a CHECK, a trigger): these are reported. ``write``: in one
        transaction."""

        async def call(part: Sequence[K]) -> Sequence[R]:
            return self._connection.write(lambda tx: write(tx, part))

        written = await write_each(items, call, _CLOCK, concerns_call, self._connection.retry_pauses)
        for item, error in written.refused:
            job_id = item[0] if isinstance(item, tuple) else item
            self._refused.append(Refusal(job_id, doing, clean(said(error))))
        return written.rows, {item for item, _ in written.refused}
