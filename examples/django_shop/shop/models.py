"""Orders, and what is told of a day."""

from django.db import models


class Order(models.Model):
    """One order."""

    item = models.CharField(max_length=80)
    email = models.EmailField()
    made = models.DateTimeField(auto_now_add=True)
    mail = models.CharField(max_length=20, default="")
    """The id of the task that confirms it."""


class Report(models.Model):
    """Of one day."""

    day = models.DateField(unique=True)
    orders = models.IntegerField()
