"""What the heartbeats of the queue and of a user's table share: a connection of their own, and what it was refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from stowhand.jobs.lease import JobId
from stowhand.jobs.text import clean
from stowhand.protocols.store import Refusal
from stowhand.stores.database.sqlite_connection import OnConnection, SqliteConnection
from stowhand.stores.database.sqlite_savepoint import attempt
from stowhand.stores.database.sqlite_writable import WriteProbe

K = TypeVar("K", bound=JobId | tuple[JobId, str])
"""A job's id, or that with its token."""
X = TypeVar("X", bound=OnConnection)


class Leaser(Generic[X]):
    """Used from one other thread, whose loop its calls block."""

    def __init__(self, connection: SqliteConnection[X], probe: WriteProbe) -> None:
        self._connection = connection
        self._probe = probe
        self._refused: list[Refusal] = []

    def refused(self) -> Sequence[Refusal]:
        """What the file refused to change since the last call."""
        refused, self._refused = self._refused, []
        return refused

    async def check_writable(self) -> None:
        """Writes, and rolls it back."""
        self._probe.look()

    async def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        self._probe.close()

    def _each(self, tx: X, items: Iterable[K], doing: str, write: Callable[[K], object]) -> set[K]:
        """Each under a savepoint: one that the file refuses (a CHECK, a trigger) keeps no other. Returns those."""
        refused: set[K] = set()
        for item in items:
            error = attempt(tx.raw, lambda item=item: write(item))  # type: ignore[misc]
            if error is not None:
                refused.add(item)
                job_id = item[0] if isinstance(item, tuple) else item
                self._refused.append(Refusal(job_id, doing, clean(str(error))))
        return refused
