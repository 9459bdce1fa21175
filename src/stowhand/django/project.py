"""A Django project as an App: what its workers run, and what the command line asks for jobs."""

from __future__ import annotations

import os
from functools import partial

from django.tasks import base, task_backends

from stowhand.app.app import App
from stowhand.django.attempts import Stopped, around_thread, function_of, options_of
from stowhand.django.backend import StowhandBackend
from stowhand.errors import ConfigurationError, suggest

BACKEND = "DJANGO_STOWHAND_BACKEND"
"""The alias in TASKS whose jobs are meant, where there are several."""


def app_of(backend: StowhandBackend) -> App:
    """The tasks of a backend, on its database. Each has a name for every queue of the backend."""
    given = backend.database.options
    app = App(
        backend.database.url,
        schema=given.schema,
        max_attempts=given.max_attempts,
        around_thread=around_thread,
        middleware=[partial(Stopped, backend)],
    )
    for name, (task, queue) in names_of(backend).items():
        app.task(name=name, **options_of(task, queue))(function_of(backend, task))
    for identifier, (pattern, path, *kwargs) in backend.cron.items():
        app.cron(pattern, path, {"args": [], "kwargs": kwargs[0] if kwargs else {}}, identifier=identifier)
    return app


def names_of(backend: StowhandBackend) -> dict[str, tuple[base.Task, str]]:
    """Of the backend's jobs: each task's path, and one more for each other queue; with the task and the queue."""
    found: dict[str, tuple[base.Task, str]] = {}
    for path, task in backend.known().items():
        found[path] = (task, task.queue_name)
        found |= {f"{path}@{queue}": (task, queue) for queue in sorted(backend.queues - {task.queue_name})}
    return found


def chosen_backend() -> StowhandBackend:
    """The one of ours in TASKS; of several, the one that the environment names, else ``default``.

    Raises ConfigurationError.
    """
    ours = {one.alias: one for one in task_backends.all() if isinstance(one, StowhandBackend)}
    if not ours:
        raise ConfigurationError(
            "TASKS has no backend of stowhand: TASKS = {'default': {'BACKEND': 'stowhand.django.StowhandBackend'}}"
        )
    named = os.environ.get(BACKEND)
    if named is not None and named not in ours:
        raise ConfigurationError(f"TASKS has no backend {named!r} of stowhand{suggest(named, ours)}")
    if named is None and len(ours) > 1 and "default" not in ours:
        raise ConfigurationError(f"TASKS has several backends of stowhand ({', '.join(ours)}): --backend names one")
    return ours[named or ("default" if "default" in ours else next(iter(ours)))]
