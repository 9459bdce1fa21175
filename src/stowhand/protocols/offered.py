"""The one place where a part that a store does not offer becomes a clear error."""

from __future__ import annotations

import inspect
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar, cast

from stowhand.errors import ConfigurationError
from stowhand.jobs.job import Job
from stowhand.protocols.notices import Notices
from stowhand.protocols.queue_store import AnyStore, QueueStore
from stowhand.protocols.store import DOING, Heartbeats, Store

P = TypeVar("P")
R = TypeVar("R")


def members(protocol: type) -> dict[str, Any]:
    """The public methods and properties of a protocol and of those that it extends, by name."""
    return {name: member for one in reversed(protocol.__mro__) for name, member in vars(one).items() if name[0] != "_"}


_NEEDED = ("jobs", "inspect", "admin", "operate", "timetable", "schema", "flows")
"""Parts that a queue store has all of."""
_NOT_OFFERED = "this store does not offer it"
_HEARTBEATS = {name: inspect.iscoroutinefunction(method) for name, method in members(Heartbeats).items()}
"""By method: whether it is ``async``."""


def check_store(store: object, protocol: type, said: str) -> None:
    """Check a store of a user's. Raises ConfigurationError with all that the protocol has and the store has not."""
    absent = [name for name in members(protocol) if not _has(store, name)]
    if absent:
        raise ConfigurationError(
            f"{said}: {type(store).__qualname__} has no {', '.join(absent)}; a store of your own has every member of"
            " stowhand.Store, and for an App each part, or None where it does not offer it: see the CHANGELOG,"
            ' "a store\'s calls are in parts"'
        )


def _has(store: object, name: str) -> bool:
    # A property is looked for and not read: it may raise before the store is open.
    with suppress(ConfigurationError):  # raised by a whole store, which has the name
        return hasattr(type(store), name) or hasattr(store, name)
    return True


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
        return cast("QueueStore", store)
    absent = any(getattr(store, name) is None for name in _NEEDED)
    return cast("QueueStore", WholeStore(store) if absent else store)


class WholeStore:
    """Everything is the store's own; ``transactions``, ``settings`` and ``connections`` may be ``None``."""

    def __init__(self, store: AnyStore[Job]) -> None:
        self._store = store
        self.notices = store.notices or Notices()

    def __getattr__(self, name: str) -> Any:
        part = getattr(self._store, name)
        return there(self._store, name, part) if name in _NEEDED else part
