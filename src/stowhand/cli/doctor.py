"""``stowhand doctor``: check this machine, the settings and the store, and report problems."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import msgspec

from stowhand import __version__
from stowhand.app.settings.file import read_settings_file
from stowhand.app.settings.resolver import unknown_variables
from stowhand.app.settings.settings import WorkerSettings
from stowhand.cli.help import Command
from stowhand.cli.options import settings_of, store_options, tasks_option
from stowhand.cli.program import as_called
from stowhand.cli.recent_counts import OTHERS_LABEL
from stowhand.cli.session import unopened
from stowhand.cli.stats import Stats, WorkerLine, read_stats, state_line
from stowhand.cron.known_items import cron_figures
from stowhand.errors import SchemaError, SchemaMissing, StowhandError
from stowhand.jobs.durations import format_time
from stowhand.observe.logs import wants_color
from stowhand.observe.safe_text import escape_lines, scrub
from stowhand.protocols.counts import BoundedCount, CronFigures, LiveCounts
from stowhand.protocols.queue_store import QueueStore
from stowhand.service.exit_codes import FAILURE, OK, SCHEMA_UNSUITABLE, STORE_UNREACHABLE, exit_code
from stowhand.service.store_opener import attempts_difference

LISTEN_TIMEOUT_SECONDS = 3.0
LISTEN_CHECKS = 15
TEXT_INDENT = " " * 18
MAX_NAMES_PER_FINDING = 5
"""Maximum number of names in a finding, and of findings of one kind."""
REPORTED_PACKAGES = ("msgspec", "click", "psycopg", "psycopg-binary", "pydantic")
OLDEST_TESTED_VERSION = 13
PARENT_CONNECTIONS = 3
"""Connections of a supervisor: for the schedule, for checks, and for resetting the jobs of a dead child."""
LEVEL_COLORS = {"ok": "green", "warn": "yellow", "FAIL": "red"}


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    level: str
    topic: str
    text: str
    code: int = OK


def ok(topic: str, text: str) -> Finding:
    """Return a finding of something that works."""
    return Finding("ok", topic, text)


def warn(topic: str, text: str) -> Finding:
    """Return a finding of something that works, but not as a user may expect."""
    return Finding("warn", topic, text)


def fail(topic: str, text: str, code: int = FAILURE) -> Finding:
    """Return a finding of something that does not work."""
    return Finding("FAIL", topic, text, code)


@click.command(cls=Command)
@tasks_option
@store_options
def command(**option_values: Any) -> int:
    """Check this machine, the settings and the store.

    It changes nothing.

    Exit code: 0 nothing is broken, 1 something is, 3 the store cannot be reached, 4 its schema is unsuitable.
    """
    return asyncio.run(_examine(settings_of(option_values)))


async def _examine(settings: WorkerSettings) -> int:
    """Print the findings in the order of a worker's start. Return the worst exit code."""
    worst = OK
    async for finding in _findings(settings):
        worst = max(worst, finding.code)
        level = f"{finding.level:<5}"
        if wants_color(sys.stdout):
            level = click.style(level, fg=LEVEL_COLORS[finding.level])
        click.echo(f"{level} {finding.topic:<11} {escape_lines(scrub(as_called(finding.text)), TEXT_INDENT)}")
    return worst


async def _findings(settings: WorkerSettings) -> AsyncIterator[Finding]:
    for finding in (*_machine(), *_settings(settings)):
        yield finding
    async for finding in _store(settings):
        yield finding
    for finding in _tasks(settings):
        yield finding


def _machine() -> Iterator[Finding]:
    installed = {package.name: package.version for package in metadata.distributions()}
    packages = ", ".join(f"{name} {installed[name]}" for name in REPORTED_PACKAGES if name in installed)
    yield ok("Python", f"{platform.python_version()} on {platform.system()}")
    yield ok("stowhand", f"{__version__} ({packages})")


def _settings(settings: WorkerSettings) -> Iterator[Finding]:
    connection = settings.store.connection
    yield ok("store", f"{scrub(connection.absolute_url)} ({connection.source})")
    if connection.note:
        yield warn("store", connection.note)
    file = read_settings_file(Path())
    if file.ignored:
        yield warn("settings", f"{file.ignored} has settings too; only {file.name} is read")
    for _, problem in unknown_variables(os.environ):
        yield warn("settings", problem)


async def _store(settings: WorkerSettings) -> AsyncIterator[Finding]:
    connection = settings.store.connection
    try:
        async with unopened(settings.store) as store:
            try:
                await store.open()
                schema = ok("schema", "compatible with this version")
            except SchemaMissing:
                schema = warn("schema", "not installed; start a worker, or run: stowhand migrate")
            except SchemaError as error:
                schema = fail("schema", str(error), SCHEMA_UNSUITABLE)
            if connection.is_lent:
                yield ok("reached", f"{store.description} (lent over HTTP); its contents are checked there")
            else:
                yield ok("reached", store.description)
                if connection.scheme == "postgresql":
                    for finding in examine_server(await _read_server(settings.store.url), settings):
                        yield finding
                yield schema
                if schema.level != "ok":
                    return
                async for finding in _contents(store, settings):
                    yield finding
            yield await _listen(store)
    except StowhandError as error:
        yield fail("reached", str(error), exit_code(error))


