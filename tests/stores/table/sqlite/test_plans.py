"""Hot statements find what they look for by the recommended indexes, through a view too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stowhand.jobs.conditions import Sql, sql
from stowhand.stores.sqlite.table import timestamps
from stowhand.stores.sqlite.table.checks import check
from stowhand.stores.sqlite.table.connections import Table
from stowhand.stores.table.ddl import DdlOptions, full_ddl
from stowhand.stores.table.names import read_shape
from tests.conftest import Run
from tests.stores.table.sqlite.application import Application, asking, counted_steps, keys

Made = Callable[..., Application]
EXTRAS = """
ALTER TABLE uploads ADD COLUMN size INTEGER;
CREATE INDEX uploads_order ON uploads (size DESC, id) WHERE state IN ('queued', 'errored');
CREATE TABLE repo (id INTEGER PRIMARY KEY, name TEXT);
CREATE VIEW shown AS SELECT u.*, repo.name FROM uploads u JOIN repo ON repo.id = u.size;
"""


@pytest.fixture
def indexed(made: Made) -> Application:
    """With the DDL that we print."""
    return made(full_ddl(DdlOptions(shape=read_shape("uploads", None, {}, folds=False), dialect="sqlite")) + EXTRAS)


def facts(app: Application, **options: Any) -> Table:
    app.raw.create_function("stowhand_micros", 1, timestamps.stored_micros, deterministic=True)
    backend = app.table(max_num_retries=1, **options)
    table, _ = check(app.raw, backend._options, backend._shape)
    assert table is not None
    return table


def plan(app: Application, statement: str) -> list[str]:
    return [row[3] for row in app.raw.execute(f"EXPLAIN QUERY PLAN {statement}", _Anything())]


class _Anything(dict[str, Any]):
    def __missing__(self, name: str) -> None:
        return None


ORDERS: list[dict[str, Any]] = [
    {},
    {"order_by_expression": sql("size DESC")},
    {"view_name": "shown"},
    {"view_name": "shown s", "order_by_expression": [sql("s.size DESC"), "id"]},
]


@pytest.mark.parametrize("options", ORDERS, ids=str)
def test_a_claim_looks_only_at_what_is_due(indexed: Application, options: dict[str, Any]) -> None:
    table = facts(indexed, **options)
    for statement in (
        table.queries.due(),
        table.queries.candidates((), suspects=False, in_order=False).text,
    ):
        steps = plan(indexed, statement)
        assert not [step for step in steps if step.startswith("SCAN") and "subquery" not in step], steps
        rows = [step for step in steps if "uploads_state_process_after (state=? AND process_after" in step]
        assert len(rows) == 4, steps


@pytest.mark.parametrize("options", ORDERS, ids=str)
def test_of_many_the_first_are_found_by_an_index_of_their_order(indexed: Application, options: dict[str, Any]) -> None:
    table = facts(indexed, **options)
    assert table.walks
    steps = plan(indexed, table.queries.candidates((), suspects=False, in_order=True).text)
    index = "uploads_order" if "order_by_expression" in options else "uploads_next"
    assert steps[0].startswith("SCAN"), steps
    assert steps[0].endswith(f"USING INDEX {index}"), steps
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


def test_a_view_that_calls_something_else_its_state_is_claimed_from(indexed: Application, run: Run) -> None:
    indexed.raw.executescript("CREATE VIEW loud AS SELECT id, upper(state) AS state FROM uploads")
    indexed.sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1001)"
        " INSERT INTO uploads (size) SELECT 1 FROM n"
    )

    async def scenario() -> None:
        table = await indexed.served(pinned=False, view_name="loud")
        assert await keys(table, 3) == [1, 2, 3]

    run(scenario())


def test_without_such_an_index_nothing_is_walked(indexed: Application) -> None:
    indexed.raw.executescript("DROP INDEX uploads_order; DROP INDEX uploads_next")
    assert not any(facts(indexed, **options).walks for options in ORDERS)
    assert not facts(indexed, order_by_expression=Sql(("lower(state)",))).walks


def test_resets_beats_and_waits_walk_over_no_table(indexed: Application) -> None:
    table = facts(indexed)
    for name, statement in table.statements.items():
        steps = plan(indexed, statement)
        scans = [step for step in steps if step.startswith("SCAN") and "json_each" not in step]
        assert not [step for step in scans if "subquery" not in step], (name, steps)


def test_a_long_queue_behind_a_long_history_is_claimed_from_at_once(indexed: Application, run: Run) -> None:
    for state, number in (("completed", 100_000), ("queued", 50_000)):
        indexed.sql(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO uploads (state, size) SELECT ?, i % 7 FROM n",
            number,
            state,
        )

    async def scenario() -> int:
        table = await indexed.served(pinned=False, order_by_expression=[sql("size DESC"), "id"])
        await table.claim(asking(1))
        steps = counted_steps(table)
        assert len(await keys(table, 5)) == 5
        return len(steps)

    # Thousands of SQLite's own steps; to sort what waits would take a hundred times as many.
    assert run(scenario()) < 60
