"""``stowhand doctor``: look at this machine, the settings and the store, and say what is wrong with each."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from stowhand import __version__
from stowhand.app.settings.file import read_settings_file
from stowhand.app.settings.settings import WorkerSettings, unknown_variables
from stowhand.cli.doctor_postgres import examine_server
from stowhand.cli.doctor_work import examine_work
from stowhand.cli.findings import Finding, Mark, fail, ok, warn
from stowhand.cli.options import settings_of, store_options, tasks_option
from stowhand.cli.session import unopened
from stowhand.cli.stats import read_stats
from stowhand.errors import SchemaError, StowhandError
from stowhand.jobs.durations import say_duration
from stowhand.observe.logs import wants_color
from stowhand.observe.safe_text import escape_lines, scrub
from stowhand.protocols.queue_store import QueueStore, SchemaStatus
from stowhand.protocols.store import RESERVED_CONNECTIONS
from stowhand.service.exit_codes import OK, SCHEMA_UNSUITABLE, exit_code
from stowhand.service.opening import attempts_apart

LISTEN_PATIENCE = 3.0
LISTEN_LOOKS = 15
INDENT = " " * 18
SHOWN = 5
"""Problems of one store in the report, at most."""
PACKAGES = ("msgspec", "click", "psycopg", "psycopg-binary", "pydantic")


@click.command()
@tasks_option
@store_options
def command(**typed: Any) -> int:
    """Check Python, the settings, the store, its schema and the tasks. Changes nothing.

    Exit code: 0 nothing is broken, 1 something is, 3 the store cannot be reached, 4 its schema is unsuitable.
    """
    settings = settings_of(typed)
    worst = OK

    async def examine() -> None:
        nonlocal worst
        async for finding in examine_everything(settings):
            worst = max(worst, finding.code)
            _show(finding)

    asyncio.run(examine())
    return worst


async def examine_everything(settings: WorkerSettings) -> AsyncIterator[Finding]:
    """In the order in which things are needed."""
    for finding in (*examine_machine(), *examine_settings(settings)):
        yield finding
    async for finding in examine_store(settings):
        yield finding
    for finding in examine_tasks(settings):
        yield finding


def examine_machine() -> Iterator[Finding]:
    """Python and the packages."""
    python = f"{platform.python_version()} on {platform.system()}"
    yield ok("Python", python) if sys.version_info >= (3, 11) else fail("Python", f"{python}; 3.11 or newer is needed")
    versions = ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name)))
    yield ok("stowhand", f"{__version__} ({versions})")


def examine_settings(settings: WorkerSettings) -> Iterator[Finding]:
    """Which store, which setting names it, and which settings have no effect."""
    connection = settings.store.connection
    yield ok("store", f"{scrub(connection.url)} ({connection.source})")
    if connection.note:
        yield warn("store", connection.note)
    file = read_settings_file(Path())
    if file.ignored:
        yield warn("settings", f"{file.ignored} has settings too; only {file.name} is read")
    for _, said in unknown_variables(os.environ):
        yield warn("settings", said)
    lease, grace = say_duration(settings.lease), say_duration(settings.grace)
    yield ok("worker", f"{settings.processes} x {settings.jobs} jobs at once, lease {lease}, grace {grace}")
    if connection.scheme == "postgresql":
        pool = settings.store.max_pool_size
        left = pool - RESERVED_CONNECTIONS
        said = f"{pool} in each process: a worker keeps {RESERVED_CONNECTIONS}, tasks have {left}"
        yield ok("pool", said) if settings.pool_shortage is None else warn("pool", settings.pool_shortage)


async def examine_store(settings: WorkerSettings) -> AsyncIterator[Finding]:
    """Reachable, of the right schema, sound, and heard from."""
    try:
        async with unopened(settings.store) as store:
            if settings.store.connection.is_lent:
                await store.open()
                yield ok("reached", f"{store.description}, which lends it; what is in it is examined there")
                yield await _listen(store, settings)
                return
            status = await store.schema.status()
            yield ok("reached", store.description)
            if settings.store.connection.scheme == "postgresql":
                for finding in await examine_server(settings):
                    yield finding
            schema = examine_schema(status)
            yield schema
            if schema.mark is not Mark.OK:
                return
            await store.open()
            yield await _defaults(store, settings)
            if altered := await store.schema.foreign_changes():
                yield fail("schema", f"{'; '.join(altered[:SHOWN])}: another program was here; run stowhand migrate")
            if (damage := await store.schema.find_damage()) is not None:
                yield _soundness(damage)
            for finding in examine_work(await read_stats(store)):
                yield finding
            yield await _listen(store, settings)
    except SchemaError as error:
        yield fail("schema", str(error), SCHEMA_UNSUITABLE)
    except StowhandError as error:
        yield fail("reached", str(error), exit_code(error))


def examine_schema(status: SchemaStatus) -> Finding:
    """What a worker would say to it."""
    if status.installed is None:
        return warn("schema", "none yet; a worker installs it, and so does: stowhand migrate")
    compared = f"number {status.installed}, this version knows {status.expected}"
    if status.breaking:
        return fail("schema", f"{compared}: upgrade stowhand", SCHEMA_UNSUITABLE)
    if status.installed < status.expected:
        return fail("schema", f"{compared}: run stowhand migrate", SCHEMA_UNSUITABLE)
    return ok("schema", compared if status.installed > status.expected else f"number {status.installed}")


def examine_tasks(settings: WorkerSettings) -> Iterator[Finding]:
    """Can they be loaded?"""
    from stowhand.app.long_tasks import cut_short
    from stowhand.app.presets import SERVICE
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
    if (said := cut_short(loaded.registry, settings.grace, "--grace")) is not None:
        yield warn("tasks", said) if settings.preset == SERVICE else ok("tasks", said)
    yield ok("tasks", ", ".join(loaded.names)) if loaded.names else warn("tasks", "none")


def _soundness(problems: Sequence[str]) -> Finding:
    if problems:
        return fail("sound", "; ".join(problems[:SHOWN]))
    return ok("sound", "the store finds nothing wrong with itself")


async def _defaults(store: QueueStore, settings: WorkerSettings) -> Finding:
    if (said := await attempts_apart(store, settings.store)) is not None:
        return warn("attempts", said)
    attempts = await store.schema.default_max_attempts()
    return ok("attempts", f"{attempts} for a job of which neither call, task, preset nor App says a number")


async def _listen(store: QueueStore, settings: WorkerSettings) -> Finding:
    """A worker that hears nothing polls: slower to wake, never wrong."""
    for _ in range(LISTEN_LOOKS):
        if store.is_listening:
            return ok("wake-ups", "heard")
        await store.wait(LISTEN_PATIENCE / LISTEN_LOOKS)
    if settings.store.listen_url:
        return warn("wake-ups", "not heard: workers poll")
    # The first to come through such a pooler mixes nothing up yet, so that nothing else here fails.
    given = settings.store.no_prepared_statements
    kept = "" if given else ", and --no-prepared-statements if it is a PgBouncer before 1.21"
    return warn("wake-ups", f"not heard: workers poll; behind a transaction pooler give --listen-url{kept}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _show(finding: Finding) -> None:
    mark = f"{finding.mark.value:<5}"
    if wants_color(sys.stdout):
        colour = {Mark.OK: "green", Mark.WARN: "yellow", Mark.FAIL: "red"}[finding.mark]
        mark = click.style(mark, fg=colour)
    click.echo(f"{mark} {finding.what:<11} {escape_lines(scrub(finding.said), INDENT)}")
