"""Open a store the way a worker does."""

from __future__ import annotations

from stowhand.errors import SchemaMissing
from stowhand.events import Events, Listening, StoreWarned
from stowhand.observe.job_logger import core_logger
from stowhand.queue_store import QueueStore
from stowhand.service.settings import StoreSettings
from stowhand.service.store_url import MEMORY
from stowhand.store import StoreOptions
from stowhand.stores import open_store


def store_of(settings: StoreSettings) -> QueueStore:
    """The store of a process, not connected yet. Raises ConfigurationError."""
    if settings.connection.app is not None:
        from stowhand.service.loading import load_app

        return load_app(settings.connection.app).any_store()
    return store_at(settings.url, settings.options())


def store_at(url: str, options: StoreOptions) -> QueueStore:
    """As ``open_store``; and ``memory://``, for trying out and for tests."""
    if url == MEMORY:
        from stowhand.testing.memory import MemoryStore

        return MemoryStore(options=options)
    return open_store(url, options)


async def open_installed(store: QueueStore) -> None:
    """Open the store; install an absent schema first. An older one is refused: upgrading is ``stowhand migrate``."""
    try:
        await store.open()
    except SchemaMissing:
        await store.install()
        await store.open()
    status = await store.status()
    if status.installed is not None and status.installed > status.expected:
        core_logger().warning(
            f"The schema is at {status.installed}, newer than the {status.expected} that this version knows."
            " It still fits; upgrade this program soon."
        )


async def open_to_work(store: QueueStore, settings: StoreSettings) -> None:
    """As ``open_installed``; and say what the settings of this process do not reach."""
    await open_installed(store)
    if (said := await attempts_apart(store, settings)) is not None:
        core_logger().warning(f"Attempts: {said}")


async def attempts_apart(store: QueueStore, settings: StoreSettings) -> str | None:
    """What to say where a preset, a setting or the App gives jobs made here another number of attempts than the schema
    gives those made in SQL, which they cannot reach; ``None``: they agree, or SQL enqueues nothing. Raises StoreError.
    """
    here = settings.max_attempts
    if here is None or settings.connection.scheme != "postgresql":
        return None
    kept = await store.default_max_attempts()
    if kept == here:
        return None
    return (
        f"{here} for a job that is enqueued with these settings, {kept} for one that SQL adds, or a program"
        f" without them; for all: stowhand migrate --default-attempts {here}"
    )


def tell_listening(store: QueueStore, events: Events, worker: str) -> None:
    """Let it be an event how it stands with the connection on which the store hears wake-ups, and what it warns of."""

    def told(state: str, error: BaseException | None) -> None:
        if events.wants(Listening):
            events.emit(Listening(worker, state, None if error is None else str(error)))

    store.on_listening = told
    tell_warnings(store, events)


def tell_warnings(store: QueueStore, events: Events) -> None:
    """Let it be an event what a person should know of the store."""
    store.on_warning = lambda warning, mend: events.emit(StoreWarned(store.description, warning, mend))
