"""Stowhand as the task backend of a Django project, and as one of its apps.

    INSTALLED_APPS = [..., "stowhand.django"]
    TASKS = {"default": {"BACKEND": "stowhand.django.StowhandBackend"}}  # Django 6.0 or later
    STOWHAND_APP = "shop.jobs:app"  # any Django: tasks of an App

task        ``@task`` with a job's options; the tasks of a worker
backend     the task backend
results     a job as Django's ``TaskResult``
testing     ``drain``, for the tests of a project
admin       the entry of the dashboard in Django's admin; ``models.py`` has the permissions
dashboard   the dashboard behind a Django view
tables      the migrations
checks      problems of the settings
attempts    how a worker runs a task
project     the tasks of a backend as an App
application the App of a project, also without ``django.tasks``; the command line finds it in ``serving.py``
database    the database of ``DATABASES`` that stores the jobs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stowhand.django.application import HAS_TASKS, NO_TASKS, around_thread, database_url

if TYPE_CHECKING or HAS_TASKS:
    from stowhand.django.backend import StowhandBackend
    from stowhand.django.task import Task, task
else:

    def __getattr__(name: str) -> Any:
        if name in __all__:
            raise ImportError(f"stowhand.django.{name}: {NO_TASKS}; declare tasks with an App (STOWHAND_APP)")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["StowhandBackend", "Task", "around_thread", "database_url", "task"]
