"""``stowhand worker`` as people run it: a process, on SQLite and on PostgreSQL, ended by a signal or by itself."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Stowhand, command
from tests.support import subprocesses
from tests.support.imported import modules_after


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of an empty store of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{folder / 'queue.db'}"
    url = request.getfixturevalue("postgres_url")
    assert isinstance(url, str)
    return url


def test_the_readme_from_schema_to_success(stowhand: Stowhand, store: str) -> None:
    installed = stowhand("worker", "--schema-only", "-c", store)
    assert installed.code == 0, installed.err
    assert stowhand("enqueue", "hello", '{"name": "Bobby Tables"}', "-c", store).out == "1\n"
    worked = stowhand("worker", "--once", "-c", store)
    assert worked.code == 0, worked.err
    assert worked.out == "", "logs are not data"
    lines = worked.err.splitlines()
    assert lines[0].startswith("[core] INFO: Store: ")
    assert "[core] INFO: Worker connected and looking for jobs... (task names: 'hello')" in lines
    assert any(re.fullmatch(r"\[job\((.+): hello\{1\}\)\] INFO: Hello, Bobby Tables", line) for line in lines)
    success = r"\[worker\((.+)\)\] INFO: Completed task 1 \(hello\) with success \(\d+\.\d\dms\)"
    assert any(re.fullmatch(success, line) for line in lines)
    (done,) = stowhand("jobs", "list", "--state", "completed", "--json", "-c", store).rows()
    assert (done["id"], done["attempts"]) == (1, 1)


def test_a_failed_job_is_an_error_line_and_once_ends_with_0(stowhand: Stowhand) -> None:
    stowhand("migrate")
    stowhand("enqueue", "hello", '{"wrong": 1}', "--max-attempts", 1)
    worked = stowhand("worker", "--once", "--log-format", "json")
    assert worked.code == 0, worked.err
    entries = [json.loads(line) for line in worked.err.splitlines()]
    (failure,) = [entry for entry in entries if entry["level"] == "error"]
    assert failure["scope"] == "worker"
    assert "attempt 1/1" in failure["message"]
    assert "KeyError: 'name'" in failure["message"]
    (row,) = stowhand("jobs", "list", "--json").rows()
    assert row["state"] == "failed"
    assert "KeyError" in row["last_error"]


def test_the_environment_names_the_store_and_the_default_is_logged(stowhand: Stowhand, folder: Path) -> None:
    assert "stowhand.db" in stowhand("worker", "--once").err.splitlines()[0]
    named = stowhand("worker", "--once", STOWHAND_CONNECTION="sqlite:///other.db")
    assert "(STOWHAND_CONNECTION)" in named.err.splitlines()[0]
    assert (folder / "other.db").exists()


def test_a_password_is_never_printed(stowhand: Stowhand) -> None:
    ended = stowhand("worker", "--once", DATABASE_URL="postgres://me:hunter2@127.0.0.1:1/nothing")
    assert ended.code == 3, ended.err
    assert "hunter2" not in ended.out + ended.err
    assert "127.0.0.1:1" in ended.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_worker_with_0(folder: Path, number: signal.Signals) -> None:
    with subprocesses.Popen(command("worker"), cwd=folder, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        for line in worker.stderr:
            if "looking for jobs" in line:
                break
        worker.send_signal(number)
        rest = worker.stderr.read()
        assert worker.wait(timeout=60) == 0, rest
    assert "Stopped" in rest


def test_a_closed_pipe_is_not_an_error(folder: Path, stowhand: Stowhand) -> None:
    stowhand("migrate")
    stowhand("enqueue", "hello")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = subprocesses.run(
            command("jobs", "list"), cwd=folder, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.stderr == ""
    assert done.returncode == 141


def test_a_file_that_is_not_a_database_is_one_readable_line(stowhand: Stowhand, folder: Path) -> None:
    (folder / "stowhand.db").write_bytes(b"not a database at all, but long enough to be looked at" * 20)
    ended = stowhand("jobs", "list")
    assert ended.code in (1, 3), ended.err
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "way_out"),
    [
        ("UPDATE stowhand_schema SET version = 20", "stowhand migrate"),
        ("UPDATE stowhand_schema SET fingerprint = 'another'", "stowhand migrate"),
        ("INSERT INTO stowhand_schema VALUES (999, 1, 0, '')", "upgrade"),
    ],
    ids=["of before the first release", "another baseline", "too new"],
)
def test_a_schema_of_another_version_is_code_4_with_advice(
    stowhand: Stowhand, folder: Path, change: str, way_out: str
) -> None:
    stowhand("migrate")
    with closing(sqlite3.connect(folder / "stowhand.db")) as connection, connection:
        connection.execute(change)
    words_of_each = [
        *(("worker", "--once"), ("jobs", "list"), ("enqueue", "hello"), ("doctor",), ("migrate",), ("stats",)),
        ("web", "--port", "0"),
    ]
    for words in words_of_each:
        ended = stowhand(*words)
        assert ended.code == 4, (words, ended)
        assert way_out in ended.out + ended.err


def test_a_traceback_is_shown_only_on_request(stowhand: Stowhand) -> None:
    assert "Traceback" not in stowhand("jobs", "list").err
    assert "Traceback" in stowhand("jobs", "list", STOWHAND_DEBUG="1").err
    assert "Traceback" in stowhand("jobs", "list", "--log-level", "debug").err


def test_the_version_is_printed_without_importing_a_driver_or_the_settings() -> None:
    loaded = modules_after("from stowhand.cli.program import run; run(['--version']); run(['--help'])")
    assert "click" in loaded
    assert not {"psycopg", "sqlite3", "asyncio", "msgspec"} & loaded


def test_a_worker_does_not_run_jobs_with_a_forbidden_flag(stowhand: Stowhand, store: str) -> None:
    stowhand("worker", "--schema-only", "-c", store)
    for number, flag in enumerate(("slow", "other", "fine"), start=1):
        assert stowhand("enqueue", "hello", '{"name": "Ada"}', "--flag", flag, "-c", store).out == f"{number}\n"
    worked = stowhand("worker", "--once", "-c", store, "--forbidden-flag", "slow", "--forbidden-flag", "other")
    assert worked.code == 0, worked.err
    (left, other) = stowhand("jobs", "list", "--json", "-c", store).rows()
    assert (left["id"], left["state"], left["attempts"], other["id"]) == (1, "queued", 0, 2)
