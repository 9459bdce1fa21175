"""`enqueue_in` with a connection of Django's: an App of its own beside the project's tasks."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections, transaction

from stowhand import App
from stowhand.errors import ConfigurationError


@pytest.fixture
def app(backend: Any) -> App:
    """On the backend's database."""
    return App(backend.database.url)


def test_a_job_of_an_app_is_in_the_transaction_of_django(backend: Any, app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    connection = connections[backend.alias]
    with transaction.atomic(using=backend.alias):
        kept = send.enqueue_in(connection, "somebody")
    with transaction.atomic(using=backend.alias):
        gone = send.enqueue_in(connection, "nobody")
        transaction.set_rollback(True, using=backend.alias)
    found = backend.database.jobs.get(kept.id)
    assert found.payload == {"to": "somebody"}
    assert backend.database.jobs.get(gone.id) is None


def test_outside_of_a_transaction_it_is_refused(backend: Any, app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    with pytest.raises(ConfigurationError, match="atomic"):
        send.enqueue_in(connections[backend.alias], "somebody")
