"""The App of a Django project: the one that its settings name, or the one of its task backend.

Nothing here needs ``django.tasks``, which Django has since 6.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import django
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, close_old_connections

from stowhand.app.app import App
from stowhand.app.own_store import DatabaseUrl
from stowhand.django.database import Database
from stowhand.errors import ConfigurationError
from stowhand.protocols.store import StoreOptions
from stowhand.stores.database.sqlite_file import IN_MEMORY_NAME
from stowhand.tasks.loader import load_object

APP_SETTING = "STOWHAND_APP"
BACKEND_VARIABLE = "DJANGO_STOWHAND_BACKEND"
"""Environment variable with the alias in TASKS to use, if there are several."""
HAS_TASKS = django.VERSION >= (6, 0)
NO_TASKS = f"Django {django.get_version()} has no django.tasks (Django 6.0 has)"


def project_app() -> App:
    """Return the App of the project. Raises ConfigurationError."""
    target = getattr(settings, APP_SETTING, None)
    if target is not None:
        try:
            return load_object(str(target), App)
        except ConfigurationError as error:
            raise ConfigurationError(f"{APP_SETTING}: {error}") from error
    if not HAS_TASKS:
        raise ConfigurationError(f"{NO_TASKS}: declare tasks with an App, and name it: {APP_SETTING} = 'shop.jobs:app'")
    from stowhand.django.project import app_of, chosen_backend

    return app_of(chosen_backend())


def database_url(alias: str = DEFAULT_DB_ALIAS) -> str:
    """Return the URL of a database of ``DATABASES``, for an App. It may contain a password.

    In a test run of Django, the App uses the test database.

    Args:
        alias: Its key in ``DATABASES``.

    Raises:
        ConfigurationError: There is no such database, or it is neither PostgreSQL nor SQLite.

    Example:
        app = App(database_url(), around_thread=around_thread)

    """
    database = Database(alias, StoreOptions())
    return DatabaseUrl(alias, lambda: f"sqlite:///{IN_MEMORY_NAME}" if database.is_in_memory else database.url)


@contextmanager
def around_thread() -> Iterator[None]:
    """Context manager around each ``def`` task in its thread, so that a lost connection fails only one attempt."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()
