"""The store of an App: its arguments, which are checked when the App is created, and the stores made from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec

from stowhand.app.options import StoreKeywords, store_options
from stowhand.app.own_store import OBJECT_SCHEME, DatabaseUrl, OwnStore, same_store
from stowhand.app.settings.resolver import read_setting, read_store
from stowhand.app.settings.settings import SETTINGS
from stowhand.app.start import store_at
from stowhand.errors import ConfigurationError, a_type
from stowhand.protocols.queue_store import AnyStore, QueueStore
from stowhand.protocols.store import StoreOptions, check_store
from stowhand.stores.url import MEMORY_URL, open_store, store_url


class AppStore:
    """An App's arguments about its store, and the maker of its stores.

    An App names its store by a URL, an object or a connection pool. Otherwise the environment or the settings file
    names it.
    """

    def __init__(self, url: object, store: object, keywords: StoreKeywords) -> None:
        """Check the arguments. Raises ConfigurationError if they are invalid or exclude each other."""
        if store is not None and (url is not None or keywords):
            raise ConfigurationError("App: store excludes a URL and options of a store; use one or the other")
        if url is not None and keywords.get("pool") is not None:
            raise ConfigurationError("App: a URL and a pool are both given; use one of them")
        self._options = store_options(keywords)
        self._database_url = url if isinstance(url, DatabaseUrl) else None
        own_url = None if url is None else _read_url(url)
        self.object = None if store is None else checked_store("App", store)
        """Store object for all event loops; ``None`` if each loop has its own store."""
        if self._options.pool is not None:
            own_url = _url_of_pool(self._options.pool)
        elif self.object is not None:
            own_url = _url_of_store(self.object)
        is_object = self.object is not None or own_url == MEMORY_URL
        # These are only the options that the App names, because others may come from the environment.
        options = {name: getattr(self._options, name) for name in keywords if name not in ("pool", "preset")}
        preset = keywords.get("preset")
        if preset is not None:
            options["preset"] = _read_preset(preset)
        alias = None if self._database_url is None else self._database_url.alias
        self._own = OwnStore(url=own_url, alias=alias, made=is_object, options=options)
        if is_object and self.object is None:
            # In memory, each store has jobs of its own. So all loops share one.
            memory_url, memory_options = read_store(self.own)
            self.object = store_at(memory_url, memory_options)
        self._adopted: tuple[str, StoreOptions] | None = None
        """URL and options of the store of this process's worker, if the App uses it."""

    @property
    def own(self) -> OwnStore:
        """The arguments, as the settings of a worker process read them."""
        if self._database_url is None:
            return self._own
        return msgspec.structs.replace(self._own, url=self._database_url.read())

    @property
    def preset(self) -> str:
        """The preset of the App, or else of the environment or the settings file. Raises ConfigurationError."""
        preset: str = read_setting("preset", own=self.own)
        return preset

    def adopt(self, url: str, options: StoreOptions) -> bool:
        """Use the store of this process's worker, unless the App names another. Return whether it is used."""
        if self.object is not None:
            return False
        if self.own.url is not None and not same_store(url, self.own.url, os.environ):
            return False
        self._adopted = url, options
        return True

    @property
    def maker_to_read(self) -> Callable[[], QueueStore] | None:
        """Function that makes a read-only store; ``None`` if the App has a store object."""
        return partial(self.make, read_only=True) if self.object is None else None

    def make(self, *, read_only: bool = False) -> QueueStore:
        """Return a store that is not connected yet, or the App's store object. Raises ConfigurationError."""
        if self.object is not None:
            return self.object
        if self._adopted is not None:
            url, options = self._adopted
            pool = None
        else:
            url, options = read_store(self.own)
            pool = self._options.pool
        options = msgspec.structs.replace(options, pool=pool, read_only=read_only or options.read_only)
        if pool is None:
            return store_at(url, options)
        return open_store("postgresql://", options)  # The pool determines the database, not the URL.


def _read_url(url: object) -> str:
    """Return the App's first argument as the URL of a store. Raises ConfigurationError."""
    if isinstance(url, DatabaseUrl):
        return str(url)
    if isinstance(url, str):
        try:
            return store_url(url)
        except (ConfigurationError, UnicodeError) as error:
            raise ConfigurationError(f"App: {error}") from None
    if isinstance(url, os.PathLike):
        raise ConfigurationError(f"App: got a path; use a URL: App('sqlite:///{os.fspath(url)}')")
    example = "" if callable(getattr(url, "claim", None)) else "App('postgresql:///shop'), or "
    raise ConfigurationError(f"App: got {a_type(url)} as the URL; write {example}App(store=…)")


def checked_store(caller: str, store: Any) -> QueueStore:
    """Return a store object, if it is a store of jobs. Raises ConfigurationError.

    ``caller``: the name of the call that takes it, for the message.
    """
    if isinstance(store, str):
        raise ConfigurationError(
            f"{caller}: store= takes a store object, not a URL; write App('…'), or open_store('…')"
        )
    is_store = not isinstance(store, type) and callable(getattr(store, "claim", None))
    if is_store:
        check_store(store, AnyStore, f"{caller}: store")
    if not is_store or store.jobs is None:
        kind = store.__qualname__ if isinstance(store, type) else type(store).__qualname__
        raise ConfigurationError(f"{caller}: store={kind} is not a store of jobs; use open_store(url) or MemoryStore()")
    return cast("QueueStore", store)


def _url_of_store(store: QueueStore) -> str:
    """Return a URL that names the kind of a store object."""
    from stowhand.stores.sqlite.queue.memory import MemoryStore

    return MEMORY_URL if isinstance(store, MemoryStore) else f"{OBJECT_SCHEME}:{type(store).__qualname__}"


def _url_of_pool(pool: object) -> str:
    """Return the URL of a pool's database. Other processes use it, because they cannot share the pool."""
    from stowhand.stores.database.borrowed_pool import BorrowedPool

    return BorrowedPool(pool, prepared=True).address.url


def _read_preset(preset: str) -> str:
    try:
        name: str = SETTINGS["preset"].read(preset)
    except ValueError as error:
        raise ConfigurationError(f"App: preset: {error}") from None
    return name
