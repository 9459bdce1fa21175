"""No table: what the admin shows an entry of, and what permissions are about."""

from __future__ import annotations

from typing import Any

from django.db import models

LOOK, PAYLOADS, ACT, ADD = "stowhand.view_job", "stowhand.payloads_job", "stowhand.change_job", "stowhand.add_job"
"""Permissions, for the four rights of the dashboard."""


class NoRows(models.Manager[Any]):
    """``dumpdata`` and other programs ask each model for its rows; this one has no table."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Job(models.Model):
    """A background job. Its rows are Stowhand's, and never asked for through this."""

    objects = NoRows()

    class Meta:
        """As its migration has it."""

        managed = False
        base_manager_name = "objects"
        app_label = "stowhand"
        verbose_name = "background job"
        default_permissions = ("view", "add", "change")
        permissions = (("payloads_job", "Can see what background jobs carry and say"),)
