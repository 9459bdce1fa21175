"""What flows keep in the file: found by indexes, and no burden to other jobs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stowhand.jobs.job import NewJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.stores.sqlite.queue import SqliteStore, transaction
from tests.conftest import Run
from tests.stores.sqlite.programs import request

INDEXES = {
    "ids": "PRIMARY KEY",
    "exists": "PRIMARY KEY",
    "live_step": "stowhand_jobs_key",
    "past_step": "stowhand_history_flow",
    "delete_past_steps": "stowhand_history_flow",
    "parked": "stowhand_jobs_key",
    "is_open": "stowhand_jobs_key",
    "limit": "PRIMARY KEY",
    "forgive": "stowhand_flow_waits",
    "jobs_to_check": "stowhand_flow_jobs_looked_at",
}


@pytest.mark.parametrize(("name", "index"), INDEXES.items(), ids=INDEXES)
def test_a_statement_of_every_step_uses_its_index(template: Path, name: str, index: str) -> None:
    value = dict.fromkeys(
        ("flow", "attribute", "value", "key", "limiter", "part", "holder", "forgiven", "before", "limit", "id"), 1
    )
    with closing(sqlite3.connect(template)) as connection:
        requests = {**value, "ids": "[]", "min_key": "f", "max_key": "fg"}
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {transaction.STATEMENTS[name]}", requests)]
    assert any(index in step for step in plan), plan
    assert not [step for step in plan if step.startswith("SCAN") and "VIRTUAL TABLE" not in step], plan


def test_the_history_of_other_jobs_is_not_in_the_index_of_flows(path: Path, run: Run) -> None:
    async def story() -> None:
        store = SqliteStore(path)
        await store.jobs.enqueue_many(
            [NewJob(task="t", key=f"{letter}low:a") for letter in "efg"] + [NewJob(task="t")] * 3
        )
        await store.jobs.enqueue(NewJob(task="t", key="flow:a"))
        claims = await store.claim(request(limit=10))
        await store.settle([(claim.lease, COMPLETED) for claim in claims])
        await store.close()

    run(story())
    with closing(sqlite3.connect(path)) as connection:
        result = connection.execute(
            "SELECT key FROM stowhand_history INDEXED BY stowhand_history_flow WHERE key >= 'flow:' AND key < 'flow;'"
        ).fetchall()
    assert result == [("flow:a",)]
