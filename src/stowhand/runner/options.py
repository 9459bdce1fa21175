"""Options of ``run`` and ``make_worker_utils``, and the store that they name. All mistakes are reported at once."""

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
"""A poll interval of at least this plain number is probably in milliseconds."""
NO_STORE = "no store is given; use connection_string or pg_pool, or set DATABASE_URL or PGDATABASE"
NO_TASKS = "no tasks are given; use task_list or task_directory"


def _check_path(path: str | PathLike[str]) -> str | PathLike[str]:
    if path == "":
        raise ValueError("an empty path")
    return path


class RunnerOptions(StoreSettingsKeywords, WorkKeywords, total=False):
    """Options of the store, the tasks and the worker. Functions that only need a store ignore the others.

    Give exactly one of ``connection_string`` and ``pg_pool``, unless the environment names the store, and exactly one
    of ``task_list`` and ``task_directory``.
    """

    connection_string: Annotated[
        str | None, Text("A URL (PostgreSQL or SQLite), a libpq string, or the name of a PostgreSQL database.")
    ]
    pg_pool: object | None
    """An open ``psycopg_pool.AsyncConnectionPool``. The program closes it."""
    no_prepared_statements: bool
    max_pool_size: int | None
    """PostgreSQL: maximum number of connections, including the four that a worker reserves for itself. The default is
    those four plus one for each slot, at least 10. Not allowed with ``pg_pool``."""
    traces: Annotated[
        Traces | None,
        ObjectOption(
            "Makes spans of enqueued and executed jobs.",
            of=Traces,
            what="a stowhand.observe.traces.Traces()",
        ),
    ]
    task_list: TaskList | None
    """Functions by name, ``(payload)`` or ``(payload, helpers)``, or tasks that an ``App`` declares."""
    task_directory: Annotated[
        str | Path | None, ObjectOption("A folder of tasks.", of=(str, PathLike), what="a path", check=_check_path)
    ]
    no_handle_signals: Annotated[bool, Switch("Leave signals to the program.")]
    logger: Annotated[
        Logger | None,
        ObjectOption("Logger of the runner and its jobs.", of=Logger, what="a stowhand.runner.Logger(log_factory)"),
    ]
    events: Annotated[
        WorkerEvents | None,
        ObjectOption("Emitter of the runner's events.", of=WorkerEvents, what="a stowhand.runner.WorkerEvents"),
    ]
    crontab: Annotated[str | None, Text("The text of a crontab.")]
    crontab_file: Annotated[
        str | Path | None,
        ObjectOption("A file with the text of a crontab.", of=(str, PathLike), what="a path", check=_check_path),
    ]
    parsed_cron_items: Annotated[
        Sequence[ParsedItem] | None,
        ObjectOption("Items of a crontab.", of=Iterable, what="what parse_crontab or parse_cron_items returns"),
    ]


class Plan(msgspec.Struct, frozen=True):
    """Checked options of a run."""

    store: QueueStore
    """The store of the run, not connected yet."""
    registry: Registry
    skipped_files: tuple[str, ...]
    """Files of the task directory that contain no tasks, with the reasons."""
    worker: WorkerOptions
    keywords: dict[str, Any]
    """The worker's options that the caller has set."""
    cron: tuple[ParsedItem, ...]
    signals: bool
    logger: Logger | None
    events: WorkerEvents
    traces: Traces | None

    @property
    def log_job(self) -> LoggerFactory | None:
        """Factory of the loggers of jobs; ``None``: the one of the App."""
        logger = self.logger
        if logger is None:
            return None
        return lambda job: logger.of(Scope("job", job.worker, job.task, job.id))


def find_store(caller: str, options: Mapping[str, Any]) -> QueueStore:
    """Return the store that the options name, not connected yet. Raises ConfigurationError with all mistakes."""
    valid, problems = _read_options(options)
    store = _store(options, valid, problems)
    _raise_problems(caller, problems)
    assert store is not None
    return store


def make_plan(caller: str, options: Mapping[str, Any], *, once: bool) -> Plan:
    """Check the options of a run. Raises ConfigurationError with all mistakes."""
    valid, problems = _read_options(options)
    registry, skipped_files = _tasks(options, valid, problems)
    worker = _worker(valid, registry, problems, once=once)
    cron = _cron(options, valid, registry, problems)
    store = _store(options, valid, problems, has_worker=True)
    _raise_problems(caller, problems)
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


