"""``--watch``: a worker's folder of tasks is loaded again when it changes, while the worker goes on.

Running jobs end with the code they began with, later ones get the new. A folder that cannot be loaded changes nothing:
the old tasks stay, and what is wrong is logged.
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
    """Raise ConfigurationError when watching is asked for and cannot be done."""
    if settings.watch and settings.app is not None:
        raise ConfigurationError("--watch reloads a folder of tasks; the modules of an App (--app) are not reloaded")


class WatchedFiles:
    """What is watched, as it looks now: made before anything is loaded, so that no change falls between.

    Nothing, unless the settings say so. Raises ConfigurationError when watching cannot be done.
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
        """Call these when what they load has changed, for as long as the block lasts."""
        watched: dict[WatchedPath, OnChange] = {}
        if self._tasks is not None and tasks is not None:
            watched[self._tasks] = lambda names: tasks()
        if self._crontab is not None and crontab is not None:
            watched[self._crontab] = lambda names: crontab()
        async with watch_paths(watched):
            yield


class Reloader:
    """Loads the folder again. ``loaded``: what it held at the start."""

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
        """Load the folder again. On the worker's loop, between two steps of its handlers."""
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
        """What the tasks to be claimed ask for. That of the old ones stays open, for they may still run."""
        needed = loaded.registry.resources_of(claimed)
        if not needed:
            return
        if self._handler.resources is None:
            raise ConfigurationError(f"{needed[0].name} is the first resource of this worker: start it anew")
        await self._handler.resources.open_all(needed, lambda error: None)

    def _forget_old_loads(self, load: int) -> None:
        """Handlers that still run may look up the modules of the load before this one."""
        for old in self._loads[:-1]:
            forget(old)
        self._loads = [*self._loads[-1:], load]


def _folder(settings: WorkerSettings) -> Path:
    return Path(settings.tasks or DEFAULT_FOLDER).absolute()


def _forget_helpers(root: Path) -> None:
    """Modules of the folder that its tasks import by name are imported anew too."""
    importlib.invalidate_caches()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not name.startswith(MODULE_PREFIX) and Path(file).is_relative_to(root):
            del sys.modules[name]
