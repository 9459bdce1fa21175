"""``stowhand doctor``: look at this machine, the settings and the store, and say what is wrong with each."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import click
import msgspec

from stowhand import __version__
from stowhand.cli.options import settings_of, store_options, tasks_options
from stowhand.cli.session import unopened
from stowhand.errors import SchemaError, StowhandError
from stowhand.observe.logs import wants_color
from stowhand.observe.safe_text import escape, scrub
from stowhand.service.durations import say_duration
from stowhand.service.exit_codes import FAILURE, OK, SCHEMA_UNSUITABLE, exit_code
from stowhand.service.setting_table import RESERVED_CONNECTIONS
from stowhand.service.settings import WorkerSettings, suspicious_variables
from stowhand.service.settings_file import read_settings_file
from stowhand.store import QueueStore, SchemaStatus

LISTEN_PATIENCE = 3.0
LISTEN_LOOKS = 15
SHOWN = 5
"""Problems of one store in the report, at most."""
PACKAGES = ("msgspec", "click", "psycopg", "psycopg-pool", "psycopg-binary", "rich", "pydantic")


@runtime_checkable
class Checkable(Protocol):
    """A store that can examine itself: SQLite its file, for example."""

    async def check(self) -> list[str]:
        """What is wrong; empty when nothing is."""


class Mark(StrEnum):
    """How a finding is to be read."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    mark: Mark
    what: str
    said: str
    code: int = OK
    """The exit code that a failure asks for."""


@click.command()
@tasks_options
@store_options
def command(**typed: Any) -> int:
    """Check Python, the settings, the store, its schema and the tasks. Changes nothing.

    Exit code: 0 nothing is broken, 1 something is, 3 the store cannot be reached, 4 its schema is unsuitable.
    """
    settings = settings_of(typed)
    found = [*examine_machine(), *examine_settings(settings)]
    for finding in found:
        _show(finding)

    async def examine() -> None:
        async for finding in examine_store(settings):
            found.append(finding)
            _show(finding)

    asyncio.run(examine())
    for finding in examine_tasks(settings):
        found.append(finding)
        _show(finding)
    return max((finding.code for finding in found), default=OK)


def examine_machine() -> Iterator[Finding]:
    """Python and the packages."""
    enough = sys.version_info >= (3, 11)
    yield Finding(
        Mark.OK if enough else Mark.FAIL,
        "Python",
        f"{platform.python_version()} on {platform.system()}" + ("" if enough else "; 3.11 or newer is needed"),
        OK if enough else FAILURE,
    )
    versions = ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name)))
    yield Finding(Mark.OK, "stowhand", f"{__version__} ({versions})")


def examine_settings(settings: WorkerSettings) -> Iterator[Finding]:
    """Which store, who said so, and what was said in vain."""
    connection = settings.store.connection
    yield Finding(Mark.OK, "store", f"{scrub(connection.url)} ({connection.source})")
    if connection.note:
        yield Finding(Mark.WARN, "store", connection.note)
    file = read_settings_file(Path())
    if file.ignored:
        yield Finding(Mark.WARN, "settings", f"{file.ignored} has settings too; only {file.name} is read")
    for name, near in suspicious_variables(os.environ):
        yield Finding(Mark.WARN, "settings", f"the variable {name} means nothing; did you mean {near}?")
    yield Finding(
        Mark.OK,
        "worker",
        f"{settings.processes} x {settings.jobs} jobs at once, lease {say_duration(settings.lease)},"
        f" grace {say_duration(settings.grace)}",
    )
    if connection.scheme == "postgresql":
        pool = settings.store.max_pool_size
        yield Finding(
            Mark.OK,
            "pool",
            f"{settings.processes} x {pool} = {settings.processes * pool} connections at most; of each {pool}"
            f" a worker keeps {RESERVED_CONNECTIONS}, tasks have {pool - RESERVED_CONNECTIONS}",
        )


async def examine_store(settings: WorkerSettings) -> AsyncIterator[Finding]:
    """Reachable, of the right schema, readable, and heard from."""
    try:
        async with unopened(settings.store) as store:
            status = await store.status()
            yield Finding(Mark.OK, "reached", store.description)
            schema = examine_schema(status)
            yield schema
            if schema.mark is not Mark.OK:
                return
            await store.open()
            if isinstance(store, Checkable):
                yield _soundness(await store.check())
            yield await _count(store)
            yield await _listen(store, settings)
    except SchemaError as error:
        yield Finding(Mark.FAIL, "schema", str(error), SCHEMA_UNSUITABLE)
    except StowhandError as error:
        yield Finding(Mark.FAIL, "reached", str(error), exit_code(error))


def examine_schema(status: SchemaStatus) -> Finding:
    """What a worker would say to it."""
    known = f"this version knows {status.expected}"
    if status.installed is None:
        return Finding(Mark.WARN, "schema", "none yet; a worker installs it, and so does: stowhand migrate")
    if status.breaking:
        return Finding(Mark.FAIL, "schema", f"number {status.installed}; {known}: upgrade stowhand", SCHEMA_UNSUITABLE)
    if status.installed < status.expected:
        return Finding(
            Mark.FAIL, "schema", f"number {status.installed}; {known}: run stowhand migrate", SCHEMA_UNSUITABLE
        )
    if status.installed > status.expected:
        return Finding(Mark.OK, "schema", f"number {status.installed}, newer and compatible ({known})")
    return Finding(Mark.OK, "schema", f"number {status.installed}")


def examine_tasks(settings: WorkerSettings) -> Iterator[Finding]:
    """Can they be loaded?"""
    from stowhand.service.loading import load_tasks

    if settings.app is None and not Path(settings.tasks or "tasks").is_dir():
        mark = Mark.WARN if settings.tasks is None else Mark.FAIL
        yield Finding(
            mark,
            "tasks",
            f"no folder {settings.tasks or 'tasks'}/ here, and no --app",
            OK if mark is Mark.WARN else FAILURE,
        )
        return
    try:
        loaded = load_tasks(settings)
    except StowhandError as error:
        yield Finding(Mark.FAIL, "tasks", str(error), FAILURE)
        return
    for problem in loaded.problems:
        yield Finding(Mark.WARN, "tasks", problem)
    yield Finding(Mark.OK if loaded.names else Mark.WARN, "tasks", ", ".join(loaded.names) or "none")


def _soundness(problems: Sequence[str]) -> Finding:
    if problems:
        return Finding(Mark.FAIL, "sound", "; ".join(problems[:SHOWN]), FAILURE)
    return Finding(Mark.OK, "sound", "the store finds nothing wrong with itself")


async def _count(store: QueueStore) -> Finding:
    counts = await store.counts()
    return Finding(Mark.OK, "jobs", ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none")


async def _listen(store: QueueStore, settings: WorkerSettings) -> Finding:
    """A worker that hears nothing polls: slower to wake, never wrong."""
    for _ in range(LISTEN_LOOKS):
        if store.hears:
            return Finding(Mark.OK, "wake-ups", "heard")
        await store.wait(LISTEN_PATIENCE / LISTEN_LOOKS)
    through = "" if settings.store.listen_url else "; behind a transaction pooler give --listen-url"
    return Finding(Mark.WARN, "wake-ups", f"not heard: workers poll{through}")


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
    click.echo(f"{mark} {finding.what:<9} {escape(scrub(finding.said))}")
