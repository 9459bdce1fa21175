"""Lending servers for tests, each on a port of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stowhand.observe.exposition import LendingMetrics
from stowhand.remote.server.lender import ServerOptions
from stowhand.testing import MemoryStore
from tests.remote.server.lending import Lending

Lend = Callable[..., Lending]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Path of the tokens file, which may not exist yet."""
    return tmp_path / "keys" / "tokens.json"


@pytest.fixture(scope="session")
def stopping_servers() -> Iterator[list[Lending]]:
    """Stopping servers. They are joined at the end of the session, so that no test waits for them."""
    servers: list[Lending] = []
    yield servers
    for lending in servers:
        lending.join()


@pytest.fixture
def long_store_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a wait at the store take longer than any test, so that only wake-ups end polls."""
    monkeypatch.setattr("stowhand.remote.server.wake_broadcast.LISTENING_WAIT_SECONDS", 100.0)


@pytest.fixture
def lend(tokens: Path, stopping_servers: list[Lending]) -> Iterator[Lend]:
    """Return a function that starts a server. ``counts``: with metrics. Options of the server are keywords."""
    started: list[Lending] = []

    def lend(store: Any = None, *, counts: bool = False, **options: Any) -> Lending:
        keywords: dict[str, Any] = {"port": 0, "tokens": tokens} | options
        lending = Lending(store or MemoryStore(), ServerOptions(**keywords), LendingMetrics() if counts else None)
        lending.start()
        started.append(lending)
        return lending

    yield lend
    for lending in started:
        lending.request_stop()
    stopping_servers += started
