"""What a claim reads does not depend on how many rows are in its way. Blocks are counted: load does not change them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import psycopg
import pytest

from stowhand.protocols.operator import PURGE_TASK
from tests.support.databases import Databases, Setup

Connection = psycopg.Connection[tuple[Any, ...]]

WITHIN = 1.5
"""Ten times as many rows in the way: a hundred thousand against ten thousand for the main kinds."""
FEW = 50
"""Blocks below which a ratio says nothing: an index that grows by a level costs a block for each descent."""


@dataclass(frozen=True)
class Rows:
    """Jobs that a worker of the task ``mine`` cannot take."""

    task: str = "mine"
    due_in: float = -60.0
    priority: int = 0
    serials: int = 0
    held: bool = False
    paused: bool = False
    apart: float = 0.0
    """Seconds between the times of two of them; enqueued together, they have the same."""


IN_THE_WAY = {
    "not due, more urgent": Rows(due_in=86_400.0, priority=-10),
    "of another task": Rows(task="another"),
    "behind a busy serial key": Rows(serials=1, held=True),
    "of another task, of all times": Rows(task="another", due_in=-200_000.0, apart=1.0),
    "not due, more urgent, in serial keys": Rows(due_in=86_400.0, priority=-10, serials=3),
    "of another task, in serial keys": Rows(task="another", serials=3),
    "behind many busy serial keys": Rows(serials=50, held=True),
    "behind a paused serial key": Rows(serials=1, paused=True),
    "behind many paused serial keys": Rows(serials=50, paused=True),
}
MAIN = ("not due, more urgent", "of another task", "behind a busy serial key")
TASKS = {"one task": ["mine"], "several tasks": ["also mine", "mine", "mine too"], "any task": None}


def fill(connection: Connection, rows: Rows, count: int) -> None:
    connection.execute(
        """insert into stowhand.live (task, serial, priority, run_at)
           select %(task)s, case when %(serials)s > 0 then 'busy' || g %% greatest(%(serials)s, 1) end, %(priority)s,
             now() + (%(due_in)s + g * %(apart)s) * interval '1 second'
           from generate_series(1, %(count)s) g""",
        {"count": count} | asdict(rows),
    )
    if rows.held:
        claim = "select from stowhand.claim('other', gen_random_uuid(), 50, 3600.0, null, null, false)"
        assert connection.execute(claim).rowcount == rows.serials
    if rows.paused:
        connection.execute("select stowhand.pause_serial('busy' || g) from generate_series(0, %s) g", (rows.serials,))


def blocks(connection: Connection, call: str, *values: object) -> int:
    """Read by one call, which is then undone. The second one counts: the first may read the catalog, and plan."""
    _explain(connection, call, values)
    plan = _explain(connection, call, values)
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _explain(connection: Connection, call: str, values: Sequence[object]) -> Any:
    with connection.transaction(force_rollback=True):
        row = connection.execute(f"explain (analyze, buffers, format json) {call}".encode(), values).fetchone()
    assert row is not None
    return row[0][0]["Plan"]


def costs(connection: Connection, tasks: list[str] | None) -> dict[str, int]:
    connection.execute("vacuum stowhand.live")  # what was undone before is none of this measurement's

    def claim(limit: int) -> int:
        call = "select from stowhand.claim('w', %s, %s, 30.0, %s::text[], null, false)"
        return blocks(connection, call, uuid.uuid4(), limit, tasks)

    def next_due() -> int:
        return blocks(connection, "select stowhand.next_due(%s::text[])", tasks)

    result = {"an empty claim": claim(100), "next_due, nothing due": next_due()}
    connection.execute("insert into stowhand.live (task) select 'mine' from generate_series(1, 120)")
    result |= {"a claim of 100": claim(100), "a claim of one": claim(1), "next_due": next_due()}
    connection.execute("delete from stowhand.live where task = 'mine' and serial is null and priority = 0")
    return result


@pytest.fixture
def site(postgres_server: Databases, postgres_setup: Setup) -> Iterator[Connection]:
    yield from connect(postgres_server, postgres_setup)


@pytest.fixture
def older_site(older_postgres_server: Databases, postgres_setup: Setup) -> Iterator[Connection]:
    yield from connect(older_postgres_server, postgres_setup)


def connect(server: Databases, setup: Setup) -> Iterator[Connection]:
    url = server.create_database(server.template(setup))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("alter table stowhand.live set (autovacuum_enabled = off)")
        yield connection
    server.drop_database(url)


def check(connection: Connection, rows: Rows, count: int) -> None:
    whose = {name: tasks for name, tasks in TASKS.items() if tasks is not None or rows.task == "mine"}
    none = costs(connection, ["mine"])
    fill(connection, rows, count)
    few = {name: costs(connection, tasks) for name, tasks in whose.items()}
    fill(connection, replace(rows, held=False, due_in=rows.due_in + count * rows.apart), 9 * count)
    for name, tasks in whose.items():
        many = costs(connection, tasks)
        for what, cost in many.items():
            assert cost <= WITHIN * max(few[name][what], FEW), f"{name}, {what}: {few[name]} and {many}"
        most = max(few[name]["a claim of 100"], many["a claim of 100"])
        assert most < 2 * none["a claim of 100"], f"{name}: {none}, {few[name]} and {many}"


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_a_claim_costs_the_same_with_ten_times_the_rows_to_skip(site: Connection, name: str) -> None:
    check(site, IN_THE_WAY[name], 10_000 if name in MAIN else 3_000)


def costs_in_a_queue(connection: Connection, tasks: list[str] | None, queues: str, own: str | None) -> dict[str, int]:
    """As ``costs``, of a claim of some queues, whose jobs are in the queue ``own``."""
    connection.execute("vacuum stowhand.live")

    def claim(limit: int) -> int:
        call = f"select from stowhand.claim('w', %s, %s, 30.0, %s::text[], null, false, {queues})"
        return blocks(connection, call, uuid.uuid4(), limit, tasks)

    def next_due() -> int:
        return blocks(connection, f"select stowhand.next_due(%s::text[], {queues})", tasks)

    result = {"an empty claim": claim(100), "next_due, nothing due": next_due()}
    connection.execute("insert into stowhand.live (task, queue) select 'mine', %s from generate_series(1, 120)", (own,))
    result |= {"a claim of 100": claim(100), "a claim of one": claim(1), "next_due": next_due()}
    connection.execute("delete from stowhand.live where queue is not distinct from %s", (own,))
    return result


@pytest.mark.parametrize(
    ("queues", "own"),
    [
        ("_queues => '{mail}'", "mail"),
        ("_queues => '{default}'", None),
        ("_queues => '{mail,default}'", None),
        ("_excluded => '{bulk}'", "mail"),
    ],
)
@pytest.mark.parametrize("tasks", TASKS)
def test_a_claim_costs_the_same_with_ten_times_the_jobs_of_another_queue(
    site: Connection, queues: str, own: str | None, tasks: str
) -> None:
    """They are of the same task, and due."""
    fill_queue = "insert into stowhand.live (task, queue) select 'mine', 'bulk' from generate_series(1, %s)"
    none = costs_in_a_queue(site, TASKS[tasks], queues, own)
    site.execute(fill_queue, (3_000,))
    few = costs_in_a_queue(site, TASKS[tasks], queues, own)
    site.execute(fill_queue, (27_000,))
    many = costs_in_a_queue(site, TASKS[tasks], queues, own)
    for what, cost in many.items():
        assert cost <= WITHIN * max(few[what], FEW), f"{what}: {few} and {many}"
    assert many["a claim of 100"] < 2 * none["a claim of 100"], f"{none}, {few} and {many}"


def test_a_claim_of_many_priorities_reads_the_queues_once(site: Connection) -> None:
    claim = "select from stowhand.claim('w', gen_random_uuid(), 20, 30.0, '{mine}', null, false, _excluded => %s)"
    site.execute("insert into stowhand.live (task, queue) select 'mine', 'q' || g from generate_series(1, 300) g")
    excluded = [f"q{number}" for number in range(1, 301)]
    rows = []
    for priorities in (1, 20):
        site.execute(
            "insert into stowhand.live (task, priority) select 'mine', g %% %s from generate_series(1, 20) g",
            (priorities,),
        )
        rows.append(blocks(site, claim, excluded))
        site.execute("delete from stowhand.live where queue is null")
    assert rows[1] < 2 * rows[0], rows


def test_a_settlement_costs_the_same_with_ten_times_the_waiting_rows(site: Connection) -> None:
    rows = []
    for more in (1_000, 9_000):
        fill(site, Rows(task="another"), more)
        site.execute("insert into stowhand.live (task) select 'mine' from generate_series(1, 10)")
        token = uuid.uuid4()
        claim = "select id from stowhand.claim('w', %s, 10, 30.0, array['mine'], null, false)"
        ids = [job_id for (job_id,) in site.execute(claim, (token,))]
        call = "select from stowhand.settle_completed(%s::bigint[], %s::uuid[], false)"
        rows.append(blocks(site, call, ids, [token] * len(ids)))
    assert rows[1] <= WITHIN * max(rows[0], FEW), rows


@pytest.mark.parametrize("name", MAIN)
def test_skipped_rows_cost_nothing_on_an_older_server(older_site: Connection, name: str) -> None:
    """Before version 18 no index scan skips by itself."""
    check(older_site, IN_THE_WAY[name], 3_000)


@pytest.mark.parametrize("name", MAIN)
def test_costs_do_not_depend_on_the_statistics(site: Connection, name: str) -> None:
    """Taken while the table was full, while it was empty, while only our task was there; then it shrank, or grew."""
    rows, tasks = IN_THE_WAY[name], TASKS["one task"]
    again = replace(rows, held=False)
    clear = "delete from stowhand.live where state <> 'processing'"
    result = {}
    fill(site, rows, 20_000)
    result["never taken"] = costs(site, tasks)
    site.execute("analyze stowhand.live")
    site.execute(f"{clear} and id % 3 > 0".encode())
    result["full"] = costs(site, tasks)
    site.execute(clear.encode())
    site.execute("vacuum (analyze, truncate off) stowhand.live")
    fill(site, again, 20_000)
    result["empty"] = costs(site, tasks)
    site.execute("insert into stowhand.live (task) select 'mine' from generate_series(1, 20000)")
    site.execute("analyze stowhand.live")
    site.execute("delete from stowhand.live where task = 'mine' and serial is null and priority = 0")
    result["ours"] = costs(site, tasks)
    usual = result["never taken"]
    for believed, cost in result.items():
        for what, count in cost.items():
            assert count <= WITHIN * max(usual[what], FEW), f"believed {believed}, {what}: {cost}, not {usual}"


def test_a_claim_reads_as_many_blocks_with_ten_thousand_serial_keys_as_with_ten(site: Connection) -> None:
    claim = "select from stowhand.claim('w', gen_random_uuid(), 10, 30.0, '{mine}', null, false)"
    rows = []
    for names in (10, 10_000):
        site.execute("truncate stowhand.live, stowhand.limit_keys")
        fill(site, Rows(serials=names), 20_000)
        site.execute("insert into stowhand.limit_keys (name) select distinct serial from stowhand.live")
        rows.append(blocks(site, claim))
    few, many = rows
    assert many <= 2 * few, f"{few} blocks with 10 names, {many} with 10,000"


def test_a_second_task_without_jobs_costs_a_claim_almost_nothing(site: Connection) -> None:
    """A worker with one task has another, which every worker has."""
    fill(site, Rows(task="another"), 3_000)
    site.execute("insert into stowhand.live (task) select 'mine' from generate_series(1, 120)")
    claim = "select from stowhand.claim('w', gen_random_uuid(), 100, 30.0, %s::text[], null, false)"
    one, two = blocks(site, claim, ["mine"]), blocks(site, claim, ["mine", PURGE_TASK])
    assert two <= one + 10, f"{one} blocks with one task, {two} with two"
