"""``stowhand doctor``: look at this machine, the settings and the store, and say what is wrong with each."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from enum import StrEnum
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
from stowhand.cli.session import unopened
from stowhand.cli.stats import Stats, WorkerLine, read_stats, state_line
from stowhand.clock import wall_clock
from stowhand.cron.known_items import cron_figures
from stowhand.errors import SchemaError, StowhandError
from stowhand.jobs.moments import say
from stowhand.jobs.queues import Queues
from stowhand.observe.logs import wants_color
from stowhand.observe.safe_text import escape_lines, scrub
from stowhand.protocols.figures import Amount, CronFigures
from stowhand.protocols.queue_store import QueueStore, SchemaStatus
from stowhand.service.exit_codes import FAILURE, OK, SCHEMA_UNSUITABLE, STORE_UNREACHABLE, exit_code
from stowhand.service.opening import attempts_apart

LISTEN_PATIENCE = 3.0
LISTEN_LOOKS = 15
INDENT = " " * 18
SHOWN = 5
"""Problems of one store, or names in one finding, at most."""
PACKAGES = ("msgspec", "click", "psycopg", "psycopg-binary", "pydantic")


@click.command(cls=Command)
@tasks_option
@store_options
def command(**typed: Any) -> int:
    """Check this machine, the settings and the store.

    It changes nothing.

    Exit code: 0 nothing is broken, 1 something is, 3 the store cannot be reached, 4 its schema is unsuitable.
    """
    return asyncio.run(_examine(settings_of(typed)))


async def _examine(settings: WorkerSettings) -> int:
    """Print the findings in the order in which things are needed. Returns the worst exit code."""
    worst = OK

    def report(findings: Iterable[Finding]) -> None:
        nonlocal worst
        for finding in findings:
            worst = max(worst, finding.code)
            _show(finding)

    report(examine_machine())
    report(examine_settings(settings))
    async for finding in examine_store(settings):
        report([finding])
    report(examine_tasks(settings))
    return worst


class Mark(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    mark: Mark
    what: str
    said: str
    code: int = OK


def ok(what: str, said: str) -> Finding:
    """Return a finding of something that works."""
    return Finding(Mark.OK, what, said)


def warn(what: str, said: str) -> Finding:
    """Return a finding of something that works, but not as a user may expect."""
    return Finding(Mark.WARN, what, said)


def fail(what: str, said: str, code: int = FAILURE) -> Finding:
    """Return a finding of something that does not work."""
    return Finding(Mark.FAIL, what, said, code)


def examine_machine() -> Iterator[Finding]:
    """Report the versions of Python and the packages."""
    installed = {found.name: found.version for found in metadata.distributions()}
    packages = ", ".join(f"{name} {installed[name]}" for name in PACKAGES if name in installed)
    yield ok("Python", f"{platform.python_version()} on {platform.system()}")
    yield ok("stowhand", f"{__version__} ({packages})")


def examine_settings(settings: WorkerSettings) -> Iterator[Finding]:
    """Report the store, the setting that names it, and settings without effect."""
    connection = settings.store.connection
    yield ok("store", f"{scrub(connection.url)} ({connection.source})")
    if connection.note:
        yield warn("store", connection.note)
    file = read_settings_file(Path())
    if file.ignored:
        yield warn("settings", f"{file.ignored} has settings too; only {file.name} is read")
    for _, said in unknown_variables(os.environ):
        yield warn("settings", said)


async def examine_store(settings: WorkerSettings) -> AsyncIterator[Finding]:
    """Report whether the store is reachable, sound, of the right schema, and notifies."""
    try:
        async with unopened(settings.store) as store:
            if settings.store.connection.is_lent:
                await store.open()
                yield ok("reached", f"{store.description}, which lends it; what is in it is examined there")
                yield await _listen(store)
                return
            status = await store.schema.status()
            yield ok("reached", store.description)
            if settings.store.connection.scheme == "postgresql":
                for finding in judge_server(await _look(settings.store.url), settings):
                    yield finding
            schema = examine_schema(status)
            yield schema
            if schema.mark is not Mark.OK:
                return
            async for finding in examine_contents(store, settings):
                yield finding
    except SchemaError as error:
        yield fail("schema", str(error), SCHEMA_UNSUITABLE)
    except StowhandError as error:
        yield fail("reached", str(error), exit_code(error))


async def examine_contents(store: QueueStore, settings: WorkerSettings) -> AsyncIterator[Finding]:
    """Examine the contents of the store, and whether wake-ups arrive. Raises StoreError."""
    await store.open()
    yield await _defaults(store, settings)
    if altered := await store.schema.foreign_changes():
        yield fail("schema", f"{'; '.join(altered[:SHOWN])}: another program was here; run stowhand migrate")
    if damage := await store.schema.find_damage():
        yield fail("sound", "; ".join(damage[:SHOWN]))
    found, cron = await read_stats(store), await cron_figures(store.timetable)
    for finding in (*examine_work(found), *await examine_overdue(store, found), *examine_cron(cron)):
        yield finding
    yield await _listen(store)


def examine_schema(status: SchemaStatus) -> Finding:
    """Judge the schema as a worker does at its start."""
    if status.installed is None:
        return warn("schema", "none yet; a worker installs it, and so does: stowhand migrate")
    compared = f"number {status.installed}, this version knows {status.expected}"
    if status.breaking:
        return fail("schema", f"{compared}: upgrade stowhand", SCHEMA_UNSUITABLE)
    if status.installed < status.expected:
        return fail("schema", f"{compared}: run stowhand migrate", SCHEMA_UNSUITABLE)
    return ok("schema", compared if status.installed > status.expected else f"number {status.installed}")


def examine_tasks(settings: WorkerSettings) -> Iterator[Finding]:
    """Report whether the tasks can be loaded."""
    from stowhand.service.loading import load_tasks

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


async def _defaults(store: QueueStore, settings: WorkerSettings) -> Finding:
    if (said := await attempts_apart(store, settings.store)) is not None:
        return warn("attempts", said)
    attempts = await store.schema.default_max_attempts()
    return ok("attempts", f"{attempts} for a job of which neither call, task, preset nor App says a number")


async def _listen(store: QueueStore) -> Finding:
    """Report whether wake-ups arrive: without them a worker polls, which is slower and never wrong."""
    for _ in range(LISTEN_LOOKS):
        if store.is_listening:
            return ok("wake-ups", "heard")
        await store.wait(LISTEN_PATIENCE / LISTEN_LOOKS)
    return warn(
        "wake-ups",
        "not heard: workers poll; behind a transaction pooler give --listen-url, and --no-prepared-statements if it is"
        " a PgBouncer before 1.21",
    )


def _show(finding: Finding) -> None:
    mark = f"{finding.mark.value:<5}"
    if wants_color(sys.stdout):
        colour = {Mark.OK: "green", Mark.WARN: "yellow", Mark.FAIL: "red"}[finding.mark]
        mark = click.style(mark, fg=colour)
    click.echo(f"{mark} {finding.what:<11} {escape_lines(scrub(as_called(finding.said)), INDENT)}")


def examine_work(found: Stats) -> Iterator[Finding]:
    """Report workers, pauses and jobs, the most important first."""
    alive = [line for line in found.workers if line.row.alive]
    yield from _workers(found, alive)
    yield from _tasks_without_workers(found, alive)
    if paused := [*found.figures.paused, *found.figures.pauses.names()]:
        resume = "stowhand serials resume (--task for a task) and stowhand queues resume let them go on"
        yield warn("pauses", f"paused: {_some(paused)}; {resume}")
    yield from _queues(found, alive)
    if lost := [line.row.card.name for line in found.workers if not line.row.alive]:
        yield warn("workers", f"lost in the last day: {_some(lost)}")
    yield ok("jobs", state_line(found))


def _queues(found: Stats, alive: list[WorkerLine]) -> Iterator[Finding]:
    served = [line.row.card.queues for line in alive]
    named = [one for one in found.figures.queues if one.name is not None]
    unserved = [f"{one.name} ({one.due} due)" for one in named if one.due.number and not _is_in(one.name, served)]
    if alive and unserved:
        said = f"no live worker claims from: {_some(unserved)}"
        yield warn("queues", f"{said}; start one with --queue NAME, or without --queue and --exclude-queue")
    serials = {one.name for one in found.figures.serials}
    if alike := [one.name for one in named if one.name is not None and one.name in serials]:
        said = f"serial keys with the name of a queue: {_some(alike)}"
        yield warn("queues", f"{said}; a serial key (queue_name in SQL) runs its jobs one at a time")


def _is_in(name: str | None, served: Sequence[Queues]) -> bool:
    return any(name in queues for queues in served)


def examine_cron(found: CronFigures) -> Iterator[Finding]:
    """Report recurring items that will not run, or did not."""
    if found.unscheduled:
        said = f"scheduled by nobody: {_some(list(found.unscheduled))}"
        yield warn("cron", f"{said}; start a worker with their crontab, or: stowhand cron remove")
    if found.missed:
        ticks = [f"{name} ({say(at)})" for name, at in found.missed.items()]
        yield warn("cron", f"missed a tick: {_some(ticks)}; stowhand cron run makes its job now")
    if found.known and not (found.unscheduled or found.missed):
        yield ok("cron", f"{len(found.known)} recurring items, all scheduled")


def _workers(found: Stats, alive: list[WorkerLine]) -> Iterator[Finding]:
    due = sum((one.due for one in found.figures.tasks), Amount())
    if alive:
        busy = sum((line.busy for line in alive), Amount())
        slots = sum(line.row.card.concurrency for line in alive)
        yield ok("workers", f"{len(alive)} alive, {busy} of {slots} slots busy, {due} jobs due")
    elif due.number:
        tasks = _some([f"{one.name} ({one.due})" for one in found.figures.tasks if one.due.number])
        start = f"start one that has their tasks: {tasks} (stowhand worker MODULE:APP)"
        yield warn("workers", f"none is alive, and {due} jobs are due: {start}")
    else:
        yield ok("workers", "none is alive, and nothing is due")


def _tasks_without_workers(found: Stats, alive: list[WorkerLine]) -> Iterator[Finding]:
    known = _tasks_of(alive)
    if not alive or known is None:
        return
    orphaned = [f"{one.name} ({one.due})" for one in found.figures.tasks if one.due.number and one.name not in known]
    if orphaned:
        yield warn("tasks", f"due, and no live worker has it (or claims it: --task, --exclude-task): {_some(orphaned)}")


async def examine_overdue(store: QueueStore, found: Stats) -> list[Finding]:
    """Report jobs that wait beside a free slot for no known reason."""
    alive = [line for line in found.workers if line.row.alive]
    if not alive:
        return []
    findings: list[Finding] = []
    for job_id in await store.inspect.overdue(_tasks_of(alive)):
        explanation = await store.inspect.explain(job_id)
        reasons = () if explanation is None else explanation.reasons
        findings += [
            warn("overdue", f"job {job_id}: {reason.what}; {reason.todo}")
            for reason in reasons
            if reason.code == "overdue"
        ]
    return findings[:SHOWN]


def _tasks_of(workers: Sequence[WorkerLine]) -> list[str] | None:
    """The tasks that these workers have; ``None``: any task."""
    tasks = [line.row.card.tasks for line in workers]
    return None if None in tasks else sorted({task for some in tasks for task in some or ()})


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


OLDEST = 13
SKEW_LIMIT = 1.0
"""Seconds."""
# What a login that is no superuser may have: a database and a role may allow fewer than the server. Connections of
# workers do not count: a new start replaces them.
_LOOK = b"""
    SELECT current_setting('server_version_num')::int,
           clock_timestamp(),
           least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
                     - coalesce(current_setting('reserved_connections', true)::int, 0),
                 (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()),
                 (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user)),
           count(*) FILTER (WHERE application_name NOT LIKE 'stowhand:%%' AND pid <> pg_backend_pid())::int,
           current_setting('transaction_read_only')::bool
    FROM pg_stat_activity
    WHERE backend_type = 'client backend'
