"""A Django project as an App, for its workers and the command line."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any

from django.tasks import task_backends

from stowhand.app.app import App
from stowhand.django.application import BACKEND_VARIABLE, around_thread
from stowhand.django.attempts import StopMiddleware, function_of, options_of
from stowhand.django.backend import StowhandBackend
from stowhand.django.task import refuse_misfit
from stowhand.errors import ConfigurationError, suggest


def app_of(backend: StowhandBackend) -> App:
    """Return the tasks of a backend, on its database, as an App."""
    store_options = backend.database.options
    app = App(
        backend.database.url,
        schema=store_options.schema,
        max_attempts=store_options.max_attempts,
        around_thread=around_thread,
        middleware=[partial(StopMiddleware, backend)],
    )
    declare_tasks(app, backend)
    for identifier, item in backend.cron.items():
        declare_recurring(app, backend, identifier, item)
    return app


def declare_tasks(app: App, backend: StowhandBackend) -> None:
    """Declare the tasks of a backend. Raises ConfigurationError."""
    for path, task in backend.known().items():
        try:
            app.task(name=path, **options_of(task))(function_of(backend, task))
        except ConfigurationError as error:
            raise _without_location(error) from None


def declare_recurring(app: App, backend: StowhandBackend, identifier: str, item: Any) -> None:
    """Declare one item of OPTIONS['cron']. Raises ConfigurationError, also for arguments that the task rejects."""
    kwargs: dict[str, Any] = {}
    tz: str | None = None
    match item:
        case (pattern, str(path)):
            pass
        case (pattern, str(path), dict(kwargs)):
            pass
        case (pattern, str(path), dict(kwargs), str(tz)):
            pass
        case _:
            raise ConfigurationError(f"{item!r}: write a cron pattern and the path of a task")
    task = backend.known().get(path)
    if task is None or path not in app.registry:
        raise ConfigurationError(f"no worker has the task {path!r}{suggest(path, app.registry.names)}")
    try:
        refuse_misfit(task, (), kwargs)
    except TypeError as error:
        raise ConfigurationError(str(error)) from None
    try:
        app.cron(pattern, path, {"args": [], "kwargs": kwargs}, identifier=identifier, tz=tz)
    except ConfigurationError as error:
        raise _without_location(error) from None


def _without_location(error: ConfigurationError) -> ConfigurationError:
    """Return the error without a line number, because its cause is in the settings, not in a line of Django."""
    return ConfigurationError(re.sub(r"^.*?:\d+: ", "", str(error), flags=re.MULTILINE))


def chosen_backend() -> StowhandBackend:
    """Return the backend of Stowhand in TASKS; of several, the one that the environment names, else ``default``.

    Raises ConfigurationError.
    """
    own_backends = {backend.alias: backend for backend in task_backends.all() if isinstance(backend, StowhandBackend)}
    if not own_backends:
        raise ConfigurationError(
            "TASKS has no backend of stowhand: TASKS = {'default': {'BACKEND': 'stowhand.django.StowhandBackend'}}"
        )
    named_alias = os.environ.get(BACKEND_VARIABLE)
    if named_alias is not None and named_alias not in own_backends:
        raise ConfigurationError(
            f"TASKS has no backend {named_alias!r} of stowhand{suggest(named_alias, own_backends)}"
        )
    if named_alias is None and len(own_backends) > 1 and "default" not in own_backends:
        raise ConfigurationError(
            f"TASKS has several backends of stowhand ({', '.join(own_backends)}): --backend names one"
        )
    if named_alias is not None:
        return own_backends[named_alias]
    return own_backends.get("default") or next(iter(own_backends.values()))
