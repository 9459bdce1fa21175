"""Statements and messages that differ between the queue and a user's table, for the parts that serve both.

A plan decides nothing and opens nothing: it supplies a statement, its values, and the conversion of its rows.
Statements about leases have the same names, values and columns in both files statements.sql, so they need no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import psycopg

from stowhand.errors import InvalidJob, StoreError
from stowhand.jobs.job import State
from stowhand.jobs.lease import JobId, Lease
from stowhand.jobs.lifecycle import Settlement
from stowhand.protocols.store import Reply
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.link import Dialer, Row, Values
from stowhand.stores.verdicts import Entry, Pair

T = TypeVar("T")


class Query(msgspec.Struct, Generic[T], frozen=True):
    """One statement, its values, and the conversion of its rows."""

    statement: bytes
    values: Values
    read: Callable[[Row], T]


class SettlePlan(Protocol):
    """Statements that write settlements."""

    def acceptable(self, entry: Entry) -> str | None:
        """Return why this settlement can never be written here; ``None`` if it can."""

    def is_plain(self, settlement: Settlement) -> bool:
        """Return whether the settlement only completes the job, with no other value."""

    def complete(self, leases: Sequence[Lease]) -> Query[JobId]:
        """Return the query that completes all leases and returns the ids of completed jobs."""

    def settle(self, entries: Sequence[Entry]) -> Query[tuple[Pair, State]]:
        """Return the query that writes the entries and returns their states, without locked rows and lost leases."""

    def look(self, entries: Sequence[Entry]) -> Query[tuple[Pair, Reply | None]]:
        """Return the query for the replies of unwritten entries; a reply is ``None`` if the store does not know it."""


class Context(Protocol):
    """The address of a store, its statements, and the translation of errors."""

    dialer: Dialer
    heartbeat_timeout_seconds: float
    """Seconds that a heartbeat waits for a reply."""

    changed_claim_reason: str
    """The reason for the loss of a renewed lease, for which the statement ``beat`` returns ``moved``."""

    def statement(self, name: str) -> bytes:
        """Return a statement by its name in statements.sql."""

    def values(self, **values: object) -> Mapping[str, object]:
        """Return a statement's parameters, with those of every statement."""

    def leases(self, leases: Sequence[Lease]) -> dict[str, Any]:
        """Return leases as parameters of a statement, for a join on the pair (id, token)."""

    def job_id(self, key: Any) -> JobId:
        """Return the id as in leases. ``key``: the id in a row of a statement."""

    def role(self, role: str) -> str:
        """Return the application_name of a connection."""

    def translated(self) -> AbstractContextManager[None]:
        """Translate the driver's errors inside the block."""


@contextmanager
def translating(translate: Callable[[BaseException], StoreError]) -> Iterator[None]:
    """Translate the driver's errors inside the block.

    Values that the driver cannot send are a mistake of the caller (InvalidJob). Any other refusal of the driver is a
    bug and is raised unchanged, so that no loop repeats the call.
    """
    try:
        yield
    except (psycopg.Error, TimeoutError, UnicodeEncodeError) as error:
        if not postgres_errors.is_client_error(error):
            raise translate(error) from None
        if not postgres_errors.is_about_values(error):
            raise
        raise InvalidJob(f"these values cannot be sent: {postgres_errors.first_line(error)}") from None
