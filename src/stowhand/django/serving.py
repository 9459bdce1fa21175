"""The project's App, ``stowhand.django.serving:app``, for the command line and the processes that it starts."""

from __future__ import annotations

import django
from django.apps import apps

from stowhand.django.application import project_app
from stowhand.observe.logs import logging_restored

if not apps.ready:
    with logging_restored():
        django.setup()
app = project_app()
