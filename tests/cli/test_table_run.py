"""``stowhand table run``: workers of a program's own, and how they are seen from outside."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stowhand.stores.table.ddl import DdlOptions, full_ddl
from stowhand.stores.table.names import read_shape
from tests.cli.conftest import Stowhand, command
from tests.support import subprocesses

PROGRAM = """\
import asyncio, os
from stowhand import Worker, WorkerOptions
from stowhand.table import Resetter
from stowhand.table import TableOptions, TableStore

store = TableStore("sqlite:///app.db", TableOptions(name="jobs", table_name="jobs", stalled_max_age=2))

async def handle(ctx, record):
    print("did", record["id"], "in", os.getpid(), flush=True)

def worker(once=False):
    return Worker(store, handle, WorkerOptions(concurrency=1, poll_interval=0.1, once=once))

def drain():
    return [worker(once=True), Resetter(store)]

lonely = [Resetter(store)]
something = 5
"""
PATIENCE = 60.0


@pytest.fixture
def program(folder: Path) -> str:
    name = f"shop_{uuid.uuid4().hex[:8]}"
    (folder / f"{name}.py").write_text(PROGRAM)
    shape = read_shape("jobs", None, {}, folds=False)
    with closing(sqlite3.connect("app.db")) as connection:
        connection.executescript(full_ddl(DdlOptions(shape=shape, dialect="sqlite")))
    return name


def insert(*ids: int) -> None:
    with closing(sqlite3.connect("app.db")) as connection, connection:
        connection.executemany("insert into jobs (id) values (?)", [(one,) for one in ids])


def states() -> list[str]:
    with closing(sqlite3.connect("app.db")) as connection:
        return [state for (state,) in connection.execute("select state from jobs order by id")]


def test_a_program_that_drains_its_table_ends_with_0(call: Stowhand, program: str, folder: Path) -> None:
    insert(1, 2)
    ran = subprocesses.run(
        command("table", "run", f"{program}:drain"), cwd=folder, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[:2] for line in ran.stdout.splitlines()] == [["did", "1"], ["did", "2"]]
    assert states() == ["completed"] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{}:something"], "an int found; name a Worker"),
        (["{}:lonely"], "there is no Worker among 1 routines"),
        (["{}:nothing"], "has no 'nothing'"),
    ],
)
def test_an_object_that_is_not_a_worker_is_code_2_with_the_reason(
    call: Stowhand, program: str, arguments: list[str], said: str
) -> None:
    ended = call("table", "run", *(argument.format(program) for argument in arguments))
    assert ended.code == 2, ended.err
    assert said in ended.err


def test_a_worker_of_a_table_shows_its_health_and_stops_in_order(program: str, folder: Path) -> None:
    with (folder / "log").open("w") as log:
        worker = subprocesses.Popen(
            command("table", "run", program, "--http", "127.0.0.1:0"), cwd=folder, stdout=log, stderr=log
        )
        try:
            url = until(lambda: re.search(r"http://\S+(?=/metrics)", said()))[0]
            until(lambda: page(f"{url}/readyz")[0] == 200)
            assert page(f"{url}/healthz") == (200, {"status": "ok", "reasons": []})
            insert(*range(20))
            until(lambda: states() == ["completed"] * 20)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0, said()
        finally:
            worker.kill()
            worker.wait()


def said() -> str:
    return Path("log").read_text()


def page(url: str) -> tuple[int, object]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def until(reached: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (result := reached()):
        assert time.monotonic() < end, said()
        time.sleep(0.05)
    return result
