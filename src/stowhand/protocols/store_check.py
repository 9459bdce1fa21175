"""What a store of a user's own must have: what it lacks is named where it is given."""

from __future__ import annotations

import inspect
import reprlib
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError, a_type
from stowhand.protocols.store import Heartbeats, Store


def check_made(store: object, options: object, kind: type[msgspec.Struct]) -> None:
    """Check the arguments of a worker or a resetter. Raises ConfigurationError."""
    if isinstance(store, type) or not callable(getattr(store, "claim", None)):
        raise ConfigurationError(
            f"store: {reprlib.repr(store)} given; give a store: open_store(url), or a TableStore(url, TableOptions(…))"
        )
    check_store(store, Store, "store")
    if options is not None and not isinstance(options, kind):
        raise ConfigurationError(f"options: {a_type(options)} given; give {kind.__qualname__}(…)")


def check_store(store: object, protocol: type, said: str) -> None:
    """Check a store of a user's. Raises ConfigurationError with all that the protocol has and the store has not."""
    # A property is looked for and not read: it may raise before the store is open.
    absent = [name for name in members(protocol) if not (hasattr(type(store), name) or hasattr(store, name))]
    if absent:
        raise ConfigurationError(
            f"{said}: {type(store).__qualname__} has no {', '.join(absent)}; a store of your own has every member of"
            " stowhand.stores.api.Store, and for an App each part of a queue: see the CHANGELOG,"
            ' "a store\'s calls are in parts"'
        )


def heartbeats_of(store: Store[Any]) -> Heartbeats:
    """The store's heartbeats. Raises ConfigurationError where a method is missing, or blocking instead of ``async``."""
    heartbeats = store.heartbeats()
    for name, expected in members(Heartbeats).items():
        method = getattr(heartbeats, name, None)
        is_async = inspect.iscoroutinefunction(expected)
        if not (inspect.iscoroutinefunction(method) if is_async else callable(method)):
            written = f"async def {name}(…)" if is_async else f"def {name}(…)"
            raise ConfigurationError(
                f"store: the heartbeats of {type(store).__qualname__} have no method '{written}'; every one of"
                " stowhand.stores.api.Heartbeats is needed"
            )
    return heartbeats


def members(protocol: type) -> dict[str, Any]:
    """The public methods and properties of a protocol and of those that it extends, by name."""
    return {name: member for one in reversed(protocol.__mro__) for name, member in vars(one).items() if name[0] != "_"}