async def _contents(store: QueueStore, settings: WorkerSettings) -> AsyncIterator[Finding]:
    if (difference := await attempts_difference(store, settings.store)) is not None:
        yield warn("attempts", difference)
    else:
        attempts = await store.schema.default_max_attempts()
        yield ok("attempts", f"{attempts} for a job without a number from its call, task, preset or App")
    if altered := await store.schema.foreign_changes():
        yield fail(
            "schema", f"{'; '.join(altered[:MAX_NAMES_PER_FINDING])}: changed by another program; run stowhand migrate"
        )
    if damage := await store.schema.find_damage():
        yield fail("sound", "; ".join(damage[:MAX_NAMES_PER_FINDING]))
    stats, cron = await read_stats(store), await cron_figures(store.timetable)
    if stopped := [row.name for row in await store.inspect.limits() if row.values.concurrency == 0]:
        yield warn("limits", f"start nothing: {_joined(stopped)}; stowhand limits reset LIMIT")
    for finding in (*examine_work(stats), *await examine_waiting(store, stats), *_cron(cron)):
        yield finding


async def _listen(store: QueueStore) -> Finding:
    """Report whether wake-ups arrive. Without them a worker polls, which is slower but correct."""
    for _ in range(LISTEN_CHECKS):
        if store.is_listening:
            return ok("wake-ups", "received")
        await store.wait(LISTEN_TIMEOUT_SECONDS / LISTEN_CHECKS)
    return warn(
        "wake-ups",
        "not received: workers poll; behind a transaction pooler use --listen-url, and --no-prepared-statements if it"
        " is a PgBouncer before 1.21",
    )


def _tasks(settings: WorkerSettings) -> Iterator[Finding]:
    from stowhand.service.task_loader import load_tasks

    if settings.app is None and settings.tasks is None and not Path("tasks").is_dir():
        yield warn("tasks", "no folder tasks/ here, and no --tasks or --app")
        return
    try:
        loaded = load_tasks(settings)
    except StowhandError as error:
        yield fail("tasks", str(error))
        return
    for problem in loaded.problems:
        yield warn("tasks", problem)
    yield ok("tasks", ", ".join(loaded.names)) if loaded.names else warn("tasks", "none")


# -- workers and jobs ------------------------------------------------------------------------------


def examine_work(stats: Stats) -> Iterator[Finding]:
    """Report workers, pauses and jobs, the most important first."""
    figures, alive = stats.figures, _alive(stats)
    due = sum((count.due for count in figures.tasks), BoundedCount())
    if alive:
        busy = sum((line.busy for line in alive), BoundedCount())
        slots = sum(line.row.description.concurrency for line in alive)
        yield ok("workers", f"{len(alive)} alive, {busy} of {slots} slots busy, {due} jobs due")
        if orphaned := _due(count for count in figures.tasks if count.name and not _has(alive, count.name)):
            yield warn(
                "tasks",
                f"due, but no live worker claims it (missing, or excluded by --task or --exclude-task): {orphaned}",
            )
        if unserved := _due(count for count in figures.queues if count.name and not _is_served(alive, count.name)):
            start = "start one with --queue NAME, or without --queue and --exclude-queue"
            yield warn("queues", f"no live worker claims from: {unserved}; {start}")
    elif due.number:
        start = f"start one that has their tasks: {_due(figures.tasks)} (stowhand worker MODULE:APP)"
        yield warn("workers", f"none is alive, and {due} jobs are due: {start}")
    else:
        yield ok("workers", "none is alive, and nothing is due")
    if paused := [*figures.paused, *figures.pauses.names()]:
        resume = "resume with stowhand serials resume (--task for a task) or stowhand queues resume"
        yield warn("pauses", f"paused: {_joined(paused)}; {resume}")
    if shared_names := sorted(
        {count.name for count in figures.queues if count.name} & {count.name for count in figures.serials}
    ):
        text = f"serial keys with the name of a queue: {_joined(shared_names)}"
        yield warn("queues", f"{text}; a serial key (queue_name in SQL) runs its jobs one at a time")
    if lost := [line.row.description.name for line in stats.workers if not line.row.is_alive]:
        yield warn("workers", f"lost in the last day: {_joined(lost)}")
    yield ok("jobs", state_line(stats))


