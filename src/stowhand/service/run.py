"""Entry point of ``stowhand worker``: a single process, or several under a supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stowhand.app.settings.settings import WorkerSettings
from stowhand.app.start import open_installed, traced
from stowhand.cron.sources import scheduling
from stowhand.errors import (
    ConfigurationError,
    DuplicateTask,
    SchemaError,
    SchemaMissing,
    StoreUnreachable,
    StowhandError,
)
from stowhand.events import Events
from stowhand.observe.job_logger import core_logger
from stowhand.observe.listener import LogListener
from stowhand.service.process import export_last_spans, export_spans_at_exit, run_process
from stowhand.service.process_observer import ProcessObserver, observe_process
from stowhand.service.recurring_items import RecurringItems, items_in_file
from stowhand.service.reloader import WatchedFiles, check_watch
from stowhand.service.signals import handle_signals, run_until_exit
from stowhand.service.store_opener import store_of
from stowhand.service.supervisor import Supervisor
from stowhand.service.task_loader import LoadedTasks, load_tasks


def run_worker(settings: WorkerSettings) -> int:
    """Work until stopped, or drained with ``once``. Return the exit code. Raises StowhandError before it starts."""
    try:
        if settings.pool_shortage is not None:
            core_logger().warning(settings.pool_shortage)
        return _run(settings)
    except (ConfigurationError, DuplicateTask, StoreUnreachable, SchemaError) as error:
        raise with_other_errors(settings, error) from None


def _run(settings: WorkerSettings) -> int:
    with observe_process(settings) as observer:
        if settings.processes == 1:
            code = run_process(settings, observer=observer)
        else:
            changes = WatchedFiles(settings)
            # Load them here too: an error in them is reported once, and not by every child.
            loaded = load_tasks(settings, may_be_empty=settings.watch)
            export_spans_at_exit(loaded.traces)
            code = asyncio.run(run_until_exit(_supervise(settings, loaded, changes, observer)))
    return export_last_spans(code)


async def _supervise(
    settings: WorkerSettings, loaded: LoadedTasks, changes: WatchedFiles, observer: ProcessObserver
) -> int:
    events = Events()
    LogListener(events)
    observer.listen(events)
    store = traced(store_of(settings.store), loaded.traces)
    try:
        recurring = RecurringItems(settings, loaded, store, events)
        await open_installed(store)
        supervisor = Supervisor(settings, store.heartbeats, events, observer.folder)
        observer.follow(store, scheduler=recurring.scheduler)
        loop = asyncio.get_running_loop()
        stop = observer.on_stop(lambda: loop.call_soon_threadsafe(supervisor.request_stop))
        handle_signals(stop, recurring.reload, supervisor.toggle)
        async with (
            changes.reloading(crontab=recurring.reload),
            scheduling(recurring.scheduler, once=settings.worker.once),
        ):
            with observer.supervising(supervisor):
                return await supervisor.run()
    finally:
        await store.close()


def with_other_errors(settings: WorkerSettings, first_error: StowhandError) -> StowhandError:
    """Return ``first_error``, or an error that also lists all others: one line each, in the order of a start."""
    is_store_error = isinstance(first_error, StoreUnreachable | SchemaError)
    checks: list[Callable[[WorkerSettings], object]] = [_listen, check_watch, _load, items_in_file]
    if str(first_error).startswith(f"{settings.app!r}: "):
        checks.remove(_load)  # another import of half-imported modules would raise other errors
    messages: list[str] = []
    for check in checks if is_store_error else (*checks, _open):
        try:
            check(settings)
        except StowhandError as error:
            messages.append(str(error))
    messages = [*messages, str(first_error)] if is_store_error else [str(first_error), *messages]
    unique_messages = list(dict.fromkeys(messages))
    return ConfigurationError("\n".join(unique_messages)) if len(unique_messages) > 1 else first_error


def _listen(settings: WorkerSettings) -> None:
    if settings.http is not None:
        from stowhand.service.status_server import StatusServer

        StatusServer(settings.http, {}).close()


def _load(settings: WorkerSettings) -> None:
    load_tasks(settings).claimed(settings)


def _open(settings: WorkerSettings) -> None:
    """Open the store as a worker does, but without installing anything."""

    async def open_and_close() -> None:
        store = store_of(settings.store)
        try:
            await store.open()
        except SchemaMissing:
            return
        finally:
            await store.close()

    asyncio.run(open_and_close())
