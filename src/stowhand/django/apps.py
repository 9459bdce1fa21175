"""Stowhand as an app of a Django project, with its tables, command and entry in the admin."""

from __future__ import annotations

from django.apps import AppConfig


class StowhandConfig(AppConfig):
    """``INSTALLED_APPS = [..., "stowhand.django"]``."""

    name = "stowhand.django"
    label = "stowhand"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Background jobs"
