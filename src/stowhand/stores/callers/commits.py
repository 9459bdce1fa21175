"""Hearing of the end of a transaction of SQLAlchemy's, for a store that has no part in it."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event

from stowhand.stores.callers.caller import Held


class Commits:
    """Of one connection: what was enqueued in its transaction, and in which savepoints."""

    def __init__(self) -> None:
        self._held: list[tuple[Held, tuple[str, ...]]] = []

    def add(self, connection: Connection, held: Held) -> None:
        """It is shown at the commit, and forgotten with whatever undoes it."""
        self._held.append((held, _savepoints(connection)))

    def committed(self, *_: Any) -> None:
        """The whole transaction is, in a moment: SQLAlchemy tells of it right before."""
        held, self._held = self._held, []
        for one, _within in held:
            one.show()

    def rolled_back(self, *_: Any) -> None:
        """The whole transaction is."""
        self._held = []

    def undone(self, _: Connection, name: str, context: object) -> None:
        """This savepoint is, with all that was done since."""
        self._held = [(one, within) for one, within in self._held if name not in within]


_KNOWN: WeakKeyDictionary[Connection, Commits] = WeakKeyDictionary()


def commits_of(connection: Connection) -> Commits:
    """It listens from the first time on."""
    found = _KNOWN.get(connection)
    if found is None:
        found = _KNOWN[connection] = Commits()
        event.listen(connection, "commit", found.committed)
        event.listen(connection, "rollback", found.rolled_back)
        event.listen(connection, "rollback_savepoint", found.undone)
    return found


def _savepoints(connection: Connection) -> tuple[str, ...]:
    """The names of those that are open. The event of their begin comes before they have one."""
    names, nested = [], connection.get_nested_transaction()
    while nested is not None:
        names.append(nested._savepoint)  # noqa: SLF001
        nested = nested._previous_nested  # noqa: SLF001
    return tuple(names)
