"""The keywords of an ``App`` and of its workers. Every duration is a timedelta, seconds, or a phrase."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

from stowhand.app.built_in import with_built_in
from stowhand.app.presets import preset_worker
from stowhand.cron.sources import CronSources
from stowhand.errors import ConfigurationError, suggest
from stowhand.jobs.durations import Duration
from stowhand.jobs.lifecycle import Backoff
from stowhand.protocols.operating import BUILT_IN
from stowhand.protocols.options import Flags, WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.tasks.registry import Registry


class StoreKeywords(TypedDict, total=False):
    """The fields of ``StoreOptions``."""

    schema: str
    history: Duration | None
    failed_retention: Duration | None
    pool_size: int
    prepared_statements: bool
    pool: object | None
    listen_url: str | None
    synchronous: Literal["FULL", "NORMAL"]
    token: str | None
    ca_file: str | None
    insecure: bool
    max_attempts: int | None
    """Of jobs without a number of their own or of their task's."""
    preset: str | None
    """Defaults under one name: the number of attempts and what is kept, and what a worker of the App begins with."""


class WorkerKeywords(CronSources, total=False):
    """The fields of ``WorkerOptions``, and what recurs beside the worker."""

    name: str | None
    concurrency: int
    tasks: Iterable[str] | None
    poll_interval: Duration | None
    lease: Duration
    heartbeat_interval: Duration | None
    grace: Duration
    job_timeout: Duration | None
    max_jobs: int | None
    max_active_time: Duration | None
    backoff: Backoff | str
    forbidden_flags: Iterable[str] | Flags | None
    look_ahead: int
    fair: bool
    once: bool
    sweep_interval: Duration


def store_options(given: StoreKeywords) -> StoreOptions:
    """Raises ConfigurationError."""
    refuse_unknown("App", given, StoreKeywords.__annotations__)
    try:
        return StoreOptions(**{name: value for name, value in given.items() if name != "preset"})  # type: ignore[arg-type]
    except ConfigurationError as error:
        raise ConfigurationError(f"App: {error}") from None


def worker_options(given: WorkerKeywords, registry: Registry, store: QueueStore, preset: str) -> WorkerOptions:
    """For this store; what is not given is the preset's. Raises ConfigurationError for an unknown option or task, and
    for what WorkerOptions refuses."""
    refuse_unknown("worker", given, WorkerKeywords.__annotations__)
    values: dict[str, Any] = {name: value for name, value in given.items() if name not in CronSources.__annotations__}
    values["forbidden_flags"] = values.get("forbidden_flags") or ()
    wanted = values.get("tasks")
    if wanted is None:
        values["tasks"] = with_built_in(registry.names, lent=store.capabilities.lent)
    else:
        values["tasks"] = tuple(name if name in BUILT_IN else registry.get(name).name for name in wanted)
    return preset_worker(preset, values)


def refuse_unknown(whose: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises ConfigurationError that suggests."""
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{whose}: no option {name!r}{suggest(name, known)}")
