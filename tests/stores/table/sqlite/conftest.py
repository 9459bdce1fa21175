"""A file of the application's own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stowhand.stores.sqlite.table import heartbeats
from tests.stores.table.sqlite.application import Application


@pytest.fixture(autouse=True)
def slow_machines() -> Iterator[None]:
    """Whoever waits for the write lock waits for another, however slow the machine: a reset is not put off for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heartbeats, "MAX_LOCK_WAIT_SECONDS", 60.0)
        yield


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Application]]:
    """An application with a table of its own making."""
    applications: list[Application] = []

    def make(*given: Any, **options: Any) -> Application:
        applications.append(Application(tmp_path / f"app{len(applications)}.db", *given, **options))
        return applications[-1]

    yield make
    for application in applications:
        application.end()


@pytest.fixture
def app(made: Callable[..., Application]) -> Application:
    """An application with the table ``uploads``."""
    return made()
