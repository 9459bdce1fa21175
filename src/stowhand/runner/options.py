"""The options of ``run`` and ``make_worker_utils``, and the store that they name. Mistakes are reported all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from stowhand.app.built_in import with_built_in
from stowhand.app.options import StoreSettingsKeywords, WorkKeywords
from stowhand.app.own_store import DEFAULT_STORE_SOURCE
from stowhand.app.settings.resolver import read_setting, resolve_store_url
from stowhand.app.start import traced
from stowhand.cron.item import ParsedItem
from stowhand.cron.sources import CronSources, declared, items_of
from stowhand.errors import ConfigurationError, StowhandError, suggest
from stowhand.jobs.durations import MAX_DURATION_SECONDS
from stowhand.observe.log_factory import Logger
from stowhand.observe.logs import Scope
from stowhand.observe.traces import Traces
from stowhand.protocols.options import ObjectOption, Switch, Text, WorkerOptions, options_of, problem_text
from stowhand.protocols.queue_store import QueueStore
from stowhand.protocols.store import StoreOptions, pool_refusal
from stowhand.runner.events import WorkerEvents
from stowhand.stores.url import open_store, store_url
from stowhand.tasks.context import LoggerFactory
from stowhand.tasks.discovery import load_folder
from stowhand.tasks.registry import Registry
from stowhand.tasks.task_list import TaskList, read_task_list

MIN_LIKELY_MILLISECONDS = 500
"""A plain number from here on surely means milliseconds."""
NO_STORE = "no store is named: give connection_string or pg_pool, or set DATABASE_URL, or PGDATABASE and its companions"
NO_TASKS = "no tasks are named: give task_list or task_directory"


def _path(given: str | PathLike[str]) -> str | PathLike[str]:
    if given == "":
        raise ValueError("an empty path")
    return given


class RunnerOptions(StoreSettingsKeywords, WorkKeywords, total=False):
    """Which store, which tasks, and how to work. What needs a store alone ignores the rest.

    Exactly one of ``connection_string`` and ``pg_pool``, or the environment; and of ``task_list`` and
    ``task_directory``.
    """

    connection_string: Annotated[
        str | None, Text("A URL (PostgreSQL or SQLite), a libpq string, or the name of a PostgreSQL database.")
    ]
    pg_pool: object | None
    """A ``psycopg_pool.AsyncConnectionPool``, open; it stays the program's own."""
    no_prepared_statements: bool
    max_pool_size: int | None
    """PostgreSQL: connections at most, the four that a worker keeps for itself included; without it as many as its
    slots and those, at least 10. Not with ``pg_pool``."""
    traces: Annotated[
        Traces | None,
        ObjectOption(
            "Makes spans of what is enqueued, and of what a runner executes.",
            of=Traces,
            what="a stowhand.observe.traces.Traces()",
        ),
    ]
    task_list: TaskList | None
    """Functions by name, ``(payload)`` or ``(payload, helpers)``, or tasks that an ``App`` declares."""
    task_directory: Annotated[
        str | Path | None, ObjectOption("A folder of tasks.", of=(str, PathLike), what="a path", check=_path)
    ]
    no_handle_signals: Annotated[bool, Switch("Leave signals to the program.")]
    logger: Annotated[
        Logger | None, ObjectOption("Where lines go.", of=Logger, what="a stowhand.runner.Logger(log_factory)")
    ]
    events: Annotated[
        WorkerEvents | None,
        ObjectOption("Calls its listeners.", of=WorkerEvents, what="a stowhand.runner.WorkerEvents"),
    ]
    crontab: Annotated[str | None, Text("The text of a crontab.")]
    crontab_file: Annotated[
        str | Path | None, ObjectOption("A file of that text.", of=(str, PathLike), what="a path", check=_path)
    ]
    parsed_cron_items: Annotated[
        Sequence[ParsedItem] | None,
        ObjectOption("Of either of the two.", of=Iterable, what="what parse_crontab or parse_cron_items returns"),
    ]


class Plan(msgspec.Struct, frozen=True):
    """What a run needs, all of it checked."""

    store: QueueStore
    """The store of the run, not connected yet."""
    registry: Registry
    skipped_files: tuple[str, ...]
    """Files of the task directory that are no tasks, and why."""
    worker: WorkerOptions
    keywords: dict[str, Any]
    """What of the worker's options was given."""
    cron: tuple[ParsedItem, ...]
    signals: bool
    logger: Logger | None
    events: WorkerEvents
    traces: Traces | None

    @property
    def log_job(self) -> LoggerFactory | None:
        """What makes the logger of a job; ``None``: the App's own."""
        logger = self.logger
        if logger is None:
            return None
        return lambda job: logger.of(Scope("job", job.worker, job.task, job.id))


def find_store(caller: str, given: Mapping[str, Any]) -> QueueStore:
    """The store that is meant, not connected yet. Raises ConfigurationError with every mistake in ``given``."""
    valid, problems = _read_options(given)
    store = _store(given, valid, problems)
    _finish(caller, problems)
    assert store is not None
    return store


