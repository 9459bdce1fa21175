"""Commands for records of a real table: their logs in the record, canceling and deleting from outside."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stowhand.clock import SystemClock
from stowhand.commands import Command, CommandHandler, steps
from stowhand.jobs.execution_log import ExecutionLogEntry
from stowhand.protocols.attempt import ExecutionLog
from stowhand.protocols.options import WorkerOptions
from stowhand.remote import HttpStore
from stowhand.stores.table.ddl import DdlOptions, full_ddl
from stowhand.stores.table.names import read_shape
from stowhand.table import AttemptStore, TableOptions, TableStore
from stowhand.worker.worker import Worker
from tests.commands.harness import wait_until_gone
from tests.conftest import Run
from tests.support.proxy import Proxy
from tests.support.shared_server import SharedServer

Build = dict[str, Any]
SLOW = "sleep 300"
HELD = "echo $$; sleep 300 & wait"


def commands(build: Build) -> list[Command]:
    script = build["script"]
    return [Command("build", ["sh", "-c", script], timeout=0.3 if script == SLOW else None)]


class Place:
    """A table ``builds`` with a script for each record, and a worker at it."""

    def __init__(self, url: str, connection: psycopg.AsyncConnection[Any], store: TableStore[Build]) -> None:
        self.url, self.connection, self.store = url, connection, store

    async def add(self, *scripts: str) -> list[int]:
        return [await self._one("INSERT INTO builds (script) VALUES (%s) RETURNING id", script) for script in scripts]

    async def state(self, build: int) -> str:
        return str(await self._one("SELECT state FROM builds WHERE id = %s", build))

    async def message(self, build: int) -> str:
        return str(await self._one("SELECT failure_message FROM builds WHERE id = %s", build))

    async def log(self, build: int) -> ExecutionLogEntry:
        (entry,) = await self.store.logs(build) or []
        return entry

    async def until(self, build: int, reached: Callable[[str], bool]) -> None:
        async with asyncio.timeout(20):
            while not reached(await self.state(build)):
                await SystemClock().sleep(0.01)

    async def pid(self, build: int) -> int:
        """Of what its command says first."""
        async with asyncio.timeout(20):
            while not (entries := await self.store.logs(build)) or not entries[0].out:
                await SystemClock().sleep(0.01)
            return int(entries[0].out)

    async def _one(self, statement: str, *values: object) -> Any:
        row = await (await self.connection.execute(statement.encode(), values)).fetchone()
        return row[0] if row else None


@asynccontextmanager
async def building(
    url: str, way: str | None = None, shared_server: SharedServer | None = None, **options: Any
) -> AsyncIterator[Place]:
    """``way``: how the store reaches the database; ``shared_server``: the worker uses the store through it."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(full_ddl(DdlOptions(shape=read_shape("builds", None, {}))).encode())
        await connection.execute("ALTER TABLE builds ADD script text NOT NULL")
        table = TableOptions[Build](
            name="builds", table_name="builds", heartbeat_interval=0.1, stalled_max_age=5, **options
        )
        handler = CommandHandler[Build](commands, redact=["hunter-22"])
        async with TableStore(way or url, table) as store:
            lent = None if shared_server is None else HttpStore(shared_server.lend(TableStore(url, table)))
            if lent is not None:
                await lent.open()
            worker = Worker(lent or store, handler, WorkerOptions(poll_interval=0.05, grace=5))
            running = asyncio.ensure_future(worker.run())
            try:
                yield Place(url, connection, store)
            finally:
                worker.stop(now=True)
                await running
                if lent is not None:
                    await lent.close()


@pytest.mark.parametrize("lent", [False, True])
def test_what_commands_say_stands_in_the_record_and_the_exit_code_in_its_message(
    postgres_url: str, run: Run, lent: bool
) -> None:
    async def story(shared_server: SharedServer | None) -> None:
        async with building(postgres_url, shared_server=shared_server) as place:
            good, bad, slow = await place.add("echo fine; echo hunter-22 >&2", "echo so far; exit 3", SLOW)
            await place.until(good, lambda state: state == "completed")
            for build in (bad, slow):
                await place.until(build, lambda state: state == "failed")
            entry = await place.log(good)
            assert (entry.key, entry.command[-1], entry.exit_code) == ("build", "echo fine; echo ****** >&2", 0)
            assert entry.out == "fine\n******\n"
            assert (await place.log(bad)).exit_code == 3
            assert await place.message(bad) == "build exited with code 3\nso far"
            assert await place.message(slow) == "build took longer than 0.3 s and was killed by SIGTERM"
            (raw,) = await place._one("SELECT execution_logs FROM builds WHERE id = %s", good)
            assert raw["exitCode"] == 0
            assert raw.keys() == {"key", "command", "startTime", "exitCode", "out", "durationMs"}

    with SharedServer() if lent else nullcontext() as shared_server:
        run(story(shared_server))


