"""The store of an App: its arguments, checked at once, and the stores made of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec

from stowhand.app.options import StoreKeywords, store_options
from stowhand.app.own_store import OBJECT, OwnStore, same_store
from stowhand.app.settings.resolver import read_setting, read_store
from stowhand.app.settings.settings import SETTINGS
from stowhand.app.start import store_at
from stowhand.errors import ConfigurationError, a_type
from stowhand.protocols.queue_store import AnyStore, QueueStore
from stowhand.protocols.store import StoreOptions, check_store
from stowhand.stores.url import MEMORY, open_store, store_url


class AppStore:
    """An App's arguments about its store. Raises ConfigurationError."""

    def __init__(self, url: object, store: object, given: StoreKeywords) -> None:
        if store is not None and (url is not None or given):
            raise ConfigurationError("App: a store is given, and a URL or options to open one; give one of them")
        if url is not None and given.get("pool") is not None:
            raise ConfigurationError("App: a URL and a pool are both given: the database is named by one of them")
        self._options = store_options(given)
        named = None if url is None else _understood(url)
        self.object = None if store is None else checked_store("App", store)
        """Used as it is, on whatever loop; ``None``: each loop has one of its own."""
        if self._options.pool is not None:
            named = _place_of(self._options.pool)
        elif self.object is not None:
            named = _place_of_store(self.object)
        made = self.object is not None or named == MEMORY
        options = {name: getattr(self._options, name) for name in given if name not in ("pool", "preset")}
        if (preset := given.get("preset")) is not None:
            options["preset"] = _preset(preset)
        self.own = OwnStore(url=named, made=made, options=options)
        if made and self.object is None:
            self.object = store_at(*read_store(self.own))
        self._adopted: tuple[str, StoreOptions] | None = None

    @property
    def preset(self) -> str:
        """The preset: that of the App, else of the environment or the file. Raises ConfigurationError."""
        preset: str = read_setting("preset", own=self.own)
        return preset

    def adopt(self, url: str, options: StoreOptions) -> bool:
        """Use the store of this process's worker, unless the App names another. Return whether it is used."""
        ours = self.object is None and (self.own.url is None or same_store(url, self.own.url, os.environ))
        if ours:
            self._adopted = url, options
        return ours

    @property
    def maker_to_read(self) -> Callable[[], QueueStore] | None:
        """Function that makes a store that can only be read; ``None`` if a store object was given."""
        return partial(self.make, read_only=True) if self.object is None else None

    def make(self, *, read_only: bool = False) -> QueueStore:
        """Return a store that is not connected yet, or the object that was given."""
        if self.object is not None:
            return self.object
        url, options = self._adopted or read_store(self.own)
        pool = None if self._adopted else self._options.pool
        options = msgspec.structs.replace(options, pool=pool, read_only=read_only or options.read_only)
        return store_at(url, options) if pool is None else open_store("postgresql://", options)


def _understood(url: object) -> str:
    if isinstance(url, str):
        try:
            return store_url(url)
        except (ConfigurationError, UnicodeError) as error:
            raise ConfigurationError(f"App: {error}") from None
    if isinstance(url, os.PathLike):
        raise ConfigurationError(f"App: a path is given, and a URL is wanted: App('sqlite:///{os.fspath(url)}')")
    instead = "" if callable(getattr(url, "claim", None)) else "App('postgresql:///shop'), or "
    raise ConfigurationError(f"App: {a_type(url)} is given as the URL; write {instead}App(store=…)")


def checked_store(whose: str, store: Any) -> QueueStore:
    """Check a store object. ``whose``: the call that it is an argument of. Raises ConfigurationError."""
    if isinstance(store, str):
        raise ConfigurationError(
            f"{whose}: store= takes a store object; a URL is given without its name: App('…'), or open_store('…')"
        )
    is_store = not isinstance(store, type) and callable(getattr(store, "claim", None))
    if is_store:
        check_store(store, AnyStore, f"{whose}: store")
    if not is_store or store.jobs is None:
        kind = store.__qualname__ if isinstance(store, type) else type(store).__qualname__
        raise ConfigurationError(
            f"{whose}: store= is given {kind}, which keeps no queue of jobs; give open_store(url) or MemoryStore()"
        )
    return cast("QueueStore", store)


def _place_of_store(store: QueueStore) -> str:
    from stowhand.stores.sqlite.queue.memory import MemoryStore

    return MEMORY if isinstance(store, MemoryStore) else f"{OBJECT}:{type(store).__qualname__}"


def _place_of(pool: object) -> str:
    """Return the database of an application's pool as a URL: other processes connect by themselves."""
    from stowhand.stores.database.borrowed_pool import BorrowedPool

    return BorrowedPool(pool, prepared=True).address.url


def _preset(given: str) -> str:
    try:
        name: str = SETTINGS["preset"].read(given)
    except ValueError as error:
        raise ConfigurationError(f"App: preset: {error}") from None
    return name
