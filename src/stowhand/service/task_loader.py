"""Loader of the tasks that a worker process runs, from a folder or an App."""

from __future__ import annotations

import msgspec

from stowhand.app.app import App, use_worker_store
from stowhand.app.app_worker import AppFlow
from stowhand.app.built_in import handler_on
from stowhand.app.options import claimed_tasks
from stowhand.app.settings.settings import WorkerSettings
from stowhand.app.start import warn_of_long_tasks
from stowhand.cron.item import ParsedItem
from stowhand.errors import ConfigurationError, UnknownTask
from stowhand.jobs.job import Job
from stowhand.observe.job_logger import core_logger, job_logger
from stowhand.observe.traces import Traces
from stowhand.protocols.queue_store import QueueStore
from stowhand.tasks.context import JobLogger
from stowhand.tasks.discovery import load_folder
from stowhand.tasks.dispatch import TaskHandler
from stowhand.tasks.loader import load_object
from stowhand.tasks.registry import Registry

DEFAULT_FOLDER = "tasks"


class LoadedTasks(msgspec.Struct, frozen=True):
    """The tasks of a folder or an App."""

    registry: Registry
    problems: tuple[str, ...] = ()
    """Skipped files, with reasons."""
    cron: tuple[ParsedItem, ...] = ()
    """Recurring items that an App declares."""
    flows: tuple[AppFlow, ...] = ()
    """Flows of an App, which each worker process runs."""
    load: int = 0
    """Number of this load of the folder."""
    traces: Traces | None = None
    """Maker of spans for enqueued and running jobs; ``None`` if none are made."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tasks."""
        return self.registry.names

    def claimed(self, settings: WorkerSettings) -> tuple[str, ...]:
        """Return the names of the tasks that a worker with these settings claims. Raises ConfigurationError."""
        is_remote = settings.store.connection.is_lent
        try:
            return claimed_tasks(self.registry, settings.task, settings.exclude_tasks, lent=is_remote)
        except UnknownTask as error:
            raise ConfigurationError(f"--task, --exclude-task: {error}") from None


def requested_traces(settings: WorkerSettings) -> Traces | None:
    """Return the traces that ``--otel`` requests. Raises ConfigurationError if the extra is missing."""
    return Traces() if settings.otel else None


def load_tasks(settings: WorkerSettings, *, may_be_empty: bool = False) -> LoadedTasks:
    """Import the tasks. Raises ConfigurationError with each problem and its location.

    A folder without tasks is an error unless ``may_be_empty``.
    """
    traces = requested_traces(settings)
    if settings.app is not None:
        app = load_app(settings.app)
        app.discover()
        # Its tasks enqueue into the store of its worker.
        use_worker_store(app, settings.store.url, settings.store.options, traces)
        return LoadedTasks(app.registry, cron=app.cron_items, flows=app.flows, traces=app.traces)
    registry = Registry()
    folder = load_folder(settings.tasks or DEFAULT_FOLDER, registry, may_be_empty=may_be_empty)
    return LoadedTasks(registry, folder.skipped_files, load=folder.load, traces=traces)


def check_work(settings: WorkerSettings, loaded: LoadedTasks, recurring: int) -> None:
    """Check that the worker has a task of the user, a flow, or a recurring item to schedule.

    Raises ConfigurationError. A worker that watches its folder only logs a warning.
    """
    if (
        loaded.names or loaded.flows or (settings.app is None and not settings.watch)
    ):  # an empty folder was refused before
        return
    if settings.watch:
        core_logger().warning(f"No tasks yet in {settings.tasks or DEFAULT_FOLDER}: waiting for files (--watch)")
    elif recurring:
        core_logger().info(f"No tasks here: this worker only schedules ({recurring} recurring)")
    else:
        raise ConfigurationError(
            f"{settings.app}: this App declares no task, and no job would ever run here; import the modules that"
            " declare them, or name them: App(include=['shop.tasks'])"
        )


def load_app(target: str) -> App:
    """Return the App that ``module:name`` names. Raises ConfigurationError."""
    return load_object(target, App)


def make_handler(loaded: LoadedTasks, settings: WorkerSettings, store: QueueStore, worker: str) -> TaskHandler:
    """Return the handler that runs the tasks, with loggers that name the job."""

    def logger_of(job: Job) -> JobLogger:
        return job_logger(worker, job.task, job.id, job.attempts)

    return handler_on(store, loaded.registry, logger_of, settings.worker)


def report_problems(loaded: LoadedTasks, settings: WorkerSettings) -> None:
    """Log the skipped files, and the tasks that a stop may interrupt."""
    for problem in loaded.problems:
        core_logger().warning(problem)
    warn_of_long_tasks(loaded.registry, settings.preset, settings.worker.grace, "--grace")
