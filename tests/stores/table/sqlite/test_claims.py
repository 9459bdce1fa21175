"""Which records are claimed, in which order, and what a claim does to them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from stowhand.errors import ConfigurationError, TableUnsuitable
from stowhand.jobs.conditions import Where, sql
from stowhand.jobs.job import State
from tests.conftest import Run
from tests.stores.table.sqlite.application import (
    NOON,
    TABLE,
    Application,
    asking,
    claimed,
    counted_steps,
    errored,
    keys,
    settled,
)

Made = Callable[..., Application]
VIEW = "CREATE TABLE repo (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO repo VALUES (1, 'one'), (2, 'two');"


def test_a_claim_marks_the_record_and_gives_its_columns_as_they_are_then(app: Application, run: Run) -> None:
    key = app.add(state="errored", failure_message="old", finished_at="2024-05-01 11:00:00", execution_logs="[{}]")

    async def scenario() -> None:
        table = await app.served(
            max_num_retries=1,
            column_expressions=["id", "state", sql("upper(worker_hostname) AS mark"), "started_at", "execution_logs"],
        )
        taken = await claimed(table)
        assert table.names == ("id", "state", "mark", "started_at", "execution_logs")
        mark = f"host/1/{taken.lease.token}"
        assert taken.values == (key, "processing", mark.upper(), "2024-05-01 12:00:00.000000", None)
        assert taken.lease.epoch == NOON.timestamp() * 1_000_000
        now = app.row(key)
        assert now["worker_hostname"] == mark
        assert now["started_at"] == now["last_heartbeat_at"] == "2024-05-01 12:00:00.000000"
        assert (now["finished_at"], now["failure_message"], now["execution_logs"]) == (None, None, None)

    run(scenario())


def test_every_record_is_claimed_once(app: Application, run: Run) -> None:
    first, second = app.add(), app.add()

    async def scenario() -> None:
        table = await app.served()
        assert await keys(table, 1) == [first]
        assert await keys(table, 1) == [second]
        assert await keys(table, 1) == []

    run(scenario())


def test_the_order_is_what_the_options_say_and_then_the_key(app: Application, run: Run) -> None:
    for size, path in ((2, "b"), (1, "b"), (1, "aa"), (1, "cc"), (2, "a")):
        app.add(size=size, path=path)

    async def scenario() -> None:
        table = await app.served(table_name="uploads u", order_by_expression=["size", sql("length(u.path) DESC")])
        assert await keys(table) == [3, 4, 2, 1, 5]

    run(scenario())


@pytest.mark.parametrize("stored", ["2024-05-01T00:30:00Z", "2024-05-01", 1714564800, 1714564800000])
def test_a_date_is_its_first_moment_however_the_column_keeps_its_own(app: Application, run: Run, stored: Any) -> None:
    key = app.add(queued_at=stored)

    async def scenario() -> None:
        table = await app.served()
        for op, day, found in (("<", NOON, []), (">=", NOON + timedelta(days=1), []), (">=", NOON, [key])):
            assert await keys(table, conditions=(Where("queued_at", op, day.date()),)) == found

    run(scenario())


def test_a_comment_in_sql_of_ones_own_ends_with_it(app: Application, run: Run) -> None:
    for size in (1, 5, 3):
        app.add(size=size)

    async def scenario() -> None:
        table = await app.served(
            column_expressions=[sql("size -- of the file"), "state"],
            order_by_expression=[sql("-size -- the largest first"), "id"],
        )
        taken = await claimed(table, conditions=(sql("size < {} -- not", 5), sql("size > 1")))
        assert taken.values == (3, "processing")

    run(scenario())


SPELLINGS = (
    "2024-05-01 12:00:00",
    "2024-05-01 12:00:00.000",
    "2024-05-01 12:00:00.000000",
    "2024-05-01T12:00:00Z",
    "2024-05-01T14:00:00.000000+02:00",
    "2024-05-01 07:00:00-05:00",
    1714564800,
    1714564800.0,
    1714564800000,
    "1714564800",
)


@pytest.mark.parametrize("moment", ["TEXT", "TIMESTAMP", "INTEGER", "REAL"])
def test_due_is_what_process_after_says_however_it_is_spelled(made: Made, run: Run, moment: str) -> None:
    app = made(TABLE.format(moment=moment))

    async def scenario() -> None:
        table = await app.served()
        for written in SPELLINGS:
            key = app.add(process_after=written)
            app.now = NOON - timedelta(milliseconds=1)
            assert await keys(table) == [], written
            assert await table.queries.next_due() == pytest.approx(0.001), written
            app.now = NOON
            assert await table.queries.next_due() == 0.0, written
            assert await keys(table) == [key], written

    run(scenario())


@pytest.mark.parametrize(
    ("state", "minutes_ago", "retries", "due"),
    [
        ("errored", 6, 1, True),
        ("errored", 4, 1, False),
        ("errored", 6, 0, False),
        ("failed", 6, 1, False),
        ("completed", 6, 1, False),
        ("canceled", 6, 1, False),
    ],
)
def test_an_errored_record_is_due_when_its_time_has_come_and_no_final_one_ever(
    app: Application, run: Run, state: str, minutes_ago: int, retries: int, due: bool
) -> None:
    key = app.add(state=state, finished_at=(NOON - timedelta(minutes=minutes_ago)).isoformat())

    async def scenario() -> None:
        table = await app.served(max_num_retries=retries, retry_after=300)
        assert await keys(table) == ([key] if due else [])

    run(scenario())


def test_a_retry_waits_for_its_own_delay_and_for_the_tables(app: Application, run: Run) -> None:
    key = app.add()

    async def scenario() -> None:
        table = await app.served(max_num_retries=5, retry_after=0.25)
        for delay, wait in ((0.0, 0.25), (3.0, 3.0)):
            taken = await claimed(table)
            await settled(table, taken.lease, errored(delay=delay))
            assert await table.queries.next_due() == wait
            app.later(wait - 0.001)
            assert await keys(table) == []
            app.later(0.001)
        assert await keys(table) == [key]

    run(scenario())


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (Where("size", "<=", 2), [1, 2]),
        (Where("uploads.size", "!=", 2), [1, 3]),
        (Where("size", "in", [1, 3]), [1, 3]),
        (Where("size", "not in", [1, 3]), [2]),
        (Where("path", "=", "x' OR '1'='1"), []),
        (Where("failure_message", "is null"), [1, 2, 3]),
        (Where("queued_at", "<", NOON), [1, 2, 3]),
        (Where("queued_at", ">=", NOON), []),
        (Where("queued_at", "<", NOON.date()), []),
        (sql("size = {} OR size = {} -- either", 2, 3), [2, 3]),
        # An OR does not escape the other conditions.
        (sql("size = 8 OR size = 7"), []),
    ],
)
def test_conditions_narrow_a_claim(app: Application, run: Run, condition: Any, found: list[int]) -> None:
    for size in (1, 2, 3):
        app.add(size=size, queued_at="2024-05-01T11:59:59Z")
    app.add(size=7, state="completed")

    async def scenario() -> None:
        table = await app.served()
        assert await table.queries.exists([State.QUEUED], (condition,)) is bool(found)
        assert await table.queries.count([State.QUEUED], (condition,)) == {State.QUEUED: len(found)}
        assert await keys(table, conditions=(condition, Where("size", "<", 99))) == found

    run(scenario())


def test_a_lone_surrogate_is_no_value_of_a_condition(app: Application, run: Run) -> None:
    app.add()

    async def scenario() -> None:
        table = await app.served()
        with pytest.raises(ConfigurationError, match="surrogate"):
            await keys(table, conditions=(sql("path = {}", "\udc80"),))

    run(scenario())


@pytest.mark.parametrize("alias", ["uploads", "v"])
def test_a_view_with_a_join_gives_the_record(app: Application, run: Run, alias: str) -> None:
    app.raw.executescript(
        f"{VIEW} CREATE VIEW uploads_with_repo AS SELECT uploads.*, uploads.id * 7 AS times_seven, repo.name AS repo"
        " FROM uploads JOIN repo ON repo.id = uploads.size"
    )
    app.add(size=9)
    one, two = app.add(size=1), app.add(size=2)

    async def scenario() -> None:
        table = await app.served(
            view_name=f"uploads_with_repo {alias}",
            column_expressions=["id", f"{alias}.repo", "times_seven", sql("state || '!' AS state")],
            order_by_expression=sql("repo DESC"),
        )
        first = await claimed(table)
        assert first.values == (two, "two", two * 7, "processing!")
        assert await keys(table, conditions=(Where("times_seven", "=", 0),)) == []
        assert await keys(table, conditions=(Where("times_seven", "=", one * 7), sql("state = 'queued'"))) == [one]

    run(scenario())


def test_an_expression_may_name_view_and_table(app: Application, run: Run) -> None:
    app.raw.executescript("CREATE VIEW shown AS SELECT id, state, path FROM uploads")
    for size in (5, 4, 3):
        app.add(size=size)

    async def scenario() -> None:
        table = await app.served(
            table_name="uploads t",
            view_name="shown v",
            column_expressions=["v.id", "t.size", sql("t.state || v.state")],
            order_by_expression=sql("t.size"),
        )
        (taken,) = await table.claim(asking(1, conditions=(Where("t.size", ">", 3), sql("v.path <> {}", ""))))
        assert taken.values == (2, 4, "processingprocessing")

    run(scenario())


def test_names_are_taken_as_they_are(made: Made, run: Run) -> None:
    ddl = TABLE.format(moment="DATETIME").replace("CREATE TABLE uploads", 'CREATE TABLE "My ""odd"" jobs"')
    ddl = ddl.replace("ON uploads", 'ON "My ""odd"" jobs"').replace(" state ", ' "the state" ')
    app = made(ddl.replace("(state", '("the state"'))
    app.sql("""INSERT INTO "My ""odd"" jobs" (size) VALUES (7)""")

    async def scenario() -> None:
        table = await app.served(
            table_name='main."My ""odd"" jobs" AS "order"',
            alternate_column_names={"state": '"the state"'},
            column_expressions=["id", '"order"."the state"'],
        )
        taken = await claimed(table)
        assert taken.values == (1, "processing")
        await settled(table, taken.lease, errored())
        assert app.sql("""SELECT "the state", num_failures FROM "My ""odd"" jobs" """) == [("errored", 1)]

    run(scenario())


def test_keys_may_be_text(made: Made, run: Run) -> None:
    app = made(TABLE.format(moment="TEXT").replace("INTEGER PRIMARY KEY", "TEXT PRIMARY KEY") + ";")
    app.sql("INSERT INTO uploads (id) VALUES ('it''s'), ('0042')")

    async def scenario() -> None:
        table = await app.served()
        taken = await table.claim(asking(2))
        assert [one.lease.job_id for one in taken] == ["0042", "it's"]
        assert await settled(table, taken[1].lease, errored()) == ["settled"]
        assert app.states() == ["processing", "errored"]

    run(scenario())


def test_keys_that_are_none_are_left_alone(made: Made, run: Run) -> None:
    app = made(TABLE.format(moment="TEXT").replace("INTEGER PRIMARY KEY", "TEXT PRIMARY KEY"))
    app.sql("INSERT INTO uploads (id) VALUES (NULL), (x'00'), (CAST(x'ff' AS TEXT)), ('good')")

    async def scenario() -> None:
        table = await app.served(order_by_expression=sql("id DESC"))
        assert await keys(table) == ["good"]
        assert await keys(table) == []

    run(scenario())


def test_texts_that_are_none_do_not_keep_others_from_being_claimed(app: Application, run: Run) -> None:
    app.sql("INSERT INTO uploads (path) VALUES (CAST(x'41ff' AS TEXT)), ('good')")

    async def scenario() -> None:
        table = await app.served(column_expressions=["path"])
        taken = await table.claim(asking(2))
        assert [one.values for one in taken] == [("A\udcff",), ("good",)]
        assert await table.settle([(one.lease, errored("x")) for one in taken]) == ["settled"] * 2

    run(scenario())


def test_extra_columns_are_left_alone_and_triggers_fire(app: Application, run: Run) -> None:
    app.raw.executescript(
        "ALTER TABLE uploads ADD COLUMN changes INTEGER NOT NULL DEFAULT 0;"
        " CREATE TRIGGER counted AFTER UPDATE OF state ON uploads"
        " BEGIN UPDATE uploads SET changes = changes + 1 WHERE id = new.id; END"
    )
    key = app.add(size=7, path="kept")

    async def scenario() -> None:
        table = await app.served(max_num_retries=1)
        taken = await claimed(table)
        await settled(table, taken.lease, errored())
        now = app.row(key)
        assert (now["size"], now["path"], now["changes"]) == (7, "kept", 2)

    run(scenario())


def test_a_table_without_queued_at_and_cancel_works(made: Made, run: Run) -> None:
    app = made(
        "\n".join(x for x in TABLE.format(moment="TEXT").splitlines() if "queued_at" not in x and "cancel" not in x)
    )
    key = app.add()

    async def scenario() -> None:
        table = await app.served()
        assert not [one for one in await table.check() if one.fatal]
        taken = await claimed(table)
        heartbeats = table.heartbeats()
        assert (await heartbeats.beat([taken.lease], 30.0)).lost == frozenset()
        assert [one.state for one in await heartbeats.reset_lease(taken.lease)] == ["queued"]
        await heartbeats.maintain()
        await heartbeats.close()
        await table.queries.requeue(key, None)
        assert await table.queries.longest_wait() == 0.0
        assert await keys(table) == [key]

    run(scenario())


def test_a_waiting_record_with_cancel_is_never_started(app: Application, run: Run) -> None:
    for _ in range(300):
        app.add(cancel=True)
    key = app.add()

    async def scenario() -> None:
        table = await app.served()
        assert await keys(table, 1) == [key]
        assert app.sql("SELECT state, finished_at IS NULL, count(*) FROM uploads GROUP BY 1, 2") == [
            ("canceled", 0, 300),
            ("processing", 1, 1),
        ]

    run(scenario())


def test_what_was_reset_twice_is_claimed_only_by_who_asks_for_suspects(app: Application, run: Run) -> None:
    suspect, other = app.add(num_resets=2), app.add(num_resets=1)

    async def scenario() -> None:
        table = await app.served()
        assert await keys(table) == [other]
        assert await keys(table) == []
        assert await table.queries.next_due() == 0.0
        assert await keys(table, suspects=True) == [suspect]

    run(scenario())


def test_the_free_one_behind_ten_thousand_that_are_not_due_is_found(app: Application, run: Run) -> None:
    app.raw.executescript(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)"
        " INSERT INTO uploads (process_after) SELECT '2024-05-02T00:00:00Z' FROM n"
    )
    key = app.add()

    async def scenario() -> int:
        table = await app.served()
        steps = counted_steps(table)
        assert await keys(table) == [key]
        return len(steps)

    # Thousands of SQLite's own steps: each of them is looked at a few times, and no more.
    assert run(scenario()) < 1000


@pytest.mark.parametrize(
    ("view", "trouble"),
    [
        ("SELECT * FROM uploads WHERE state = 'queued'", "does not show it once it is processing"),
        ("SELECT * FROM uploads UNION ALL SELECT * FROM uploads WHERE state = 'processing'", "more than once"),
    ],
)
def test_a_view_that_cannot_show_what_was_claimed_undoes_the_claim(
    app: Application, run: Run, view: str, trouble: str
) -> None:
    app.sql(f"CREATE VIEW shown AS {view}")
    key, _ = app.add(failure_message="kept"), app.add()

    async def scenario() -> None:
        table = await app.served(view_name="shown")
        for limit in (1, 2):
            with pytest.raises(TableUnsuitable, match=f"record {key}: .*{trouble}"):
                await keys(table, limit)
        assert app.states() == ["queued", "queued"]
        assert app.row(key)["failure_message"] == "kept"

    run(scenario())


def test_a_table_that_changes_under_a_worker_is_said_to(app: Application, run: Run) -> None:
    app.add()

    async def scenario() -> None:
        table = await app.served()
        app.raw.executescript("DROP INDEX uploads_state; ALTER TABLE uploads RENAME COLUMN process_after TO later")
        with pytest.raises(TableUnsuitable, match="process_after"):
            await keys(table)

    run(scenario())


def test_a_token_that_was_abandoned_claims_nothing(app: Application, run: Run) -> None:
    app.add()

    async def scenario() -> None:
        table = await app.served()
        heartbeats = table.heartbeats()
        request = asking(1)
        assert await heartbeats.abandon(request.token)
        assert await table.claim(request) == ()
        await heartbeats.close()
        assert len(await keys(table)) == 1

    run(scenario())


def test_waits_are_measured_from_when_a_record_was_due(app: Application, run: Run) -> None:
    def ago(minutes: int) -> str:
        return (NOON - timedelta(minutes=minutes)).isoformat()

    async def scenario() -> None:
        plain, retrying = await app.served(), await app.served(max_num_retries=1, retry_after=300)
        assert await plain.queries.longest_wait() == await plain.queries.longest_run() == 0.0
        app.add(queued_at=ago(50), process_after=(NOON + timedelta(hours=1)).isoformat())
        app.add(queued_at=ago(40), process_after=ago(30))
        assert await plain.queries.longest_wait() == 30 * 60
        app.add(state="errored", queued_at=ago(90), finished_at=ago(40))
        assert (await plain.queries.longest_wait(), await retrying.queries.longest_wait()) == (30 * 60, 35 * 60)
        app.add(state="processing", started_at=ago(3), last_heartbeat_at=ago(0))
        assert await plain.queries.longest_run() == 180

    run(scenario())


def test_the_next_due_time_is_the_earliest_of_all_spellings(app: Application, run: Run) -> None:
    async def scenario() -> None:
        table = await app.served(max_num_retries=1, retry_after=60)
        assert await table.queries.next_due() is None
        app.add(process_after=datetime(2024, 5, 3, tzinfo=NOON.tzinfo).isoformat())
        assert await table.queries.next_due() == 36 * 3600
        app.add(process_after="2024-05-01 20:00:00")
        # Which of the two comes first as a text is not which comes first.
        app.add(process_after="2024-05-01T23:00:00+09:00")
        assert await table.queries.next_due() == 2 * 3600
        app.add(state="errored", finished_at="2024-05-01 11:59:30")
        assert await table.queries.next_due() == 30
        app.add(state="errored", process_after="2024-05-01 12:00:20", finished_at="2024-05-01 11:59:00")
        assert await table.queries.next_due() == 20

    run(scenario())