"""
PARENT = 3
"""Connections of the parent of several processes: to schedule, to look, to take back what a dead child held."""


class Server(msgspec.Struct, frozen=True):
    """The facts about a PostgreSQL server that one query shows."""

    version: int
    skew: float
    """Seconds that its clock is ahead of ours."""
    max_connections: int
    """Connections that it gives to this login."""
    used: int
    """Connections of other programs."""
    read_only: bool = False


def judge_server(server: Server, settings: WorkerSettings) -> Iterator[Finding]:
    """Judge the facts about a server."""
    major = server.version // 10_000
    if major < OLDEST:
        yield warn("server", f"PostgreSQL {major}; {OLDEST} is the oldest that is tried")
    else:
        yield ok("server", f"PostgreSQL {major}")
    if server.read_only:
        said = "a standby, or read-only: nothing can be enqueued or claimed; name the primary, or several hosts with"
        yield fail("writes", f"{said} target_session_attrs=read-write", STORE_UNREACHABLE)
    if abs(server.skew) > SKEW_LIMIT:
        word = "ahead of" if server.skew > 0 else "behind"
        yield warn("clock", f"the server's is {abs(server.skew):.1f} s {word} this machine's; jobs run by the server's")
    else:
        yield ok("clock", "the server's and this machine's agree")
    wanted, added = settings.processes * settings.pool_size, f"{settings.processes} x {settings.pool_size}"
    if settings.processes > 1:
        wanted, added = wanted + PARENT, f"{added} + {PARENT} of their parent"
    said = f"{added} = {wanted} at most; the server gives {server.max_connections}, of which others use {server.used}"
    if wanted > server.max_connections - server.used:
        yield warn("connections", f"{said}: lower -j, -m or --processes, or raise max_connections")
    else:
        yield ok("connections", said)


async def _look(url: str) -> Server:
    from stowhand.errors import StoreError
    from stowhand.stores.database.address import Address
    from stowhand.stores.database.link import Dialer, Link
    from stowhand.stores.database.trouble import first_line

    link = Link(Dialer(Address(url), prepared=False), lambda: "stowhand doctor")
    try:
        before = wall_clock()
        ((version, now, *facts),) = await link.rows(_LOOK)
        asked = before + (wall_clock() - before) / 2  # it was answered at some moment between the two
        return Server(version, (now - asked).total_seconds(), *facts)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001  boundary: a driver's error becomes one of ours
        raise StoreError(first_line(error)) from None
    finally:
        await link.close()
