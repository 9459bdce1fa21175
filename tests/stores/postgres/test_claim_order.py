"""Whatever is in the way and whichever way a claim goes: it takes what the order says, and waits for nobody."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import psycopg
import pytest

from stowhand.jobs.lifecycle import COMPLETED
from stowhand.protocols.store import Claim
from stowhand.stores.postgres.queue import PostgresStore
from tests.stores.postgres.conftest import Sql
from tests.stores.postgres.verbs import claim

TASKS = ("a", "b", "c", "d", "e")


@dataclass
class Row:
    """A waiting job, as the test knows it."""

    id: int
    task: str
    serial: str | None
    place: tuple[int, int, int]
    due: bool
    flags: list[str] | None


def fill(sql: Sql, random: Random, count: int, serials: int) -> list[Row]:
    """Few different times, as after bulk enqueues; some not due; mostly of task e. A third have a queue, if any has."""
    jobs = []
    ((base,),) = sql("select date_trunc('hour', now()) - interval '1 hour'")  # once: an hour may end meanwhile
    for _ in range(count):
        task = random.choice(TASKS + ("e",) * 15)
        serial = f"q{random.randrange(serials)}" if serials and random.random() < 0.3 else None
        priority, minutes = random.choice((-5, 0, 0, 0, 7)), random.choice((-3, -2, -1, -1, -1, 60))
        flags = ["heavy"] if random.random() < 0.1 else None
        ((number,),) = sql(
            """insert into stowhand.live (task, serial, priority, run_at, flags)
               values (%s, %s, %s, %s + %s * interval '1 minute', %s)
               returning id""",
            *(task, serial, priority, base, minutes * (100 if minutes > 0 else 1), flags),
        )
        jobs.append(Row(number, task, serial, (priority, minutes, number), minutes < 0, flags))
    return jobs


def expected(
    rows: Sequence[Row], busy: set[str], limit: int, tasks: Sequence[str] | None, forbidden: bool
) -> list[int]:
    results: list[int] = []
    taken = set(busy)
    for row in sorted(rows, key=lambda row: row.place):
        if not row.due or (tasks is not None and row.task not in tasks) or (forbidden and row.flags):
            continue
        if row.serial in taken:
            continue
        if row.serial is not None:
            taken.add(row.serial)
        results.append(row.id)
        if len(results) == limit:
            break
    return results


@pytest.mark.usefixtures("patient_claims")
@pytest.mark.parametrize("serials", [0, 5, 200])
@pytest.mark.parametrize("seed", range(2))
def test_claims_of_any_tasks_follow_the_order(
    store: PostgresStore, sql: Sql, run: Any, serials: int, seed: int
) -> None:
    random = Random(seed)
    rows = fill(sql, random, 700, serials)

    async def story() -> None:
        left = {row.id: row for row in rows}
        held: list[Claim[Any]] = []
        for _ in range(40):
            tasks = random.choice([None, ("a",), ("e",), ("a", "b"), ("a", "c", "e"), TASKS])
            limit, forbidden = random.choice([1, 3, 20, 60]), random.random() < 0.3
            busy = {each.serial for each in held if each.serial is not None}
            wanted = expected(list(left.values()), busy, limit, tasks, forbidden)
            got = await claim(store, limit, tasks=tasks, forbidden_flags=("heavy",) if forbidden else ())
            assert [each.lease.job_id for each in got] == wanted, (tasks, limit, forbidden)
            held += got
            for each in got:
                del left[each.lease.job_id]
            if random.random() < 0.5:
                await store.settle([(each.lease, COMPLETED) for each in held])
                held = []
        await store.close()

    run(story())


@pytest.mark.parametrize(
    ("tasks", "foreign"),
    [(("mine",), 0), (("mine",), 500), (("also mine", "mine"), 0), (("also mine", "mine"), 500), (None, 0)],
)
def test_a_claim_skips_jobs_that_others_are_claiming(
    store: PostgresStore, postgres_url: str, sql: Sql, run: Any, tasks: tuple[str, ...] | None, foreign: int
) -> None:
    """However much of it: nothing of it is committed yet."""
    sql("insert into stowhand.live (task) select 'foreign' from generate_series(1, %s)", foreign)
    ids = [
        row[0]
        for row in sql("insert into stowhand.live (task) select 'mine' from generate_series(1, 400) returning id")
    ]

    async def story() -> None:
        with psycopg.connect(postgres_url) as other:
            call = "select id from stowhand.claim('w', %s, 300, 30.0, '{mine}', null, false)"
            theirs = {row[0] for row in other.execute(call, (str(uuid.uuid4()),)).fetchall()}
            assert theirs == set(ids[:300])
            got = await claim(store, 50, tasks=tasks)
            assert [each.lease.job_id for each in got] == ids[300:350]
        await store.close()

    run(story())


def test_a_serial_key_continues_after_a_locked_job(store: PostgresStore, postgres_url: str, sql: Sql, run: Any) -> None:
    async def story() -> None:
        first, second = (
            row[0] for row in sql("insert into stowhand.live (task, serial) values ('t', 'q'), ('t', 'q') returning id")
        )
        with psycopg.connect(postgres_url) as other:
            other.execute("select from stowhand.live where id = %s for update", (first,))
            (got,) = await claim(store, 5)
            assert got.lease.job_id == second
        await store.settle([(got.lease, COMPLETED)])
        (got,) = await claim(store, 5)
        assert got.lease.job_id == first
        await store.close()

    run(story())
