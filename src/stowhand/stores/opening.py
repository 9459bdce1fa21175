"""A store by its URL. Each is imported only when it is asked for."""

from __future__ import annotations

from stowhand.errors import ConfigurationError
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions

SCHEMES = ("postgresql://", "postgres://", "sqlite:///", "https://", "http://")


def open_store(url: str, options: StoreOptions | None = None) -> QueueStore:
    """The store at ``url``, not connected yet: ``await store.open()`` does that. Raises ConfigurationError."""
    options = options or StoreOptions()
    if url.startswith(("postgresql://", "postgres://")):
        try:
            from stowhand.stores.postgres.queue import PostgresStore
        except ImportError as error:
            raise ConfigurationError(f"PostgreSQL needs a driver: pip install 'stowhand[binary]' ({error})") from error
        return PostgresStore(url, options)
    if url.startswith("sqlite:///"):
        from stowhand.stores.sqlite.queue import SqliteStore

        if url.partition("?")[0].endswith(":memory:"):
            raise ConfigurationError(
                f"{url}: for a queue in memory take stowhand.testing.MemoryStore, or App('memory://')"
            )
        return SqliteStore(url.removeprefix("sqlite:///").partition("?")[0], options)
    if url.startswith(("https://", "http://")):
        try:
            from stowhand.remote.client import HttpOptions, HttpStore
        except ImportError as error:
            raise ConfigurationError(
                f"a lent store needs a client: pip install 'stowhand[remote]' ({error})"
            ) from error
        given = HttpOptions(
            token=options.token, ca_file=options.ca_file, insecure=options.insecure, max_attempts=options.max_attempts
        )
        return HttpStore(url, given)
    scheme = url.partition(":")[0]
    raise ConfigurationError(f"no store for {scheme!r}; a store's URL begins with one of: {', '.join(SCHEMES)}")
