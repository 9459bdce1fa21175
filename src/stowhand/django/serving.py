"""``stowhand.django.serving:app``: the project's App, for the command line and for the processes that it starts."""

from __future__ import annotations

import django
from django.apps import apps

from stowhand.django.project import app_of, chosen_backend
from stowhand.observe.logs import configured_by_another

if not apps.ready:
    with configured_by_another():
        django.setup()
app = app_of(chosen_backend())
