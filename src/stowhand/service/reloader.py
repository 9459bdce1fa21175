"""``--watch``: reload a worker's folder of tasks when it changes, while the worker keeps running.

Running jobs finish with the code they started with; later jobs use the new code. If the folder cannot be loaded, the
old tasks stay and the error is logged.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from stowhand.app.settings.settings import WorkerSettings
from stowhand.errors import ConfigurationError, StowhandError
from stowhand.events import Events, TasksReloaded
from stowhand.service.file_watch import OnChange, WatchedPath, watch_paths
from stowhand.service.recurring_items import crontab_file
from stowhand.service.task_loader import DEFAULT_FOLDER, LoadedTasks, load_tasks, report_problems
from stowhand.tasks.discovery import MODULE_PREFIX, forget
from stowhand.tasks.dispatch import TaskHandler
from stowhand.worker.worker import Worker


def check_watch(settings: WorkerSettings) -> None:
    """Raise ConfigurationError if the settings request watching where it is not possible."""
    if settings.watch and settings.app is not None:
        raise ConfigurationError("--watch reloads a folder of tasks; the modules of an App (--app) are not reloaded")


class WatchedFiles:
    """The watched files with their current state, if the settings request watching.

    Make this before loading anything, so that no change is missed. Raises ConfigurationError where watching is not
    possible.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        check_watch(settings)
        file = crontab_file(settings)
        self._tasks = WatchedPath(_folder(settings)) if settings.watch else None
        self._crontab = WatchedPath(file) if settings.watch and file is not None else None

    @asynccontextmanager
    async def reloading(
        self, tasks: Callable[[], Awaitable[None]] | None = None, crontab: Callable[[], None] | None = None
    ) -> AsyncIterator[None]:
        """Call the functions when the files that they load change, while the block runs."""
        watched: dict[WatchedPath, OnChange] = {}
        if self._tasks is not None and tasks is not None:
            watched[self._tasks] = lambda names: tasks()
        if self._crontab is not None and crontab is not None:
            watched[self._crontab] = lambda names: crontab()
        async with watch_paths(watched):
            yield


class Reloader:
    """Reloader of the folder of tasks. ``loaded``: the tasks at the start."""

    def __init__(
        self, settings: WorkerSettings, loaded: LoadedTasks, handler: TaskHandler, worker: Worker, events: Events
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._worker = worker
        self._events = events
        self._loads = [loaded.load]
        self._names = loaded.names

    async def reload(self) -> None:
        """Load the folder again. Called on the worker's loop, between two steps of its handlers."""
        _forget_helpers(_folder(self._settings).resolve())
        try:
            loaded = load_tasks(self._settings)
            claimed = loaded.claimed(self._settings)
        except Exception as error:  # noqa: BLE001 - boundary: any error is reported, and the worker goes on
            self._events.emit(TasksReloaded(self._worker.id, self._names, str(error) or type(error).__name__))
            return
        try:
            await self._open(loaded, claimed)
        except StowhandError as error:
            self._events.emit(TasksReloaded(self._worker.id, self._names, str(error)))
            return
        self._names = loaded.names
        self._handler.replace(loaded.registry)
        self._worker.controls.set_tasks(claimed)
        self._events.emit(TasksReloaded(self._worker.id, loaded.names, None))
        report_problems(loaded, self._settings)
        self._forget_old_loads(loaded.load)

    async def _open(self, loaded: LoadedTasks, claimed: tuple[str, ...]) -> None:
        """Open the resources of the claimed tasks. Those of the old tasks stay open, because they may still run."""
        needed = loaded.registry.resources_of(claimed)
        if not needed:
            return
        if self._handler.resources is None:
            raise ConfigurationError(f"{needed[0].name} is the first resource of this worker; restart the worker")
        await self._handler.resources.open_all(needed, lambda error: None)

    def _forget_old_loads(self, load: int) -> None:
        """Forget older loads, except the previous one: running handlers may still look up its modules."""
        for old in self._loads[:-1]:
            forget(old)
        self._loads = [*self._loads[-1:], load]


def _folder(settings: WorkerSettings) -> Path:
    return Path(settings.tasks or DEFAULT_FOLDER).absolute()


def _forget_helpers(root: Path) -> None:
    """Remove the folder's modules that its tasks import by name, so that they are imported again."""
    importlib.invalidate_caches()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not name.startswith(MODULE_PREFIX) and Path(file).is_relative_to(root):
            del sys.modules[name]