def _raise_problems(caller: str, problems: Sequence[str]) -> None:
    if problems:
        raise ConfigurationError("\n".join(f"{caller}: {problem}" for problem in problems))


def _read_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the valid options, and a message for each invalid value and unknown name."""
    names = RunnerOptions.__annotations__
    declared = {
        name: option
        for struct in (StoreOptions, WorkerOptions, RunnerOptions)
        for option in options_of(struct).values()
        for name in (option.field, option.name)
    }
    valid, problems = {}, []
    for name, value in options.items():
        if name not in names:
            problems.append(f"no option {name!r}{suggest(name, names)}")
            continue
        try:
            valid[name] = declared[name].read(value) if value is not None and name in declared else value
        except ValueError as error:
            problems.append(problem_text(name, error))
    poll = options.get("poll_interval")
    if isinstance(poll, int | float) and MIN_LIKELY_MILLISECONDS <= poll <= MAX_DURATION_SECONDS:
        problems.append(
            f"poll_interval: got {poll}, but the unit is seconds; for milliseconds use {poll / 1000:g}, or a timedelta"
        )
    return valid, problems


def _fields(struct: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a struct by field. ``None`` means the default, unless the option may be ``None``."""
    fields = {}
    for field, option in options_of(struct).items():
        name = option.name if option.name in options else field
        if name in options and (options[name] is not None or option.may_be_none):
            fields[field] = options[name]
    return fields


def _one_of(options: Mapping[str, Any], names: Sequence[str], subject: str, problems: list[str]) -> str | None:
    """Return the option of these names that is set. More than one is a mistake."""
    set_names = [name for name in names if options.get(name) is not None]
    if len(set_names) > 1:
        problems.append(f"{' and '.join(set_names)} are both given: use one of them to name {subject}")
    return set_names[0] if set_names else None


def _store(
    options: Mapping[str, Any], valid: Mapping[str, Any], problems: list[str], *, has_worker: bool = False
) -> QueueStore | None:
    """Return the store of the options, of STOWHAND_CONNECTION or stowhand.toml, of DATABASE_URL, or of PGDATABASE."""
    source = _one_of(options, ("pg_pool", "connection_string"), "the database", problems)
    if source is not None and source not in valid:
        return None
    try:
        store_options = _store_options(valid)
        traces = valid.get("traces")
        if source == "pg_pool":
            return traced(open_store("postgresql://", store_options), traces)
        url = store_url(valid["connection_string"]) if source is not None else _from_environment()
        size = store_options.pool_size
        if has_worker and url.startswith("postgresql:") and size is not None:
            refusal = pool_refusal(f"max_pool_size: got {size}", size)
            if refusal is not None:
                problems.append(refusal)
        return traced(open_store(url, store_options), traces)
    except StowhandError as error:
        problems.append(str(error))
    return None


def _from_environment() -> str:
    resolved = resolve_store_url()
    if resolved.source == DEFAULT_STORE_SOURCE:
        raise ConfigurationError(f"{NO_STORE}; {resolved.note}" if resolved.note else NO_STORE)
    return resolved.url


def _store_options(options: Mapping[str, Any]) -> StoreOptions:
    fields = _fields(StoreOptions, options)
    fields["max_attempts"] = read_setting("max_attempts")
    fields["prepared_statements"] = not options.get("no_prepared_statements", False)
    return StoreOptions(pool=options.get("pg_pool"), **fields)


def _tasks(
    options: Mapping[str, Any], valid: Mapping[str, Any], problems: list[str]
) -> tuple[Registry, tuple[str, ...]]:
    registry = Registry()
    source = _one_of(options, ("task_list", "task_directory"), "the tasks", problems)
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


def _worker(options: Mapping[str, Any], registry: Registry, problems: list[str], *, once: bool) -> WorkerOptions | None:
    try:
        tasks = with_built_in(registry.names, is_remote=False)
        return WorkerOptions(tasks=tasks, once=once, **_fields(WorkerOptions, options))
    except StowhandError as error:
        problems.append(str(error))
        return None


def _cron(
    options: Mapping[str, Any], valid: Mapping[str, Any], registry: Registry, problems: list[str]
) -> tuple[ParsedItem, ...]:
    source = _one_of(options, ("crontab", "crontab_file", "parsed_cron_items"), "the recurring items", problems)
    if source is None or source not in valid:
        return ()
    name = "cron_items" if source == "parsed_cron_items" else source
    try:
        return declared(items_of(cast("CronSources", {name: valid[source]})), registry)
    except StowhandError as error:
        problems.append(str(error))
        return ()
