"""What a test of this suite needs of a store, and what a store lacks: only pairs that fit are generated.

    pytestmark = needs("admin")             every test of the file needs this part of a store (``store.admin``)
    @needs("keys")                          this test needs jobs with keys
    @excepted(table="records stay")         this one test does not hold there, and why
    @cases("how", SETTLEMENTS, needs={"snooze": "marks"})    as ``parametrize``; one of the cases needs something

Which parts a store has it declares itself (``capabilities.absent``); what else it lacks, and why, stands here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from stowhand.flows.redis.store import FlowStore
from stowhand.protocols.store import PART_NAMES
from stowhand.remote import HttpStore
from stowhand.table import TableOptions, TableStore

STORES = ("memory", "sqlite", "postgres", "http", "table", "table_sqlite", "redis")

HTTP = {
    **HttpStore("http://127.0.0.1:1").capabilities.absent,
    "sweeps": "the server does it, for all of its workers",
    "foreign": "the server looks",
}
TABLE = {
    **TableStore("postgresql:///nowhere", TableOptions(name="jobs", table_name="jobs")).capabilities.absent,
    "keys": "a record has no key",
    "find_canceled": "its workers hear of a cancellation at a beat, at the latest after cancel_interval",
    "serials": "a record has no queue",
    "flags": "a record has no flags",
    "limits": "limits are the table's, not a record's",
    "task_limits": "a record has no task; a budget over a column limits a claim",
    "epochs": "an epoch is a moment, and time stands still here",
    "messages": "a claim empties failure_message, as in the founding system",
    "forgiving": "num_resets is never taken back, as in the founding system",
    "follow_ups": "nothing can be enqueued along with a settlement: a clear refusal",
    "retry": "an UPDATE of the application's",
    "tokens": "only the process that claims remembers a token",
    "leases": "a lease lasts stalled_max_age, whatever a worker asks for",
    "marks": "what waits again bears no mark: lost",
    "tries": "a record has its execution log",
    "progress": "a record has its execution log",
}
FLOW = {
    **FlowStore.capabilities.absent,
    "find_canceled": "nobody cancels it from outside",
    "foreign": "leases of others are locks, of which only two looks can tell: tests/flows/redis/test_sweep.py",
    "refusals": "a server without triggers",
    "keys": "a flow's job has no key",
    "serials": "its serial keys are not serial",
    "flags": "a flow's job has no flags",
    "limits": "retries and resets are its serial key's",
    "task_limits": "a flow has its limiters",
    "epochs": "an epoch is a moment of the server's clock",
    "messages": "the message of a failure that is tried again is logged, and not kept",
    "follow_ups": "what follows is its next queue",
    "retry": "a retry by hand is the flow's, and tested with it",
    "cancel": "nobody cancels it from outside: it is deleted",
    "moments": "its hash does not say when it started or ended",
    "expired_leases": "a lease is a lock that expires on the server: when it has ended, it is gone",
    "clock": "the server's clock goes on while the test's stands still",
    "history": "it is kept for its key life",
    "rests": "nothing takes the place of its attributes",
    "quiet_sweeps": "a sweep brings what is ready to the front",
    "tries": "a flow's job logs its own",
    "progress": "a flow's job logs its own",
}
LACKS: Mapping[str, Mapping[str, str]] = {
    "http": HTTP,
    "lent_postgres": HTTP,
    "table": TABLE,
    "table_sqlite": TABLE,
    "redis": FLOW,
}
"""By store: what it lacks -> why. A store that is not named lacks nothing that this suite asks for."""
NAMES = frozenset(PART_NAMES).union(*LACKS.values())


def needs(*names: str) -> pytest.MarkDecorator:
    """Only stores that have all of these: parts, or what LACKS names."""
    assert NAMES.issuperset(names), set(names) - NAMES
    return pytest.mark.needs(*names)


def excepted(*, table: str = "", redis: str = "", http: str = "") -> pytest.MarkDecorator:
    """Not there, for this reason; ``table``: neither on PostgreSQL nor on SQLite."""
    return pytest.mark.excepted(table=table, table_sqlite=table, redis=redis, http=http)


def cases(name: str, values: Iterable[Any], *, needs: Mapping[Any, str]) -> pytest.MarkDecorator:
    """As ``parametrize``; ``needs``: what some of the values need."""
    assert NAMES.issuperset(needs.values())
    return pytest.mark.cases(name, tuple(values), needs)


def generate(metafunc: pytest.Metafunc) -> None:
    """The test once for each store that offers what it needs; a file may name STORES of its own."""
    if any("backend" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        return
    of_file: Iterable[str] = getattr(metafunc.module, "STORES", STORES)
    stores = [store for store in of_file if _fits(store, metafunc.definition)]
    assert stores, f"{metafunc.definition.nodeid}: no store offers what it needs"
    cases = metafunc.definition.get_closest_marker("cases")
    if cases is None:
        metafunc.parametrize("backend", stores, indirect=True)
        return
    name, values, needed = cases.args
    pairs = [
        pytest.param(store, value, id=f"{store}-{_shown(value)}")
        for store in stores
        for value in values
        if needed.get(value) not in LACKS.get(store, {})
    ]
    metafunc.parametrize(("backend", name), pairs, indirect=["backend"])


def _fits(store: str, test: pytest.Item) -> bool:
    needed = {name for mark in test.iter_markers("needs") for name in mark.args}
    excepted = any(mark.kwargs.get(store) for mark in test.iter_markers("excepted"))
    return not excepted and needed.isdisjoint(LACKS.get(store, {}))


def _shown(value: Any) -> str:
    return str(getattr(value, "__name__", value))
