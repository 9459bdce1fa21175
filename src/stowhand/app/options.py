"""The keywords of an ``App`` and of its workers. A duration is a timedelta, seconds, or a phrase ("5m")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

from stowhand.app.presets import preset_worker
from stowhand.cron.sources import CronSources
from stowhand.errors import ConfigurationError, InvalidJob, UnknownTask, suggest
from stowhand.jobs import limits
from stowhand.jobs.durations import Duration
from stowhand.protocols.operator import BUILT_IN_TASKS
from stowhand.protocols.options import Flags, WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.retry import AnyBackoff
from stowhand.tasks.registry import Registry


class StoreSettingsKeywords(TypedDict, total=False):
    """Fields of ``StoreOptions`` that have the same name wherever Python opens a store."""

    schema: str
    history: Duration | None
    failed_retention: Duration | None
    listen_url: str | None
    synchronous: Literal["FULL", "NORMAL"]


class StoreKeywords(StoreSettingsKeywords, total=False):
    """The fields of ``StoreOptions``, and the preset, which also holds defaults for the App's workers."""

    pool_size: int | None
    prepared_statements: bool
    pool: object | None
    token: str | None
    ca_file: str | None
    insecure: bool
    max_attempts: int | None
    read_only: bool
    read_timeout: Duration
    preset: str | None


class WorkKeywords(TypedDict, total=False):
    """Fields of ``WorkerOptions`` that have the same name wherever Python makes a worker."""

    name: str | None
    queues: Iterable[str] | None
    exclude_queues: Iterable[str] | None
    concurrency: int
    poll_interval: Duration | None
    lease: Duration
    grace: Duration
    timeout: Duration | None
    backoff: AnyBackoff | str
    forbidden_flags: Iterable[str] | Flags | None


class WorkerKeywords(WorkKeywords, CronSources, total=False):
    """The fields of ``WorkerOptions``, the tasks to claim, and recurring items."""

    tasks: Iterable[str] | None
    exclude_tasks: Iterable[str]
    heartbeat_interval: Duration | None
    max_jobs: int | None
    max_age: Duration | None
    max_memory: int | str | None
    look_ahead: int
    app_version: str | None
    fair: bool
    once: bool
    sweep_interval: Duration


def store_options(keywords: StoreKeywords) -> StoreOptions:
    """Return the options of an App's store. Raises ConfigurationError."""
    refuse_unknown("App", keywords, StoreKeywords.__annotations__)
    try:
        return StoreOptions(**{name: value for name, value in keywords.items() if name != "preset"})  # type: ignore[arg-type]
    except ConfigurationError as error:
        raise ConfigurationError(f"App: {error}") from None


def worker_options(keywords: WorkerKeywords, registry: Registry, store: QueueStore, preset: str) -> WorkerOptions:
    """Return the options of a worker on this store. The preset supplies absent values.

    Raises ConfigurationError for an unknown option or task, and for an invalid value.
    """
    refuse_unknown("worker", keywords, WorkerKeywords.__annotations__)
    values: dict[str, Any] = {
        name: value for name, value in keywords.items() if name not in CronSources.__annotations__
    }
    values["forbidden_flags"] = values.get("forbidden_flags") or ()
    tasks = values.get("tasks")
    if tasks is not None:
        tasks = _read_names("tasks", tasks)
    excluded = _read_names("exclude_tasks", values.pop("exclude_tasks", ()))
    values["tasks"] = claimed_tasks(registry, tasks, excluded, lent=store.capabilities.lent)
    return preset_worker(preset, values)


def claimed_tasks(
    registry: Registry, tasks: tuple[str, ...] | None, exclude_tasks: tuple[str, ...], *, lent: bool
) -> tuple[str, ...]:
    """Return the names of the tasks that a worker claims.

    ``tasks``: ``None`` for all tasks, including the built-in ones unless the store is remote. Raises UnknownTask, and
    ConfigurationError if no task is left.
    """
    for name in (*(tasks or ()), *exclude_tasks):
        if name not in registry and name not in BUILT_IN_TASKS:
            raise UnknownTask(f"no task {name!r}{suggest(name, (*registry.names, *BUILT_IN_TASKS))}")
    if tasks is None:
        names = (*registry.names, *(() if lent else BUILT_IN_TASKS))
    else:
        names = tuple(name for name in (*registry.names, *BUILT_IN_TASKS) if name in tasks)
    remaining = tuple(name for name in names if name not in exclude_tasks)
    if exclude_tasks and not remaining and tasks != ():
        raise ConfigurationError("task, exclude_task: they exclude every task; leave out some of the names")
    return remaining


def _read_names(option: str, names: object) -> tuple[str, ...]:
    try:
        return limits.read_names(option, names)
    except InvalidJob as error:
        raise ConfigurationError(str(error)) from None


def refuse_unknown(caller: str, keywords: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigurationError, with a suggestion, for an unknown option."""
    for name in keywords:
        if name not in known:
            raise ConfigurationError(f"{caller}: no option {name!r}{suggest(name, known)}")
