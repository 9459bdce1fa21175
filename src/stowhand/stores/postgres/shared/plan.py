"""What differs between the queue and a user's table, as seen by the parts that serve both: statements and words.

A plan decides nothing and opens nothing: it names the statement, gives its values, and reads its rows. About leases the
statements of both have the same names, values and columns (the two files statements.sql), so they need no plan.
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
    """One statement, its values, and what a row of its answer means."""

    statement: bytes
    values: Values
    read: Callable[[Row], T]


class SettlePlan(Protocol):
    """How settlements are written."""

    def acceptable(self, entry: Entry) -> str | None:
        """Why this settlement cannot be written here, whatever the row is; ``None``: it can."""

    def is_plain(self, settlement: Settlement) -> bool:
        """It only completes the job: nothing else is to be written."""

    def complete(self, leases: Sequence[Lease]) -> Query[JobId]:
        """Complete all of them; the ids of those that are."""

    def settle(self, entries: Sequence[Entry]) -> Query[tuple[Pair, State]]:
        """The state that each was given. A row that another transaction holds, or another lease, has no answer."""

    def look(self, entries: Sequence[Entry]) -> Query[tuple[Pair, Reply | None]]:
        """What became of those without an answer; ``None``: the store does not know."""


class Context(Protocol):
    """Where the store is, its statements, and how its errors are called."""

    dialer: Dialer
    heartbeat_timeout_seconds: float
    """Seconds that a heartbeat waits for an answer."""

    changed_claim_reason: str
    """Why a lease is lost that has just been renewed: the statement ``beat`` says ``moved``."""

    def statement(self, name: str) -> bytes:
        """By its name in statements.sql."""

    def values(self, **values: object) -> Mapping[str, object]:
        """A statement's parameters, and those that are the same for every statement."""

    def leases(self, leases: Sequence[Lease]) -> dict[str, Any]:
        """As parameters of a statement, for a join on the pair (id, token)."""

    def job_id(self, key: Any) -> JobId:
        """The id as leases have it, of what a statement gave."""

    def role(self, role: str) -> str:
        """The application_name of a connection."""

    def translated(self) -> AbstractContextManager[None]:
        """Turns the driver's errors into the package's."""


@contextmanager
def translating(translate: Callable[[BaseException], StoreError]) -> Iterator[None]:
    """Turns the driver's errors into the package's.

    Values that the driver cannot send are a mistake of the caller (InvalidJob). What else it refuses is a bug, and is
    raised unchanged, so that no loop repeats the call.
    """
    try:
        yield
    except (psycopg.Error, TimeoutError, UnicodeEncodeError) as error:
        if not postgres_errors.is_client_error(error):
            raise translate(error) from None
        if not postgres_errors.is_about_values(error):
            raise
        raise InvalidJob(f"these values cannot be sent: {postgres_errors.first_line(error)}") from None
