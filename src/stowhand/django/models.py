"""No table: what the admin shows an entry of, and what permissions are about."""

from __future__ import annotations

from django.db import models

LOOK, PAYLOADS, ACT, ADD = "stowhand.view_job", "stowhand.payloads_job", "stowhand.change_job", "stowhand.add_job"
"""Permissions, for the four rights of the dashboard."""


class Job(models.Model):
    """A background job. Its rows are Stowhand's, and never asked for through this."""

    class Meta:
        """As its migration has it."""

        managed = False
        app_label = "stowhand"
        verbose_name = "background job"
        default_permissions = ("view", "add", "change")
        permissions = (("payloads_job", "Can see what background jobs carry and say"),)
