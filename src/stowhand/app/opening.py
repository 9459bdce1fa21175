"""Opening a store the way a worker does, and its warnings and its listening as events."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from stowhand.errors import SchemaMissing, StoreError
from stowhand.events import Events, Listening, StoreWarned
from stowhand.observe.job_logger import core_logger
from stowhand.observe.safe_text import escape
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.stores.opening import open_store
from stowhand.stores.url import MEMORY

SHOWN_TASKS = 5
HINT_SECONDS = 1.0
"""How long the start of a worker waits for a hint: an application may hold every connection of its pool."""


def store_at(url: str, options: StoreOptions) -> QueueStore:
    """As ``open_store``; and ``memory://``, for trying out and for tests."""
    if url == MEMORY:
        from stowhand.stores.sqlite.queue.memory import MemoryStore

        return MemoryStore(options=options)
    return open_store(url, options)


async def open_installed(store: QueueStore) -> None:
    """Open the store; install an absent schema first. An older one is refused: upgrading is ``stowhand migrate``."""
    try:
        await store.open()
    except SchemaMissing:
        await store.schema.install()
        await store.open()
    if store.capabilities.lent:
        return  # the server looks after its schema
    status = await store.schema.status()
    if status.installed is not None and status.installed > status.expected:
        core_logger().warning(
            f"The schema is at {status.installed}, newer than the {status.expected} that this version knows."
            " It still fits; upgrade this program soon."
        )


async def warn_of_tasks_without_worker(store: QueueStore, tasks: Collection[str] | None) -> None:
    """Log which tasks have due jobs that neither a live worker nor this one, with ``tasks``, will run."""
    if store.capabilities.lent or tasks is None:
        return
    try:
        async with asyncio.timeout(HINT_SECONDS):
            rows = await store.inspect.tasks()
    except (StoreError, TimeoutError):
        return  # this login may not look; a store that is away is reported by the worker
    left = [f"{escape(row.name)} ({row.due})" for row in rows if row.is_orphaned and row.name not in tasks]
    if left:
        more = f" and {len(left) - SHOWN_TASKS} more" if len(left) > SHOWN_TASKS else ""
        core_logger().warning(
            f"Jobs are due of tasks that no worker has: {', '.join(left[:SHOWN_TASKS])}{more}; start a worker that has"
            " them (--app, --tasks, --group), or correct their names"
        )


def report_listening(store: QueueStore, events: Events, worker: str) -> None:
    """Emit an event when the store's listening connection changes its state, and when the store warns."""

    def emit(state: str, error: BaseException | None, _: object) -> None:
        if events.wants(Listening):
            events.emit(Listening(worker, state, None if error is None else str(error)))

    store.notices.on_listening(emit)
    report_warnings(store, events)


def report_warnings(store: QueueStore, events: Events) -> None:
    """Emit an event when the store warns."""
    description = store.description
    store.notices.on_warning(lambda warning, mend: events.emit(StoreWarned(description, warning, mend)))