def make_plan(caller: str, given: Mapping[str, Any], *, once: bool) -> Plan:
    """Read the options of a run. Raises ConfigurationError with every mistake in ``given``."""
    valid, problems = _read_options(given)
    registry, skipped_files = _tasks(given, valid, problems)
    worker = _worker(valid, registry, problems, once=once)
    cron = _cron(given, valid, registry, problems)
    store = _store(given, valid, problems, worker=True)
    _finish(caller, problems)
    assert store is not None
    assert worker is not None
    return Plan(
        store=store,
        registry=registry,
        skipped_files=skipped_files,
        worker=worker,
        keywords=_fields(WorkerOptions, valid),
        cron=cron,
        signals=not valid.get("no_handle_signals", False),
        logger=valid.get("logger"),
        events=valid.get("events") or WorkerEvents(),
        traces=valid.get("traces"),
    )


def _finish(caller: str, problems: Sequence[str]) -> None:
    if problems:
        raise ConfigurationError("\n".join(f"{caller}: {problem}" for problem in problems))


def _read_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What can be read; and what is wrong with the rest, and with the names."""
    known = RunnerOptions.__annotations__
    options = {
        name: option
        for one in (StoreOptions, WorkerOptions, RunnerOptions)
        for option in options_of(one).values()
        for name in (option.field, option.name)
    }
    valid, problems = {}, []
    for name, value in given.items():
        if name not in known:
            problems.append(f"no option {name!r}{suggest(name, known)}")
            continue
        try:
            valid[name] = options[name].read(value) if value is not None and name in options else value
        except ValueError as error:
            problems.append(problem_text(name, error))
    poll = given.get("poll_interval")
    if isinstance(poll, int | float) and MIN_LIKELY_MILLISECONDS <= poll <= MAX_DURATION_SECONDS:
        problems.append(
            f"poll_interval: {poll} given, in seconds; {poll / 1000:g} are as many milliseconds (a timedelta says what"
            " it means)"
        )
    return valid, problems


def _fields(declaring: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given of a struct, by its fields; ``None``, where it says nothing, is the default."""
    fields = {}
    for field, option in options_of(declaring).items():
        name = option.name if option.name in given else field
        if name in given and (given[name] is not None or option.may_be_none):
            fields[field] = given[name]
    return fields


def _one_of(given: Mapping[str, Any], names: Sequence[str], what: str, problems: list[str]) -> str | None:
    """Which of the names is given; both is a mistake."""
    found = [name for name in names if given.get(name) is not None]
    if len(found) > 1:
        problems.append(f"{' and '.join(found)} are both given: {what} by one of them")
    return found[0] if found else None


def _store(
    given: Mapping[str, Any], valid: Mapping[str, Any], problems: list[str], *, worker: bool = False
) -> QueueStore | None:
    """Find the store. In this order: what is given, STOWHAND_CONNECTION and stowhand.toml, DATABASE_URL, PGDATABASE."""
    source = _one_of(given, ("pg_pool", "connection_string"), "the database is named", problems)
    if source is not None and source not in valid:
        return None
    try:
        options = _store_options(valid)
        traces = valid.get("traces")
        if source == "pg_pool":
            return traced(open_store("postgresql://", options), traces)
        url = store_url(valid["connection_string"]) if source is not None else _from_environment()
        size = options.pool_size
        if worker and url.startswith("postgresql:") and size is not None:
            refusal = pool_refusal(f"max_pool_size: {size} given", size)
            if refusal is not None:
                problems.append(refusal)
        return traced(open_store(url, options), traces)
    except StowhandError as error:
        problems.append(str(error))
    return None


def _from_environment() -> str:
    resolved = resolve_store_url()
    if resolved.source == DEFAULT_STORE_SOURCE:
        raise ConfigurationError(f"{NO_STORE}; {resolved.note}" if resolved.note else NO_STORE)
    return resolved.url


def _store_options(given: Mapping[str, Any]) -> StoreOptions:
    chosen = _fields(StoreOptions, given)
    chosen["max_attempts"] = read_setting("max_attempts")
    chosen["prepared_statements"] = not given.get("no_prepared_statements", False)
    return StoreOptions(pool=given.get("pg_pool"), **chosen)


def _tasks(given: Mapping[str, Any], valid: Mapping[str, Any], problems: list[str]) -> tuple[Registry, tuple[str, ...]]:
    registry = Registry()
    source = _one_of(given, ("task_list", "task_directory"), "tasks are named", problems)
    try:
        if source is None:
            problems.append(NO_TASKS)
        elif source == "task_list":
            return read_task_list(valid["task_list"]), ()
        elif source in valid:
            return registry, load_folder(valid["task_directory"], registry).skipped_files
    except StowhandError as error:
        problems.append(str(error))
    return registry, ()


def _worker(given: Mapping[str, Any], registry: Registry, problems: list[str], *, once: bool) -> WorkerOptions | None:
    try:
        tasks = with_built_in(registry.names, is_remote=False)
        return WorkerOptions(tasks=tasks, once=once, **_fields(WorkerOptions, given))
    except StowhandError as error:
        problems.append(str(error))
        return None


def _cron(
    given: Mapping[str, Any], valid: Mapping[str, Any], registry: Registry, problems: list[str]
) -> tuple[ParsedItem, ...]:
    source = _one_of(given, ("crontab", "crontab_file", "parsed_cron_items"), "what recurs is named", problems)
    if source is None or source not in valid:
        return ()
    name = "cron_items" if source == "parsed_cron_items" else source
    try:
        return declared(items_of(cast("CronSources", {name: valid[source]})), registry)
    except StowhandError as error:
        problems.append(str(error))
        return ()
