"""Django's system checks of a backend's settings, each problem with its fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core import checks
from django.db import connections
from django.tasks import task_backends

from stowhand.app.app import App
from stowhand.django.project import declare_recurring, declare_tasks
from stowhand.django.task import known_tasks
from stowhand.errors import ConfigurationError, suggest
from stowhand.stores.url import MEMORY_URL

if TYPE_CHECKING:
    from stowhand.django.backend import StowhandBackend

BACKEND_SETTINGS = ("BACKEND", "QUEUES", "OPTIONS")
"""The settings of a backend in TASKS."""


def check_backend(backend: StowhandBackend) -> list[Any]:
    """Return the problems of a backend's settings, without using a database."""
    if backend.settings_error is not None:
        return [checks.Error(f"{backend.settings_error}.", id="stowhand.E007")]
    location, alias = f"TASKS[{backend.alias!r}]", backend.database.alias
    if alias not in connections.settings:
        message = f"{location}: OPTIONS['database'] is {alias!r}, which DATABASES lacks."
        hint = f"Name one of {', '.join(map(repr, connections.settings))}."
        return [checks.Error(message, hint=hint, id="stowhand.E001")]
    messages: list[Any] = []
    for name in task_backends.settings.get(backend.alias, {}):
        if name not in BACKEND_SETTINGS:
            hint = suggest(name, BACKEND_SETTINGS).removeprefix("; ")
            messages.append(checks.Warning(f"{location}: unknown setting {name!r}.", hint=hint, id="stowhand.W003"))
    if not apps.is_installed("stowhand.django"):
        hint = "Add it for its tables and for the command that runs the worker."
        message = f"{location}: INSTALLED_APPS lacks 'stowhand.django'."
        messages.append(checks.Error(message, hint=hint, id="stowhand.E002"))
    try:
        vendor, _ = backend.database.vendor, backend.database.jobs
    except ConfigurationError as error:
        return [*messages, checks.Error(f"{location}: {error}.", id="stowhand.E003")]
    try:
        known_tasks(backend.modules)
    except ConfigurationError as error:
        messages.append(checks.Error(f"{location}: OPTIONS['modules']: {error}", id="stowhand.E004"))
    else:
        messages += _check_tasks(backend, location)
    return messages + (_check_sqlite(backend, location) if vendor == "sqlite" else [])


def _check_tasks(backend: StowhandBackend, location: str) -> list[Any]:
    """Declare the tasks as a worker would, and return the problems."""
    app = App(MEMORY_URL)
    try:
        declare_tasks(app, backend)
    except ConfigurationError as error:
        return [checks.Error(f"{location}: no worker could start: {error}.", id="stowhand.E006")]
    messages = []
    for name, item in backend.cron.items():
        try:
            declare_recurring(app, backend, name, item)
        except ConfigurationError as error:
            hint = "Write ('0 3 * * *', 'shop.tasks.report'); a third item {...} has arguments, a fourth a time zone."
            messages.append(
                checks.Error(f"{location}: OPTIONS['cron'][{name!r}]: {error}.", hint=hint, id="stowhand.E005")
            )
    return messages


def _check_sqlite(backend: StowhandBackend, location: str) -> list[Any]:
    if backend.database.is_in_memory:
        return []
    alias = backend.database.alias
    options = backend.database.connection.settings_dict["OPTIONS"]
    if str(options.get("transaction_mode", "")).upper() == "IMMEDIATE":
        return []
    return [
        checks.Warning(
            f"{location}: DATABASES[{alias!r}] begins its transactions as a reader.",
            hint="A transaction that reads first and then enqueues fails with 'database is locked' when a worker"
            " has written meanwhile. Set OPTIONS = {'transaction_mode': 'IMMEDIATE'}.",
            id="stowhand.W001",
        )
    ]
