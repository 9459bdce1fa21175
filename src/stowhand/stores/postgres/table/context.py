"""The state that the parts of this store share: address, shape, statements and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import psycopg

from stowhand.errors import StoreError, StoreRefused, StoreUnreachable, TableUnsuitable
from stowhand.jobs.lease import JobId, Lease
from stowhand.stores.database import postgres_errors
from stowhand.stores.database.address import STATEMENT_DEADLINE_SECONDS, Address
from stowhand.stores.database.borrowed_pool import BorrowedPool
from stowhand.stores.database.link import Dialer, Pool
from stowhand.stores.database.statements import plain_array, text_array, token_array
from stowhand.stores.postgres.shared.plan import translating
from stowhand.stores.postgres.table.composer import Composer
from stowhand.stores.table.arguments import KeyType
from stowhand.stores.table.check import CHANGED_CLAIM
from stowhand.stores.table.claims import AbandonedTokens
from stowhand.stores.table.names import TOKEN_COLUMN, Shape
from stowhand.stores.table.options import TableOptions

POOL_SIZE = 6
"""Connections for calls of users and handlers. Claims, settlements, listening and heartbeats have their own."""


class TableContext:
    """One table in one database, at a URL or at the application's pool."""

    def __init__(
        self, place: str | object, options: TableOptions[Any], shape: Shape, pinned: Callable[[], datetime] | None
    ) -> None:
        self.options = options
        self.shape = shape
        self.pool: Pool | BorrowedPool
        if isinstance(place, str):
            self.address = Address(place)
            # Prepare nothing: there may be a pooler before the database, and the table's owner may alter it.
            self.dialer = Dialer(self.address, prepared=False)
            self.pool = Pool(self.dialer, POOL_SIZE, self.role)
        else:
            self.pool = BorrowedPool(place, prepared=True)
            self.address = self.pool.address
            self.dialer = Dialer(self.address, self.pool.prepared)
        self._database_clock = pinned
        self._options = {
            "task": options.name,
            "stalled": options.stalled,
            "max_resets": options.max_resets,
            "max_attempts": options.max_num_retries + 1,
            "reset_failure_message": options.reset_failure_message,
        }
        self._composer: Composer | None = None
        self._key = KeyType.TEXT
        self.names: tuple[str, ...] = ()
        """The names of a record's columns."""
        self.abandoned = AbandonedTokens(options.stalled)
        self.worker = ""
        """The name of the worker that claims through this store, for the names of its connections."""
        self.changed_claim_reason = CHANGED_CLAIM.format(column=shape.columns["started_at"])
        """The reason for the loss of a renewed lease whose epoch has changed."""
        self.heartbeat_timeout_seconds = min(max(options.stalled / 4, 1.0), STATEMENT_DEADLINE_SECONDS)
        """Seconds that a heartbeat waits for a reply, so that a silently lost connection does not cost a lease."""

    def bind(self, composer: Composer, key: KeyType) -> None:
        """Set the results of reading the catalog, after which statements can be run."""
        self._composer = composer
        self._key = key

    @property
    def key(self) -> KeyType:
        """The type of the id column."""
        return self._key

    @property
    def composer(self) -> Composer:
        """The composer of statements. Raise StoreError before the store is open."""
        if self._composer is None:
            raise StoreError(f"{self}: the store is not open")
        return self._composer

    def statement(self, name: str) -> bytes:
        """Return a statement with a constant text."""
        return self.composer.statements[name]

    def values(self, **values: object) -> Mapping[str, object]:
        """Return a statement's parameters with those of the options, and a test's time or NULL."""
        return self._options | values | {"now": self._database_clock() if self._database_clock is not None else None}

    def leases(self, leases: Sequence[Lease]) -> dict[str, Any]:
        """Return leases as array literals in any order. The statements lock in order of ids."""
        ids = [str(lease.job_id) for lease in leases]
        return {
            "ids": plain_array(ids) if self._key is KeyType.INTEGER else text_array(ids),
            "tokens": token_array([lease.token for lease in leases]),
            "epochs": plain_array([lease.epoch for lease in leases]),
        }

    def job_id(self, key: str) -> JobId:
        """Return the id as in leases. Statements have it as text."""
        return int(key) if self._key is KeyType.INTEGER else key

    def role(self, role: str) -> str:
        """Return the application_name of a connection."""
        name = f"stowhand:{role}:{self.options.name}"
        return f"{name}:{self.worker}" if self.worker else name

    def mark(self, worker: str, token: str) -> str:
        """Return the text that a claim writes into ``worker_hostname``."""
        return worker if TOKEN_COLUMN in self.shape.columns else f"{worker}/{token}"

    def __str__(self) -> str:
        return f"{self.address}, table {self.shape.table.display_name}"

    def translated(self) -> AbstractContextManager[None]:
        """Convert errors of the driver inside the block."""
        return translating(self.translate)

    def translate(self, error: BaseException) -> StoreError:
        """Return our error for an error of the driver."""
        text = self.address.message(error)
        if postgres_errors.is_connection_lost(error) or postgres_errors.is_transient(error):
            return StoreUnreachable(f"{self.address}: {text}")
        if postgres_errors.is_forbidden(error):
            return StoreRefused(f"{self}: {text}: let its owner GRANT SELECT, UPDATE on it")
        if postgres_errors.is_undefined_object(error) or isinstance(error, psycopg.ProgrammingError):
            return TableUnsuitable(f"{self}: {text} (`stowhand table check` says what is missing)")
        return StoreError(f"{self}: {text}")


def mark_of(lease: Lease) -> dict[str, Any]:
    """Return one lease as parameters."""
    return {"id": str(lease.job_id), "token": lease.token, "epoch": lease.epoch}
