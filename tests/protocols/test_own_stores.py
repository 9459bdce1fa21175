"""A store of a user's own: what it lacks is named at once, where it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stowhand import App, Worker
from stowhand.errors import ConfigurationError
from stowhand.protocols.queue_store import require_part
from stowhand.protocols.store import PART_NAMES, heartbeats_of
from stowhand.stores.api import Capabilities, Heartbeats, Lease, Pulse, open_store
from stowhand.table import Resetter
from stowhand.testing import MemoryStore
from tests.conftest import Run


class Before:
    """Of a shape from before stores were in parts."""

    is_listening = False

    def __init__(self) -> None:
        self._inner = MemoryStore()
        for name in ("open", "close", "claim", "settle", "next_due", "foreign", "wait", "heartbeats"):
            setattr(self, name, getattr(self._inner, name))


class Alone(Before):
    """All that a worker needs, and no part."""

    capabilities, terms, enclosing = Capabilities(), None, None


class Partly(Alone):
    """Jobs, and no other part; it does not say why."""

    description = "a store of ours"
    jobs = property(lambda self: self._inner.jobs)
    transactions = inspect = admin = operate = timetable = schema = settings = connections = flows = notices = None


class BlockingHeart:
    def __init__(self, inner: Heartbeats) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def beat(self, leases: Sequence[Lease], lease: float) -> Pulse:
        return Pulse()


class Blocking(MemoryStore):
    def heartbeats(self) -> Any:
        return BlockingHeart(super().heartbeats())


async def handle(ctx: Any, record: Any) -> None: ...


def test_all_missing_members_of_a_store_are_reported_at_once() -> None:
    for make in (lambda: Worker(Before(), handle), lambda: Resetter(Before())):  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"Before has no capabilities, terms, enclosing; .*CHANGELOG"):
            make()
    Worker(Alone(), handle)  # type: ignore[arg-type]


def test_missing_parts_are_reported_at_once() -> None:
    for part in PART_NAMES:
        with pytest.raises(ConfigurationError, match=rf"App: store: Alone has no description, .*\b{part}\b"):
            App(store=Alone())  # type: ignore[arg-type]


def test_an_absent_part_without_a_declared_reason_is_refused() -> None:
    store: Any = Partly()
    with pytest.raises(ConfigurationError, match="reading jobs: this store does not offer it"):
        require_part(store, "inspect", store.inspect)


def test_heartbeats_that_block_are_refused_before_the_worker_runs(run: Run) -> None:
    with pytest.raises(ConfigurationError, match=r"heartbeats of Blocking have no method 'async def beat\(…\)'"):
        Worker(Blocking(), handle)
    with pytest.raises(ConfigurationError, match="heartbeats of Blocking"):
        run(Resetter(Blocking()).run())
    heartbeats_of(MemoryStore())


def test_an_app_takes_a_store_that_is_lent() -> None:
    App(store=open_store("https://jobs.example.org"))


def test_why_a_part_is_absent_does_not_change() -> None:
    options = {"flows": "none here"}
    declared = Capabilities(absent=options)
    options.clear()
    assert declared.absent == {"flows": "none here"}
    with pytest.raises(TypeError):
        declared.absent["jobs"] = "no"  # type: ignore[index]
