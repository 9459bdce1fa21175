"""Open a store the way a worker does."""

from __future__ import annotations

from stowhand.errors import SchemaMissing
from stowhand.events import Events, Listening
from stowhand.observe.job_logger import core_logger
from stowhand.queue_store import QueueStore


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


def tell_listening(store: QueueStore, events: Events, worker: str) -> None:
    """Let it be an event how it stands with the connection on which the store hears wake-ups."""

    def told(state: str, error: BaseException | None) -> None:
        if events.wants(Listening):
            events.emit(Listening(worker, state, None if error is None else str(error)))

    store.on_listening = told
