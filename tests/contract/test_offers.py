"""Who offers what: the stores' own declarations, and the page of stores, say the same."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.flows.redis.address import read_address
from stowhand.flows.redis.heartbeats import RedisHeartbeats
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.store import FlowStore
from stowhand.protocols import flow_tables, operator, producer, queue_store, workflows
from stowhand.protocols.flow_shape import FlowShape, Queue
from stowhand.protocols.queue_store import require_part
from stowhand.protocols.store import PART_NAMES, Heartbeats, Store
from stowhand.remote import HttpStore
from stowhand.stores.postgres.queue import PostgresStore
from stowhand.stores.sqlite.queue import SqliteStore
from stowhand.table import TableOptions, TableStore
from stowhand.testing import MemoryStore
from tests.docs.pages import DOCS

PROTOCOLS: dict[str, type] = {
    "jobs": producer.Producer,
    "transactions": producer.Transactions,
    "inspect": queue_store.Inspector,
    "admin": queue_store.Administrator,
    "operate": operator.Operator,
    "timetable": queue_store.Timetable,
    "schema": queue_store.Schema,
    "settings": queue_store.Settings,
    "connections": queue_store.Connections,
    "flows": flow_tables.FlowTables,
    "notices": queue_store.Notices,
    "results": producer.Results,
    "workflows": workflows.Workflows,
}
SHAPE = FlowShape(name="f", queues=(Queue("a"),))
STORES: dict[str, Any] = {
    "memory": MemoryStore,
    "SQLite": lambda: SqliteStore("jobs.db"),
    "PostgreSQL": lambda: PostgresStore("postgresql:///nowhere"),
    "table of yours": lambda: TableStore("postgresql:///nowhere", TableOptions(name="jobs", table_name="jobs")),
    "HTTP": lambda: HttpStore("http://127.0.0.1:1"),
    "Redis": lambda: FlowStore(Server(read_address("redis://127.0.0.1:1")), SHAPE, SHAPE.entry),
}
every_store = pytest.mark.parametrize("name", STORES)


def methods(protocol: type) -> set[str]:
    return {name for one in protocol.__mro__ for name, made in vars(one).items() if name[0] != "_" and callable(made)}


def is_absent(store: Any, part: str) -> bool:
    """It is ``None``; or an error that says why, of a store whose other parts are a queue's."""
    try:
        return getattr(store, part) is None
    except ConfigurationError:
        return True


def said_on_the_page(store: str) -> dict[str, bool]:
    """By method: does the page say no?"""
    output: dict[str, bool] = {}
    for block in (DOCS / "reference" / "stores.md").read_text().split("\n\n"):
        lines = [[cell.strip() for cell in line.split("|")] for line in block.splitlines() if line.startswith("|")]
        if lines and store in lines[0] and "option" not in lines[0]:
            at = lines[0].index(store)
            for cells in lines[1:]:
                output |= {name: re.match(r"no\b", cells[at]) is not None for name in re.findall(r"`(\w+)`", cells[1])}
    return output


def test_the_parts_are_those_of_the_protocols() -> None:
    assert set(PART_NAMES) == set(PROTOCOLS)


@every_store
def test_a_store_declares_why_a_part_is_absent_and_offers_every_other_one_whole(name: str) -> None:
    store = STORES[name]()
    absent = {part for part in PART_NAMES if is_absent(store, part)}
    assert set(store.capabilities.absent) == absent
    for part in set(PART_NAMES) - absent:
        lacking = {one for one in methods(PROTOCOLS[part]) if not hasattr(getattr(store, part), one)}
        assert not lacking, part


@every_store
def test_an_absent_part_is_an_error_with_the_store_s_reason(name: str) -> None:
    store = STORES[name]()
    for part, why in store.capabilities.absent.items():
        with pytest.raises(ConfigurationError, match=re.escape(why)):
            require_part(store, part, getattr(store, part))


def test_over_http_what_is_done_beside_the_store_is_refused_with_that_advice() -> None:
    store = HttpStore("http://127.0.0.1:1")
    for part in ("inspect", "admin", "operate", "timetable", "schema", "flows"):
        with pytest.raises(ConfigurationError, match=r"not over HTTP.*the store itself, with that store's own URL \("):
            getattr(store, part)


@every_store
def test_the_page_of_stores_says_no_where_a_part_is_absent_and_nowhere_else(name: str) -> None:
    said, store = said_on_the_page(name), STORES[name]()
    for part in PART_NAMES:
        assert said[part] is is_absent(store, part), part
        if part not in ("flows", "notices", "results", "workflows"):  # their methods are of no user's concern
            of_part = methods(PROTOCOLS[part])
            assert of_part <= set(said), part
            assert {said[one] for one in of_part} == {said[part]}, part
    for one in methods(Store) - {"foreign"}:  # its heartbeats have one of that name
        assert not said[one], one


@every_store
def test_the_page_for_a_choice_says_yes_exactly_where_a_part_is_offered(name: str) -> None:
    page = (DOCS / "explanation" / "choose-a-store.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("|")]
    rows = {cells[1]: cells[lines[0].index(name)] for cells in lines}
    parts = {
        "enqueue in your transaction": "transactions",
        "cron": "timetable",
        "results": "results",
        "dashboard, `explain`": "inspect",
    }
    for row, part in parts.items():
        assert (rows[row] == "yes") is not is_absent(STORES[name](), part), row


def test_heartbeats_have_all_that_heartbeats_have() -> None:
    assert methods(Heartbeats) <= set(dir(RedisHeartbeats))
