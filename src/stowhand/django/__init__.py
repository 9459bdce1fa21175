"""Stowhand as the task backend of a Django project, and as one of its apps.

    INSTALLED_APPS = [..., "stowhand.django"]
    TASKS = {"default": {"BACKEND": "stowhand.django.StowhandBackend"}}

task        ``@task`` with a job's options; the tasks of a worker
backend     the task backend
results     a job as Django's ``TaskResult``
testing     ``drain``, for the tests of a project
admin       the entry of the dashboard in Django's admin; ``models.py`` has the permissions
dashboard   the dashboard behind a Django view
tables      the migrations
checks      problems of the settings
attempts    how a worker runs a task
project     the project as an App; the command line finds it in ``serving.py``
database    the database of ``DATABASES`` that stores the jobs
"""

from __future__ import annotations

from stowhand.django.backend import StowhandBackend
from stowhand.django.task import Task, task

__all__ = ["StowhandBackend", "Task", "task"]
