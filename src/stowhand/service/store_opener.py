"""Opening of a store for a worker."""

from __future__ import annotations

from stowhand.app.settings.settings import StoreSettings
from stowhand.app.start import open_installed, store_at
from stowhand.observe.job_logger import core_logger
from stowhand.protocols.queue_store import QueueStore


def store_of(settings: StoreSettings) -> QueueStore:
    """Return the store of a process, not connected yet. Raises ConfigurationError."""
    if settings.connection.app is not None:
        from stowhand.service.task_loader import load_app

        return load_app(settings.connection.app).any_store()
    return store_at(settings.url, settings.options)


async def open_for_work(store: QueueStore, settings: StoreSettings) -> None:
    """Open an installed store. Warn if the schema and the settings have different default attempts."""
    await open_installed(store)
    if (difference := await attempts_difference(store, settings)) is not None:
        core_logger().warning(f"Attempts: {difference}")


async def attempts_difference(store: QueueStore, settings: StoreSettings) -> str | None:
    """Return a message if the default attempts of jobs made here and of jobs made in SQL differ.

    A preset, a setting or the App sets the former; the schema sets the latter. Return ``None`` if they agree, or if SQL
    enqueues nothing. Raises StoreError.
    """
    own_attempts = settings.options.max_attempts
    if own_attempts is None or settings.connection.scheme != "postgresql":
        return None
    schema_attempts = await store.schema.default_max_attempts()
    if schema_attempts == own_attempts:
        return None
    return (
        f"{own_attempts} for a job that is enqueued with these settings, {schema_attempts} for one that SQL adds, or a"
        f" program without these settings; to change it for all: stowhand migrate --default-attempts {own_attempts}"
    )
