"""The one place where a part that a store does not offer becomes a clear error."""

from __future__ import annotations

import inspect
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job
from stowhand.protocols.flow_tables import FlowTables
from stowhand.protocols.handler import EnclosingStore
from stowhand.protocols.notices import Notices
from stowhand.protocols.operating import Operator
from stowhand.protocols.queue_store import (
    Administrator,
    AnyStore,
    Connections,
    FailureGroups,
    Inspector,
    Producer,
    QueueStore,
    Schema,
    Settings,
    Timetable,
    Transactions,
)
from stowhand.protocols.results import Results
from stowhand.protocols.store import DOING, Capabilities, Heartbeats, Store, Terms

P = TypeVar("P")
R = TypeVar("R")


def members(protocol: type) -> dict[str, Any]:
    """The public methods and properties of a protocol and of those that it extends, by name."""
    return {name: member for one in reversed(protocol.__mro__) for name, member in vars(one).items() if name[0] != "_"}


_NOT_OFFERED = "this store does not offer it"
_HEARTBEATS = {name: inspect.iscoroutinefunction(method) for name, method in members(Heartbeats).items()}
"""By method: whether it is ``async``."""


def check_store(store: object, protocol: type, said: str) -> None:
    """Check a store of a user's. Raises ConfigurationError with all that the protocol has and the store has not."""
    # A property is looked for and not read: it may raise before the store is open.
    absent = [name for name in members(protocol) if not (hasattr(type(store), name) or hasattr(store, name))]
    if absent:
        raise ConfigurationError(
            f"{said}: {type(store).__qualname__} has no {', '.join(absent)}; a store of your own has every member of"
            " stowhand.Store, and for an App each part, or None where it does not offer it: see the CHANGELOG,"
            ' "a store\'s calls are in parts"'
        )


def heartbeats_of(store: Store[Any]) -> Heartbeats:
    """The store's heartbeats. Raises ConfigurationError where a method is missing, or blocking instead of ``async``."""
    heartbeats = store.heartbeats()
    for name, is_async in _HEARTBEATS.items():
        method = getattr(heartbeats, name, None)
        if not (inspect.iscoroutinefunction(method) if is_async else callable(method)):
            raise ConfigurationError(
                f"store: the heartbeats of {type(store).__qualname__} have no method"
                f" '{'async ' * is_async}def {name}(…)'; every one of stowhand.Heartbeats is needed"
            )
    return heartbeats


def there(store: AnyStore[R], name: str, part: P | None) -> P:
    """The part of this name. Raises ConfigurationError where it is ``None``."""
    if part is None:
        raise ConfigurationError(f"{DOING[name]}: {store.capabilities.absent.get(name, _NOT_OFFERED)}")
    return part


def lent_connection(store: AnyStore[R]) -> AbstractAsyncContextManager[Any]:
    """A connection for statements of a task's own. Raises ConfigurationError where the store lends none."""
    return there(store, "connections", store.connections).connection()


def whole(store: AnyStore[Job]) -> QueueStore:
    """As a queue store: the store itself, or one whose absent parts raise ConfigurationError when they are used."""
    if isinstance(store, WholeStore):
        return store
    parts = (store.jobs, store.inspect, store.admin, store.operate, store.timetable, store.schema, store.flows)
    return WholeStore(store) if any(part is None for part in parts) else cast("QueueStore", store)


def failure_groups(store: QueueStore) -> FailureGroups:
    """What groups failed jobs. Raises ConfigurationError where the store has nothing for it."""
    return store.jobs if isinstance(store.jobs, FailureGroups) else store.inspect


class WholeStore:
    """Everything is the store's own; ``transactions``, ``settings``, ``connections``, ``results`` may be ``None``."""

    def __init__(self, store: AnyStore[Job]) -> None:
        self._store = store
        self.open, self.close, self.claim, self.settle = store.open, store.close, store.claim, store.settle
        self.next_due, self.foreign, self.wait = store.next_due, store.foreign, store.wait
        self.heartbeats = store.heartbeats
        self.notices = store.notices or Notices()

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    @property
    def enclosing(self) -> EnclosingStore | None:
        return self._store.enclosing

    @property
    def description(self) -> str:
        return self._store.description

    @property
    def transactions(self) -> Transactions | None:
        return self._store.transactions

    @property
    def settings(self) -> Settings | None:
        return self._store.settings

    @property
    def connections(self) -> Connections | None:
        return self._store.connections

    @property
    def results(self) -> Results | None:
        return self._store.results

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
