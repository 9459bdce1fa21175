"""The one place where a part that a store does not offer becomes a clear error."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job
from stowhand.protocols.flow_tables import FlowTables
from stowhand.protocols.notices import Notices
from stowhand.protocols.operating import Operator
from stowhand.protocols.queue_store import Administrator, AnyStore, Inspector, Producer, QueueStore, Schema, Timetable
from stowhand.protocols.store import Terms

P = TypeVar("P")
R = TypeVar("R")

DOING = {
    "jobs": "enqueueing jobs, and looking at one",
    "transactions": "enqueueing inside a transaction of yours",
    "inspect": "looking at jobs",
    "admin": "acting on jobs",
    "operate": "pausing and purging",
    "timetable": "scheduling recurring jobs (a crontab)",
    "schema": "installing and examining a schema",
    "settings": "a default for jobs that SQL enqueues",
    "connections": "lending a connection",
    "flows": "working on a flow",
    "notices": "reporting what it hears",
}
"""By part: what is asked for."""


def there(store: AnyStore[R], name: str, part: P | None) -> P:
    """The part of this name. Raises ConfigurationError where it is ``None``."""
    if part is None:
        raise ConfigurationError(f"{DOING[name]}: {store.capabilities.absent[name]}")
    return part


def lent_connection(store: AnyStore[R]) -> AbstractAsyncContextManager[Any]:
    """A connection for statements of a task's own. Raises ConfigurationError where the store lends none."""
    return there(store, "connections", store.connections).connection()


def whole(store: AnyStore[Job]) -> QueueStore:
    """As a queue store: the store itself, or one whose absent parts raise ConfigurationError when they are used."""
    parts = (store.jobs, store.inspect, store.admin, store.operate, store.timetable, store.schema, store.flows)
    return WholeStore(store) if any(part is None for part in parts) else cast("QueueStore", store)


class WholeStore:
    """Everything is the store's own; ``transactions``, ``settings`` and ``connections`` may be ``None``."""

    def __init__(self, store: AnyStore[Job]) -> None:
        self._store = store
        self.open, self.close, self.claim, self.settle = store.open, store.close, store.claim, store.settle
        self.next_due, self.foreign, self.wait = store.next_due, store.foreign, store.wait
        self.heartbeats = store.heartbeats
        self.capabilities, self.enclosing = store.capabilities, store.enclosing
        self.description = store.description
        self.transactions, self.settings, self.connections = store.transactions, store.settings, store.connections
        self.notices = store.notices or Notices()

    @property
    def terms(self) -> Terms | None:
        return self._store.terms

    @property
    def is_listening(self) -> bool:
        return self._store.is_listening

    @property
    def jobs(self) -> Producer:
        return there(self._store, "jobs", self._store.jobs)

    @property
    def inspect(self) -> Inspector:
        return there(self._store, "inspect", self._store.inspect)

    @property
    def admin(self) -> Administrator:
        return there(self._store, "admin", self._store.admin)

    @property
    def operate(self) -> Operator:
        return there(self._store, "operate", self._store.operate)

    @property
    def timetable(self) -> Timetable:
        return there(self._store, "timetable", self._store.timetable)

    @property
    def schema(self) -> Schema:
        return there(self._store, "schema", self._store.schema)

    @property
    def flows(self) -> FlowTables:
        return there(self._store, "flows", self._store.flows)
