"""Model without a table, for the entry in the admin and for permissions."""

from __future__ import annotations

from typing import Any

from django.db import models

LOOK = "stowhand.view_job"
PAYLOADS = "stowhand.payloads_job"
ACT = "stowhand.change_job"
ADD = "stowhand.add_job"
"""Django's permissions for the four rights of the dashboard."""


class NoRows(models.Manager[Any]):
    """Manager without rows. ``dumpdata`` and other programs query each model, and this one has no table."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Job(models.Model):
    """A background job. Stowhand reads and writes the rows; this model never queries them."""

    objects = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        app_label = "stowhand"
        verbose_name = "background job"
        default_permissions = ("view", "add", "change")
        permissions = (("payloads_job", "Can view payloads and results of background jobs"),)
