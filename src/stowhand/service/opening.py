"""Open a store the way a worker does."""

from __future__ import annotations

from stowhand.errors import SchemaMissing
from stowhand.store import QueueStore


async def open_installed(store: QueueStore) -> None:
    """Open the store; install an absent schema first. An older one is refused: upgrading is ``stowhand migrate``."""
    try:
        await store.open()
    except SchemaMissing:
        await store.install()
        await store.open()
