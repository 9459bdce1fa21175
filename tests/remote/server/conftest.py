"""Servers for the tests of lending, each on a port of its own."""

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
    """Where the file of tokens is, once there are any."""
    return tmp_path / "keys" / "tokens.json"


@pytest.fixture(scope="session")
def leaving() -> Iterator[list[Lending]]:
    """Servers that were told to stop: their last moments are not waited for test by test."""
    told: list[Lending] = []
    yield told
    for lending in told:
        lending.join()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits and is not woken looks again later than any test waits."""
    monkeypatch.setattr("stowhand.remote.server.wake_broadcast.LISTENING_WAIT_SECONDS", 100.0)


@pytest.fixture
def lend(tokens: Path, leaving: list[Lending]) -> Iterator[Lend]:
    """``lend(store)`` starts a server; ``counts``: with metrics; options by name."""
    started: list[Lending] = []

    def lend(store: Any = None, *, counts: bool = False, **options: Any) -> Lending:
        given: dict[str, Any] = {"port": 0, "tokens": tokens} | options
        lending = Lending(store or MemoryStore(), ServerOptions(**given), LendingMetrics() if counts else None)
        lending.start()
        started.append(lending)
        return lending

    yield lend
    for lending in started:
        lending.tell_to_stop()
    leaving += started
