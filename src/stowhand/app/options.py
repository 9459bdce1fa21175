"""The keywords of an ``App`` and of its workers. Every duration is a timedelta, seconds, or a phrase."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

from stowhand.app.presets import preset_worker
from stowhand.cron.sources import CronSources
from stowhand.errors import ConfigurationError, suggest
from stowhand.jobs.durations import Duration
from stowhand.protocols.options import Flags, WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.retry import AnyBackoff
from stowhand.tasks.registry import Registry
from stowhand.tasks.selection import Selection, read_names


class KeptKeywords(TypedDict, total=False):
    """Fields of ``StoreOptions`` by the same names wherever Python opens a store."""

    schema: str
    history: Duration | None
    failed_retention: Duration | None
    listen_url: str | None
    synchronous: Literal["FULL", "NORMAL"]


class StoreKeywords(KeptKeywords, total=False):
    """The fields of ``StoreOptions``, and defaults under one name, also of what a worker of the App begins with."""

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
    """Fields of ``WorkerOptions`` by the same names wherever Python makes a worker."""

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
    """The fields of ``WorkerOptions``, which of the App's tasks it claims, and what recurs beside it."""

    groups: Iterable[str]
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


def store_options(given: StoreKeywords) -> StoreOptions:
    """Return the options of an App's store. Raises ConfigurationError."""
    refuse_unknown("App", given, StoreKeywords.__annotations__)
    try:
        return StoreOptions(**{name: value for name, value in given.items() if name != "preset"})  # type: ignore[arg-type]
    except ConfigurationError as error:
        raise ConfigurationError(f"App: {error}") from None


def worker_options(given: WorkerKeywords, registry: Registry, store: QueueStore, preset: str) -> WorkerOptions:
    """Return the options of a worker on this store; the preset supplies what is not given.

    Raises ConfigurationError for an unknown option or task, and for what WorkerOptions refuses.
    """
    refuse_unknown("worker", given, WorkerKeywords.__annotations__)
    values: dict[str, Any] = {name: value for name, value in given.items() if name not in CronSources.__annotations__}
    values["forbidden_flags"] = values.get("forbidden_flags") or ()
    groups, excluded = (read_names(name, values.pop(name, ())) for name in ("groups", "exclude_tasks"))
    wanted = values.get("tasks")
    if wanted is not None:
        wanted = read_names("tasks", wanted)
    selection = Selection(groups=groups, tasks=wanted, exclude_tasks=excluded)
    values["tasks"] = selection.of(registry, lent=store.capabilities.lent)
    return preset_worker(preset, values)


def refuse_unknown(whose: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigurationError, with a suggestion, for an unknown option."""
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{whose}: no option {name!r}{suggest(name, known)}")
