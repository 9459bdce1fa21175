"""A module that no worker imports."""

from django.tasks import task


@task
def lost() -> None:
    """It would never run."""
