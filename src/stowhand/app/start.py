"""The start of a worker in any process: its store, its events, its log, and warnings."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from stowhand.app.presets import SERVICE_PRESET
from stowhand.errors import ConfigurationError, SchemaMissing, StoreError, suggest
from stowhand.events import Events, Listening, StoreWarning
from stowhand.jobs.durations import format_duration
from stowhand.jobs.job import Job
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.observe.job_logger import core_logger, job_logger
from stowhand.observe.safe_text import escape
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import MEMORY_URL, open_store
from stowhand.tasks.registry import Registry, TaskDefinition

if TYPE_CHECKING:
    from stowhand.observe.traces import Traces

MAX_TASKS_LISTED = 5
MAX_LONG_TASKS_LISTED = 20
"""Maximum number of tasks in one line."""
HINT_TIMEOUT_SECONDS = 1.0
"""Time that the start of a worker waits for a hint, because an application may hold all connections of its pool."""


def store_at(url: str, options: StoreOptions) -> QueueStore:
    """Return the store at a URL, like ``open_store``; the URL may be ``memory://``."""
    if url == MEMORY_URL:
        if options.read_only:
            raise ConfigurationError("read_only: a store in memory serves its own process only; leave it out")
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
        return  # the server maintains its schema
    status = await store.schema.status()
    if status.installed is not None and status.installed > status.expected:
        core_logger().warning(
            f"The schema has version {status.installed}, newer than version {status.expected} of this program."
            " It is compatible; upgrade this program soon."
        )


async def warn_of_tasks_without_worker(store: QueueStore, tasks: Collection[str] | None) -> None:
    """Log which tasks have due jobs that neither a live worker nor this one, with ``tasks``, will run."""
    if store.capabilities.lent or tasks is None:
        return
    try:
        async with asyncio.timeout(HINT_TIMEOUT_SECONDS):
            rows = await store.inspect.tasks()
    except (StoreError, TimeoutError):
        return  # this login may not read; the worker reports an unreachable store
    unserved = [f"{escape(row.name)} ({row.due})" for row in rows if row.is_unserved and row.name not in tasks]
    if unserved:
        more = f" and {len(unserved) - MAX_TASKS_LISTED} more" if len(unserved) > MAX_TASKS_LISTED else ""
        core_logger().warning(
            f"Due jobs of tasks that no worker has: {', '.join(unserved[:MAX_TASKS_LISTED])}{more};"
            " start a worker that has these tasks (--app, --tasks, --task), or correct the names"
        )


async def warn_of_unknown_queues(store: QueueStore, registry: Registry, options: WorkerOptions) -> None:
    """Log the queues that a worker names although none of its tasks declares them and no job is in them."""
    known = {DEFAULT_QUEUE, *registry.queues().values()}
    queues = {*(options.queues or ()), *options.exclude_queues}
    if not queues <= known and not store.capabilities.lent:
        known |= await _queues_in_use(store)
    for name in sorted(queues - known):
        core_logger().warning(f"No task declares the queue {escape(name)!r}, and no job is in it{suggest(name, known)}")


async def _queues_in_use(store: QueueStore) -> set[str]:
    try:
        async with asyncio.timeout(HINT_TIMEOUT_SECONDS):
            rows = await store.inspect.queues()
    except (StoreError, TimeoutError):
        return set()  # this login may not read; the worker reports an unreachable store
    return {
        row.name for row in rows if row.paused_since or row.waiting.number or row.running.number or row.failed.number
    }


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
    store.notices.on_warning(lambda warning, fix: events.emit(StoreWarning(description, warning, fix)))


def report_worker_error(worker_task: asyncio.Task[None]) -> None:
    """Call the loop's exception handler if an embedded worker failed."""
    if not worker_task.cancelled() and (error := worker_task.exception()) is not None:
        worker_task.get_loop().call_exception_handler(
            {"message": "stowhand: the embedded worker failed", "exception": error, "task": worker_task}
        )


def attempt_logger(job: Job) -> Any:
    """Return the logger of one attempt."""
    return job_logger(job.worker or "worker", job.task, job.id, job.attempts)


def logging_events() -> Events:
    """Return events with a listener that writes the log."""
    from stowhand.observe.listener import LogListener

    events = Events()
    LogListener(events)
    return events


def reserve_connections(store: QueueStore, slots: int) -> None:
    """Reserve a connection of the store per slot; warn if the pool is too small. Raises ConfigurationError."""
    if store.connections is not None and (shortage := store.connections.seat(slots)) is not None:
        core_logger().warning(shortage)


def traced(store: QueueStore, traces: Traces | None) -> QueueStore:
    """Return the store. With ``traces``, its enqueue calls make spans."""
    return store if traces is None else traces.store(store)


def traced_events(events: Events | None, traces: Traces | None) -> Events:
    """Return the events, or new ones that log. With ``traces``, attempts of their workers make spans."""
    events = events or logging_events()
    return events if traces is None else traces.of(events)


def warn_of_long_tasks(tasks: Iterable[TaskDefinition], preset: str, grace: float, option: str) -> None:
    """Warn at the start of a worker with the preset ``service``, whose stop lets all jobs finish.

    ``stowhand doctor`` reports the same for other presets.
    """
    if preset == SERVICE_PRESET and (warning := grace_warning(tasks, grace, option)) is not None:
        core_logger().warning(warning)


def grace_warning(tasks: Iterable[TaskDefinition], grace: float, option: str) -> str | None:
    """Return a warning about tasks whose timeout is longer than the grace; ``None`` if there are none.

    ``option``: the name of the grace in the message.
    """
    long_tasks = [task for task in tasks if task.timeout is not None and task.timeout > grace]
    if not long_tasks:
        return None
    listed = ", ".join(
        f"{escape(task.name)} ({format_duration(task.timeout or 0.0)})" for task in long_tasks[:MAX_LONG_TASKS_LISTED]
    )
    more = f" and {len(long_tasks) - MAX_LONG_TASKS_LISTED} more" if len(long_tasks) > MAX_LONG_TASKS_LISTED else ""
    return (
        f"When the worker stops, running jobs have {format_duration(grace)} to finish ({option}). Jobs of tasks that"
        f" may take longer are then returned to the queue and run again: {listed}{more}"
    )
