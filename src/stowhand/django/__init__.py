"""Stowhand as the task backend of a Django project, and as one of its apps.

    INSTALLED_APPS = [..., "stowhand.django"]
    TASKS = {"default": {"BACKEND": "stowhand.django.StowhandBackend"}}

task        ``@task`` with options of a job; which tasks a worker has
backend     what Django asks of a backend
results     a job as Django's ``TaskResult``
testing     for the tests of a project: ``drain``
admin       the entry of the dashboard in Django's admin; ``models.py`` has the permissions
dashboard   the dashboard behind a view of Django's
tables      its migrations
checks      what is wrong with the settings
attempts    how a worker runs a task
project     the tasks and the database as an App; ``serving.py`` is where the command line finds it
database    the alias of ``DATABASES`` in which the jobs are kept
"""

from __future__ import annotations

from stowhand.django.backend import StowhandBackend
from stowhand.django.task import Task, task

__all__ = ["StowhandBackend", "Task", "task"]
