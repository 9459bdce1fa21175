"""What ``stowhand worker`` runs: one process by itself, or several under a supervisor."""

from __future__ import annotations

import asyncio

from stowhand.events import Events
from stowhand.observe.listener import LogListener
from stowhand.service import exit_codes
from stowhand.service.crontabs import scheduling
from stowhand.service.loading import LoadedTasks, load_tasks
from stowhand.service.opening import open_installed
from stowhand.service.process import handle_signals, run_process
from stowhand.service.recurring import Recurring
from stowhand.service.reloading import Changes
from stowhand.service.settings import WorkerSettings
from stowhand.service.supervisor import Supervisor
from stowhand.stores import open_store


def run_worker(settings: WorkerSettings) -> int:
    """Work until stopped (or drained, with ``once``). Gives the exit code; raises StowhandError before work began."""
    if settings.schema_only:
        asyncio.run(_install(settings))
        return exit_codes.OK
    if settings.processes == 1:
        return run_process(settings)
    changes = Changes(settings)
    loaded = load_tasks(settings)  # a mistake in them is told here once, not by every child
    return asyncio.run(_supervise(settings, loaded, changes))


async def _install(settings: WorkerSettings) -> None:
    store = open_store(settings.store.url, settings.store.options())
    try:
        await store.install()
    finally:
        await store.close()


async def _supervise(settings: WorkerSettings, loaded: LoadedTasks, changes: Changes) -> int:
    events = Events()
    LogListener(events)
    store = open_store(settings.store.url, settings.store.options())
    try:
        recurring = Recurring(settings, loaded, store, events)
        await open_installed(store)
        supervisor = Supervisor(settings, store.heart, events)
        loop = asyncio.get_running_loop()
        handle_signals(lambda: loop.call_soon_threadsafe(supervisor.wish), recurring.reload)
        async with (
            changes.reloading(crontab=recurring.reload),
            scheduling(recurring.scheduler, once=settings.once),
        ):
            return await supervisor.run()
    finally:
        await store.close()
