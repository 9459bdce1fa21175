"""What the tasks write."""

from django.db import models


class Order(models.Model):
    """One order."""

    name = models.CharField(max_length=80)

    class Meta:
        app_label = "shop"
