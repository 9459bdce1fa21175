"""Recurring items of a process, from a crontab file and an App, and their scheduler.

The file is read at the start and again at the signal HUP. An invalid file prevents the start. At a later reading, its
error is reported and the current items stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stowhand.app.settings.settings import WorkerSettings
from stowhand.cron.crontab import refuse_duplicates
from stowhand.cron.item import ParsedItem
from stowhand.cron.scheduler import Scheduler
from stowhand.cron.sources import declared, read_crontab, schedulable
from stowhand.errors import ConfigurationError, suggest
from stowhand.events import CronReloaded, Events
from stowhand.observe.job_logger import core_logger
from stowhand.protocols.queue_store import QueueStore
from stowhand.service.task_loader import DEFAULT_FOLDER, LoadedTasks, check_work

DEFAULT_CRONTAB = "crontab"


class RecurringItems:
    """The items of this process, read and checked, and their scheduler.

    Raises ConfigurationError for an invalid file, or if there is neither an item nor a task.
    """

    def __init__(self, settings: WorkerSettings, loaded: LoadedTasks, store: QueueStore, events: Events) -> None:
        self._events = events
        self._settings = settings
        self._declared_items, self._registry = loaded.cron, loaded.registry
        self._tasks = loaded.claimed(settings)
        self._file_existed = False
        self._store = store
        self.scheduler = Scheduler(store, self._read(), events, on_enqueue=loaded.registry.apply_on_enqueue)
        check_work(settings, loaded, len(self.scheduler.items))

    def reload(self) -> None:
        """Read the file again; keep the current items if it has an error. Called on the scheduler's loop."""
        try:
            items = self._read()
        except ConfigurationError as error:
            self._events.emit(CronReloaded(_names(self.scheduler.items), str(error)))
            return
        self.scheduler.reload(items)
        self._events.emit(CronReloaded(_names(items), None))

    def _read(self) -> tuple[ParsedItem, ...]:
        items = schedulable(
            refuse_duplicates((*self._declared_items, *declared(self._read_file(), self._registry))), self._store
        )
        for item in items:
            if item.task not in self._tasks:
                core_logger().warning(
                    f"{item.position}: no task {item.task!r} here, its jobs wait for a worker that has it"
                    f"{suggest(item.task, self._tasks)}"
                )
        return items

    def _read_file(self) -> tuple[ParsedItem, ...]:
        # Once the default file has been read, its absence is an error: it may be moved away only briefly.
        items = items_in_file(self._settings, must_exist=self._file_existed)
        file = crontab_file(self._settings)
        self._file_existed = self._file_existed or (file is not None and file.exists())
        return items


def items_in_file(settings: WorkerSettings, *, must_exist: bool = False) -> tuple[ParsedItem, ...]:
    """Return the items of the file. Only the default file may be missing. Raises ConfigurationError."""
    file = crontab_file(settings)
    if file is None or not (settings.crontab is not None or must_exist or file.exists()):
        return ()
    return read_crontab(file)


def crontab_file(settings: WorkerSettings) -> Path | None:
    """Return the configured file, else ``crontab`` beside the folder of tasks; ``None`` for an App without a file."""
    if settings.crontab is not None:
        return Path(settings.crontab)
    if settings.app is not None:
        return None
    return Path(settings.tasks or DEFAULT_FOLDER).absolute().parent / DEFAULT_CRONTAB


def _names(items: Sequence[ParsedItem]) -> tuple[str, ...]:
    return tuple(item.identifier for item in items)