async def examine_waiting(store: QueueStore, stats: Stats) -> list[Finding]:
    """Report jobs that wait although a slot is free: for no known reason, or because workers split tasks and queues."""
    alive, findings, queues = _alive(stats), [], set()
    if not alive:
        return []
    tasks = [line.row.description.tasks for line in alive]
    all_tasks = None if None in tasks else sorted({task for names in tasks for task in names or ()})
    for job_id in await store.inspect.overdue(all_tasks):
        explanation = await store.inspect.explain(job_id)
        if explanation is None:
            continue
        job = explanation.job
        for reason in explanation.reasons:
            if reason.code == "overdue":
                findings.append(warn("overdue", f"job {job_id}: {reason.text}; {reason.advice}"))
            elif reason.code == "unserved_queue" and _is_served(alive, job.queue):
                queues.add((job.task, job.queue))
    split_findings = [
        warn("queues", f"no live worker that has the task {task} claims from the queue {queue}")
        for task, queue in sorted(queues)
    ]
    return [*split_findings[:MAX_NAMES_PER_FINDING], *findings[:MAX_NAMES_PER_FINDING]]


def _cron(figures: CronFigures) -> Iterator[Finding]:
    if figures.unscheduled:
        text = f"not scheduled by any worker: {_joined(list(figures.unscheduled))}"
        yield warn("cron", f"{text}; start a worker with their crontab, or: stowhand cron remove")
    if figures.missed:
        ticks = [f"{name} ({format_time(tick)})" for name, tick in figures.missed.items()]
        yield warn("cron", f"missed a tick: {_joined(ticks)}; stowhand cron run enqueues its job now")
    if figures.known and not (figures.unscheduled or figures.missed):
        yield ok("cron", f"{len(figures.known)} recurring items, all scheduled")


def _alive(stats: Stats) -> list[WorkerLine]:
    return [line for line in stats.workers if line.row.is_alive]


def _has(workers: Sequence[WorkerLine], task: str) -> bool:
    return any(line.row.description.tasks is None or task in line.row.description.tasks for line in workers)


def _is_served(workers: Sequence[WorkerLine], queue: str) -> bool:
    return any(queue in line.row.description.queues for line in workers)


def _due(counts: Iterable[LiveCounts]) -> str:
    return _joined([f"{count.name or OTHERS_LABEL} ({count.due})" for count in counts if count.due.number])


def _joined(names: list[str]) -> str:
    text = ", ".join(names[:MAX_NAMES_PER_FINDING])
    hidden_count = len(names) - MAX_NAMES_PER_FINDING
    return f"{text} and {hidden_count} more" if hidden_count > 0 else text


# -- the server of PostgreSQL ----------------------------------------------------------------------

# The limit of a login without superuser rights: a database and a role may allow fewer connections than the server.
# Connections of workers are not counted, because a restart replaces them.
_SERVER_QUERY = b"""
    SELECT current_setting('server_version_num')::int / 10000,
           least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
                     - coalesce(current_setting('reserved_connections', true)::int, 0),
                 (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()),
                 (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user)),
           count(*) FILTER (WHERE application_name NOT LIKE 'stowhand:%%' AND pid <> pg_backend_pid())::int,
           current_setting('transaction_read_only')::bool
    FROM pg_stat_activity
    WHERE backend_type = 'client backend'
"""


class Server(msgspec.Struct, frozen=True):
    """Details of a PostgreSQL server, read with one query."""

    version: int
    max_connections: int
    """Maximum number of connections for this login."""
    used: int
    """Connections that other programs use."""
    read_only: bool = False


def examine_server(server: Server, settings: WorkerSettings) -> Iterator[Finding]:
    """Report a server's version, write access and connections."""
    if server.version < OLDEST_TESTED_VERSION:
        yield warn("server", f"PostgreSQL {server.version}; {OLDEST_TESTED_VERSION} is the oldest tested version")
    else:
        yield ok("server", f"PostgreSQL {server.version}")
    if server.read_only:
        text = "a standby, or read-only: nothing can be enqueued or claimed; name the primary, or several hosts with"
        yield fail("writes", f"{text} target_session_attrs=read-write", STORE_UNREACHABLE)
    needed, terms = settings.processes * settings.pool_size, f"{settings.processes} x {settings.pool_size}"
    if settings.processes > 1:
        needed, terms = needed + PARENT_CONNECTIONS, f"{terms} + {PARENT_CONNECTIONS} of the supervisor"
    text = f"{terms} = {needed} at most; the server allows {server.max_connections}, and others use {server.used}"
    if needed > server.max_connections - server.used:
        yield warn("connections", f"{text}: lower -j, -m or --processes, or raise max_connections")
    else:
        yield ok("connections", text)


async def _read_server(url: str) -> Server:
    from stowhand.stores.database.address import Address
    from stowhand.stores.database.link import Dialer, Link

    link = Link(Dialer(Address(url), prepared=False), lambda: "stowhand doctor")
    try:
        (row,) = await link.rows(_SERVER_QUERY)
        return Server(*row)
    finally:
        await link.close()
