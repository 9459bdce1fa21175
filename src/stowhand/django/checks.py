"""What is wrong with the settings of a backend, in Django's system checks: with what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core import checks
from django.db import connections
from django.tasks import base

from stowhand.django.known import known_tasks
from stowhand.errors import ConfigurationError, suggest

if TYPE_CHECKING:
    from stowhand.django.backend import StowhandBackend


def check_backend(backend: StowhandBackend) -> list[Any]:
    """Asks no database."""
    where, alias = f"TASKS[{backend.alias!r}]", backend.database.alias
    if alias not in connections.settings:
        words = f"{where}: OPTIONS['database'] is {alias!r}, which DATABASES lacks."
        hint = f"Name one of {', '.join(map(repr, connections.settings))}."
        return [checks.Error(words, hint=hint, id="stowhand.E001")]
    found: list[Any] = []
    if not apps.is_installed("stowhand.django"):
        hint = "Add 'stowhand.django': it brings the tables, and the command that runs the worker."
        found.append(checks.Error(f"{where}: INSTALLED_APPS lacks it.", hint=hint, id="stowhand.E002"))
    try:
        vendor = backend.database.vendor
    except ConfigurationError as error:
        return [*found, checks.Error(f"{where}: {error}.", id="stowhand.E003")]
    try:
        found += _of_cron(backend, where, known_tasks(backend.modules))
    except ConfigurationError as error:
        found.append(checks.Error(f"{where}: OPTIONS['modules']: {error}", id="stowhand.E004"))
    return found + (_of_sqlite(backend, where) if vendor == "sqlite" else [])


def _of_cron(backend: StowhandBackend, where: str, known: Mapping[str, base.Task]) -> list[Any]:
    found = []
    for name, item in backend.cron.items():
        if len(item) not in (2, 3) or item[1] not in known:
            path = item[1] if len(item) > 1 else ""
            hint = (
                f"Write ('0 3 * * *', 'shop.tasks.report'), and {{...}} behind it for arguments{suggest(path, known)}."
            )
            words = f"{where}: OPTIONS['cron'][{name!r}] names no task of a worker: {item!r}."
            found.append(checks.Error(words, hint=hint, id="stowhand.E005"))
    return found


def _of_sqlite(backend: StowhandBackend, where: str) -> list[Any]:
    if backend.database.is_in_memory:
        return []
    alias = backend.database.alias
    options = backend.database.connection.settings_dict["OPTIONS"]
    found: list[Any] = []
    if str(options.get("transaction_mode", "")).upper() != "IMMEDIATE":
        found.append(
            checks.Warning(
                f"{where}: DATABASES[{alias!r}] begins its transactions as a reader.",
                hint="A transaction that reads first and then enqueues fails with 'database is locked' when a worker"
                " has written meanwhile. Set OPTIONS = {'transaction_mode': 'IMMEDIATE'}.",
                id="stowhand.W001",
            )
        )
    mode = str(options.get("init_command", "")).lower().replace(" ", "")
    if "journal_mode" in mode and "journal_mode=wal" not in mode:
        found.append(
            checks.Warning(
                f"{where}: the init_command of DATABASES[{alias!r}] sets a journal_mode other than WAL.",
                hint="Workers and requests would wait for each other, and each connection would change the mode of"
                " the file. Write 'PRAGMA journal_mode=WAL', or leave it out: a worker sets it.",
                id="stowhand.W002",
            )
        )
    return found
