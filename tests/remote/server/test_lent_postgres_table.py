"""A table on PostgreSQL, lent: uuid keys, logs, commands, cancel, deleted rows, and records that cannot be sent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

from stowhand.commands import Command, CommandHandler
from stowhand.errors import ConfigurationError, InvalidJob
from stowhand.events import StoreCallFailed
from stowhand.jobs.conditions import Where
from stowhand.jobs.job import State
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import ActionResult, Answer
from stowhand.protocols.store import ClaimRequest
from stowhand.remote import HttpOptions, HttpStore
from stowhand.table import TableOptions, TableStore
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.remote.server.conftest import Lend
from tests.remote.server.lending import claiming
from tests.remote.server.tokens import make_token
from tests.support.jobs_table import jobs_table
from tests.support.shared_server import SharedServer

OWN = ("path text not null", "size numeric not null default 1", "address inet default '10.0.0.1'")
TABLE = f"""
{jobs_table("uploads", *OWN, id="uuid primary key")};
INSERT INTO uploads (id, path) VALUES
    ('00000000-0000-4000-8000-00000000000a', 'a'),
    ('00000000-0000-4000-8000-00000000000b', 'b'),
    ('00000000-0000-4000-8000-00000000000c', 'c')
"""
A, B, C = (f"00000000-0000-4000-8000-00000000000{letter}" for letter in "abc")
TOKEN = "11111111-1111-4111-8111-111111111111"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[SharedServer]:
    with SharedServer() as shared_server:
        yield shared_server


class Uploads:
    """The table, and the way to it over HTTP under a token."""

    def __init__(self, shared_server: SharedServer, url: str, tokens: Path) -> None:
        self.shared_server, self.url, self.tokens = shared_server, url, tokens
        self.token = make_token(tokens, "w", "claim", tasks=("uploads",))
        self.sql(TABLE)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @asynccontextmanager
    async def lent(self, **options: Any) -> AsyncIterator[HttpStore]:
        table: TableStore[Any] = TableStore(
            self.url, TableOptions(name="uploads", table_name="uploads", heartbeat_interval=0.2, **options)
        )
        url = await asyncio.to_thread(self.shared_server.lend, table, self.tokens)
        try:
            async with HttpStore(url, HttpOptions(token=self.token)) as remote:
                yield remote
        finally:
            await asyncio.to_thread(self.shared_server.withdraw, url)

    async def work(self, handler: Any, **options: Any) -> None:
        """A worker far away, until nothing is due."""
        async with self.lent(**options) as remote:
            await Worker(remote, handler, WorkerOptions(once=True, name="far", concurrency=3)).run()


@pytest.fixture
def uploads(shared_server: SharedServer, postgres_url: str, tmp_path: Path) -> Uploads:
    return Uploads(shared_server, postgres_url, tmp_path / "tokens.json")


def test_commands_run_on_the_remote_worker_and_their_output_is_in_the_record(run: Run, uploads: Uploads) -> None:
    def commands(record: dict[str, Any]) -> list[Command]:
        code = f"print({record['path']!r}, {record['address']!r}, 's3cret'); raise SystemExit({record['path'] == 'c'})"
        return [Command("say", [sys.executable, "-c", code])]

    run(uploads.work(CommandHandler(commands, redact=("s3cret",)), max_num_retries=0))
    rows = uploads.sql(
        "SELECT id::text, state, failure_message, array_length(execution_logs, 1), execution_logs[1]->>'out',"
        " execution_logs[1]->>'exitCode' FROM uploads ORDER BY id"
    )
    assert [row[:2] for row in rows] == [(A, "completed"), (B, "completed"), (C, "failed")]
    assert [row[3] for row in rows] == [1, 1, 1]
    assert [row[5] for row in rows] == ["0", "0", "1"]
    for row, path in zip(rows, "abc", strict=True):
        assert row[4].startswith(f"{path} 10.0.0.1 ")
        assert "s3cret" not in row[4]
    assert "1" in rows[2][2]


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (f"UPDATE uploads SET cancel = true WHERE id = '{B}'", [("canceled",)]),
        (f"DELETE FROM uploads WHERE id = '{B}'", []),
    ],
    ids=["cancel", "delete"],
)
def test_a_record_that_is_canceled_or_deleted_stops_its_handler_far_away(
    run: Run, uploads: Uploads, change: str, state: list[tuple[str]]
) -> None:
    stopped: list[str] = []

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        if record["id"] == B:
            await asyncio.to_thread(uploads.sql, change)
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(record["id"])

    run(uploads.work(handle))
    assert stopped == [B]
    assert uploads.sql(f"SELECT state FROM uploads WHERE id = '{B}'") == state
    assert uploads.sql("SELECT count(*) FROM uploads WHERE state = 'completed'") == [(2,)]


def test_a_record_that_cannot_be_sent_fails_alone(run: Run, uploads: Uploads) -> None:
    class Rude:
        def __str__(self) -> str:
            raise RuntimeError("no word of mine")

    def read(row: Any) -> dict[str, Any]:
        path = row[0]
        odd = {"a": "\ud800", "b": Rude(), "c": None, "d": float("nan"), "e": [{"x": float("-inf")}]}
        return {"path": path, "odd": odd[path]}

    uploads.sql("INSERT INTO uploads (id, path) VALUES (gen_random_uuid(), 'd'), (gen_random_uuid(), 'e')")
    run(uploads.work(_nothing, column_expressions=("path",), scan=read))
    rows = uploads.sql("SELECT path, state, failure_message FROM uploads ORDER BY path")
    assert [row[:2] for row in rows] == [
        ("a", "failed"), ("b", "failed"), ("c", "completed"), ("d", "failed"), ("e", "failed")
    ]  # fmt: skip
    assert "NaN and infinity are not JSON numbers" in rows[3][2]
    assert "NaN and infinity are not JSON numbers" in rows[4][2]
    assert "select the value in another form with column_expressions" in rows[4][2]
    assert "surrogates" in rows[0][2]
    assert "no word of mine" in rows[1][2]


async def _nothing(ctx: Attempt[Any], record: Any) -> None:
    pass


def test_a_remote_handler_requeues_only_its_own_record(run: Run, uploads: Uploads) -> None:
    again: list[str] = []

    async def handle(ctx: Attempt[Any], record: Any) -> None:
        path = record["path"]
        for other in (B if path == "a" else A, {**record, "id": "another"}, 7):
            with pytest.raises(ConfigurationError, match="only its own record"):
                await ctx.store.requeue(other)
        for wrong in (-1, "soon", datetime(2030, 1, 1)):  # noqa: DTZ001 - that is the mistake
            with pytest.raises(InvalidJob):
                await ctx.store.requeue(record, wrong)
        if path == "a" and path in again:
            return
        again.append(path)
        after = {"a": None, "b": timedelta(hours=1), "c": datetime.now(UTC) + timedelta(hours=2)}[path]
        answer = await ctx.store.requeue(record if path == "a" else UUID(record["id"]), after)
        assert answer == Answer(record["id"], ActionResult.DONE)

    run(uploads.work(handle, max_num_retries=0))
    rows = uploads.sql(
        "SELECT path, state, num_failures, extract(epoch FROM process_after - now())::float, failure_message"
        " FROM uploads ORDER BY path"
    )
    assert [row[:3] for row in rows] == [("a", "completed", 0), ("b", "queued", 0), ("c", "queued", 0)], rows
    assert [row[3] for row in rows[1:]] == pytest.approx([3600, 7200], abs=60)


def test_a_condition_that_the_database_refuses_is_the_clients_mistake(lend: Lend, uploads: Uploads) -> None:
    lending = lend(TableStore(uploads.url, TableOptions(name="uploads", table_name="uploads")))
    client = lending.client()
    for column, op, value in (("nothing", "=", 1), ("size", "<", "much"), ("path", "=", "a\0")):
        reply = client.post("claim", **claiming(conditions=[{"column": column, "op": op, "value": value}]))
        assert f"cannot make this comparison ({column})" in reply.refused(400, "malformed")
        assert b"postgres" not in reply.raw
    assert [event.operation for event in lending.events_of(StoreCallFailed)] == ["claim"] * 2, (
        "NUL is never sent to the database"
    )
    uploads.sql("DROP TABLE uploads")
    client.post("claim", **claiming()).refused(503, "unreachable")
    assert "uploads" in lending.events_of(StoreCallFailed)[-1].error


def test_conditions_are_limited_by_the_token_and_another_token_changes_nothing(run: Run, uploads: Uploads) -> None:
    limited = make_token(uploads.tokens, "x", "claim", tasks=("other",))

    async def go() -> None:
        async with uploads.lent() as remote:
            request = ClaimRequest(worker="w", token=TOKEN, limit=9, lease=30.0)
            with pytest.raises(ConfigurationError, match="not for the condition column 'path'"):
                await remote.claim(msgspec.structs.replace(request, conditions=(Where("path", "=", "a"),)))
            async with HttpStore(remote.description, HttpOptions(token=limited)) as other:
                assert await other.claim(request) == []
            assert len(await remote.claim(request)) == 3

    run(go())
    assert uploads.sql("SELECT DISTINCT state FROM uploads") == [(State.PROCESSING.value,)]


def test_records_of_a_table_have_no_results(lend: Lend, run: Run, uploads: Uploads) -> None:
    lending = lend(TableStore(uploads.url, TableOptions(name="uploads", table_name="uploads")))

    async def wait() -> None:
        async with HttpStore(lending.url) as store:
            with pytest.raises(ConfigurationError, match=r"waiting for the end of a job: .*the application's: use SQL"):
                await store.results.retention()

    run(wait())