def test_on_sqlite_too_and_a_cancel_ends_the_command(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "UPDATE_INTERVAL_SECONDS", 0.05)
    file = tmp_path / "shop.db"

    async def story() -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.executescript(
                full_ddl(DdlOptions(shape=read_shape("builds", None, {}, folds=False), dialect="sqlite"))
            )
            connection.execute("ALTER TABLE builds ADD script text NOT NULL DEFAULT ''")
            connection.execute("INSERT INTO builds (script) VALUES (?)", [HELD])
            table = TableOptions[Build](name="builds", table_name="builds", heartbeat_interval=0.1, stalled_max_age=5)
            async with TableStore(f"sqlite:///{file}", table) as store, asyncio.timeout(20):
                worker = Worker(store, CommandHandler[Build](commands), WorkerOptions(poll_interval=0.05))
                running = asyncio.ensure_future(worker.run())
                while not (entries := await store.logs(1)) or not entries[0].out:
                    await SystemClock().sleep(0.01)
                pid = int(entries[0].out)
                connection.execute("UPDATE builds SET cancel = 1")
                while connection.execute("SELECT state FROM builds").fetchone() != ("canceled",):
                    await SystemClock().sleep(0.01)
                await asyncio.to_thread(wait_until_gone, pid)
                (entry,) = await store.logs(1) or []
                assert entry.out == f"{pid}\n[stopped: its job was canceled]\n"
                assert entry.exit_code == 128 + 15
                worker.stop()
                await running

    run(story())


@pytest.mark.parametrize(
    "ending", ["UPDATE builds SET cancel = true WHERE id = %s", "DELETE FROM builds WHERE id = %s"]
)
def test_a_record_that_is_canceled_or_deleted_ends_its_command_and_all_it_started(
    postgres_url: str, run: Run, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(steps, "UPDATE_INTERVAL_SECONDS", 0.05)

    async def story() -> None:
        async with building(postgres_url) as place:
            (build,) = await place.add(HELD)
            pid = await place.pid(build)
            await place.connection.execute(ending.encode(), [build])
            await asyncio.to_thread(wait_until_gone, pid)
            if "cancel" in ending:
                await place.until(build, lambda state: state == "canceled")
                entry = await place.log(build)
                assert entry.out.splitlines()[1:] == ["[stopped: its job was canceled]"]
                assert entry.exit_code == 128 + 15

    run(story())


def test_a_worker_that_stops_ends_its_commands_and_hands_their_records_back(
    postgres_url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "UPDATE_INTERVAL_SECONDS", 0.05)

    async def story() -> None:
        async with building(postgres_url) as place:
            (build,) = await place.add(HELD)
            pid = await place.pid(build)
        await asyncio.to_thread(wait_until_gone, pid)
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            result = await connection.execute("SELECT state, num_resets, num_failures FROM builds")
            assert await result.fetchall() == [("queued", 0, 0)]

    run(story())


def lose(proxy: Proxy, to: bytes) -> None:
    """A log is written on whatever connection of the pool is free, whoever it was dialed for."""
    for role in ("log", "due", "claim", "settle", "inspect", "check"):
        proxy.lose_next_reply(role, to)


def test_replies_that_are_lost_cost_no_output_and_no_exit_code(postgres_url: str, run: Run, tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def story() -> None:
        with Proxy(postgres_url) as proxy:
            async with building(postgres_url, proxy.url) as place:
                lose(proxy, b"startTime")
                (build,) = await place.add(f"echo fine; until [ -e {go} ]; do sleep 0.01; done; exit 3")
                assert await asyncio.to_thread(proxy.lost.wait, 10)
                lose(proxy, b'"exitCode":3')
                go.touch()
                await place.until(build, lambda state: state == "failed")
                assert proxy.lost.is_set()
                # Whether one was added before its reply was lost nobody could know, so it was added once more.
                *again, last = await place.store.logs(build) or []
                assert again
                assert {(one.out, one.exit_code) for one in again} == {("", None)}
                assert (last.out, last.exit_code) == ("fine\n", 3)

    run(story())


def test_commands_in_a_transaction_write_their_log_when_it_ends(postgres_url: str, run: Run) -> None:
    async def story() -> None:
        async with building(postgres_url, transactional=True) as place:
            good, bad = await place.add("echo fine", "exit 3")
            await place.until(good, lambda state: state == "completed")
            await place.until(bad, lambda state: state == "failed")
            assert (await place.log(good)).out == "fine\n"
            assert (await place.log(bad)).exit_code == 3

    run(story())


def test_what_a_handler_of_a_table_is_given_keeps_logs() -> None:
    assert issubclass(AttemptStore, ExecutionLog)
