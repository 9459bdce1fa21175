"""Hot statements find what they look for by an index: nothing walks over what a claim does not take."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from stowhand.stores.database.statements import load_statements
from stowhand.stores.sqlite.queue.transaction import COLUMN_FILLINGS, SQL_FILES, STATEMENTS

SMALL = (
    "first_head",
    "stale_heads",
    "is_abandoned_old",
    "prune_abandoned",
    "last_id",
    "known_items",
    "pauses",
    "jobs_with_steps",
)
"""These walk over what is small: a row for each serial key, lost reply of a day, table, crontab item, paused task, or
job of a page."""
MOMENTS = ("claim", "finish", "heartbeats", "enqueue", "administer", "timetable", "workflows")
NAMES = {file.name.removesuffix(".sql"): load_statements(file, COLUMN_FILLINGS) for file in SQL_FILES}
HOT = [(moment, name) for moment in MOMENTS for name in NAMES[moment] if name not in SMALL]
WALKS_ON_PURPOSE = {
    "due": "stowhand_jobs_ready",
    "heads": "stowhand_heads_free",
    "due_suspects": "stowhand_jobs_suspect",
    "first_suspect": "stowhand_jobs_suspect",
    "stalled": "stowhand_jobs_running",
    "held_by_worker": "stowhand_jobs_running",
    "held_by_workers": "stowhand_jobs_running",
    "foreign_leases": "stowhand_jobs_running",
}
"""Walks, but only over the few rows of a partial index: suspects, or what is running."""


@pytest.mark.parametrize(("moment", "name"), HOT, ids=[f"{moment}.{name}" for moment, name in HOT])
def test_a_hot_statement_scans_no_table(template: Path, moment: str, name: str) -> None:
    steps = plan(template, STATEMENTS[name])
    index = WALKS_ON_PURPOSE.get(name)
    walks = [
        step
        for step in steps
        if step.startswith("SCAN") and "VIRTUAL TABLE" not in step and not (index and index in step)
        if "CONSTANT ROW" not in step
    ]
    assert not walks, steps


def test_no_two_statements_have_one_name() -> None:
    assert len(STATEMENTS) == sum(map(len, NAMES.values()))


@pytest.mark.parametrize(
    "name",
    [
        *("next_task", "next_level", "due", "due_and_allowed", "heads", "next_serial_level", "next_serial_queue"),
        *("next_queue", "next_task_in_queue", "next_level_in_queue", "due_in_queue", "due_and_allowed_in_queue"),
    ],
)
def test_a_claims_order_is_the_order_of_an_index(template: Path, name: str) -> None:
    steps = plan(template, STATEMENTS[name])
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


def test_the_running_job_of_a_queue_is_found_by_its_index(template: Path) -> None:
    steps = plan(template, "SELECT 1 FROM stowhand_jobs WHERE serial = :serial AND state = 'processing'")
    assert "stowhand_jobs_key_slots" in steps[0]


def plan(path: Path, statement: str) -> list[str]:
    """What SQLite would do."""
    connection = sqlite3.connect(path)
    try:
        named = re.search(r":[a-z_]+", statement)
        value = _Anything() if named else (None,) * len(re.findall(r"\?(?!2\))", statement))
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", value)]
    finally:
        connection.close()


class _Anything(dict[str, None]):
    """A value for every name."""

    def __missing__(self, name: str) -> None:
        return None
