"""The keys of every ``--json`` output are promised: a program reads them, and a renamed one breaks it."""

from __future__ import annotations

import json
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stowhand.jobs.task_limits import LimitValues, TaskDeclarations, TaskLimits
from stowhand.protocols.operator import WorkerDescription, WorkerList
from stowhand.protocols.queue_store import QueueStore
from tests.cli.conftest import Stowhand
from tests.cli.test_flows import PROGRAM, add, work
from tests.conftest import Run
from tests.service.processes import with_store

ANSWER = "done id why"


@pytest.fixture
def installed(call: Stowhand) -> Stowhand:
    assert call("migrate").code == 0
    return call


def keys(value: Any) -> str:
    """``id tries[ended_at error]``: sorted, those of nested objects in brackets; of the items of a list, each once."""
    match value:
        case dict():
            named = {name: keys(each) for name, each in value.items()}
            return " ".join(sorted(f"{name}[{inner}]" if inner else name for name, inner in named.items()))
        case list():
            return " | ".join(dict.fromkeys(filter(None, map(keys, value))))
        case _:
            return ""


def test_the_keys_of_jobs(installed: Stowhand) -> None:
    installed("enqueue", "hello", "{}", "--max-attempts", 1)
    installed("worker", "--once")
    installed("enqueue", "other")
    assert keys(installed("jobs", "list", "--json").rows()) == (
        "attempts cancel_requested created_at finished_at flags id key last_error last_worker max_attempts "
        "max_resets parent_id payload priority progress progress_text queue resets result revision run_at serial "
        "started_at state task updated_at waits_for worker"
    )
    assert keys(installed("jobs", "show", 1, "--json").rows()) == (
        "attempts cancel_requested created_at finished_at flags id key last_error last_worker max_attempts "
        "max_resets parent_id payload priority progress progress_text queue resets result revision run_at serial "
        "started_at state task tries[ended_at error error_class number outcome round started_at worker] updated_at "
        "waits_for worker"
    )
    assert keys(installed("jobs", "failures", "--json").rows()) == (
        "error error_class is_cut jobs latest latest_at since task"
    )
    assert keys(installed("jobs", "explain", 1, 2, "--json").rows()) == "code id todo what"
    for verb in ("cancel", "retry", "fail", "complete", "remove"):
        assert keys(installed("jobs", verb, 2, 99, "--json").rows()) == ANSWER
    assert keys(installed("jobs", "reschedule", 1, "--priority", 1, "--json").rows()) == ANSWER
    ages = ("--completed", "1d", "--failed", "1d", "--canceled", "1d")
    assert keys(installed("jobs", "purge", *ages, "--json").rows()) == "canceled completed dry_run failed"


def test_the_keys_of_serials_and_stats(installed: Stowhand, folder: Path) -> None:
    installed("enqueue", "hello", "{}", "--max-attempts", 1)
    installed("worker", "--once")
    installed("enqueue", "hello", "{}", "--serial", "mail")

    async def show_worker(store: QueueStore) -> None:
        heartbeats = store.heartbeats()
        assert isinstance(heartbeats, WorkerList)
        own, values = TaskLimits(concurrency="hello"), LimitValues(concurrency=4)
        declared = TaskDeclarations({"hello": "default"}, {"hello": own}, {"hello": values})
        await heartbeats.worker_seen(WorkerDescription("w1", "host", 1, "1", ("hello",), 4), declared)
        await heartbeats.close()

    with_store(f"sqlite:///{folder}/stowhand.db", show_worker)
    paused = installed("serials", "pause", "mail", "--task", "hello", "--json").rows()
    assert keys(paused) == "done serial why | done task why"
    assert keys(installed("serials", "resume", "other", "--json").rows()) == "done serial why"
    assert keys(installed("serials", "list", "--json").rows()) == (
        "due due_since failed held_by name paused_since running waiting | paused_since task"
    )
    assert keys(installed("queues", "pause", "mail", "--json").rows()) == "done queue why"
    assert keys(installed("queues", "list", "--json").rows()) == (
        "due failed name paused_since running serving waiting workers"
    )
    assert keys(installed("limits", "set", "hello", "--concurrency", 1, "--json").rows()) == "done limit why"
    values = "burst concurrency key_burst key_concurrency key_rate key_rate_seconds rate rate_seconds"
    assert keys(installed("limits", "list", "--json").rows()) == (
        f"declared[{values}] due held_until name next_start override[{values}] tasks used used_by used_since "
        f"values[{values}] waiting"
    )
    assert keys(installed("limits", "reset", "hello", "--json").rows()) == "done limit why"
    assert keys(installed("stats", "--json").rows()) == (
        "claimed_ahead counted[seconds tasks[ended failures finished late per_second resets retry run_p50 "
        "run_p95 task wait_p50 wait_p95]] finished[15m[canceled completed failed per_second] 1m[canceled "
        "completed failed per_second] 5m[canceled completed failed per_second]] more_than oldest_due paused "
        "paused_queues paused_tasks queues[due errored failed queue running waiting] "
        "serials[due failed paused running serial waiting] states[canceled completed errored "
        "failed processing queued] tasks[due errored failed running task waiting] workers[abandoned_threads "
        "alive app_version blocked busy claimed_ahead concurrency forbidden_flags host name pid "
        "queues[excluded only] seen_at started_at stopping tasks version]"
    )


def test_the_keys_of_cron(call: Stowhand, folder: Path) -> None:
    (folder / "crontab").write_text("0 4 1 1 * hello {name: 'Ann'}\n")
    assert call("worker", "--once").code == 0
    assert keys(call("cron", "list", "--json").rows()) == (
        "identifier is_scheduled known_since last_tick missed_tick next_run scheduled_at scheduled_by spec"
    )
    assert keys(call("cron", "check", "--json").rows()) == "fill identifier runs spec task tz"


def test_the_keys_of_tokens(call: Stowhand) -> None:
    call("tokens", "make", "--name", "ci", "--task", "a", "--condition", "size")
    call("tokens", "revoke", "ci")
    assert keys(call("tokens", "list", "--json").rows()) == (
        "conditions expires id made name queues revoked scopes serials standing tasks"
    )


def test_the_keys_of_tables(call: Stowhand) -> None:
    with closing(sqlite3.connect("app.db")) as connection, connection:
        connection.executescript(call("table", "ddl", "jobs", "--dialect", "sqlite").out)
        entry = {"key": "a", "command": ["b"], "startTime": "2026-01-02T03:04:05Z", "exitCode": 1, "out": "c"}
        logs = json.dumps([entry | {"durationMs": 5}])
        connection.execute("insert into jobs (id, execution_logs) values (1, ?)", [logs])
    where = ("--table", "jobs", "-c", "sqlite:///app.db", "--json")
    assert keys(call("table", "logs", 1, *where).rows()) == "command durationMs exitCode key number out startTime"
    for verb in (("list",), ("show", 1)):
        assert keys(call("table", *verb, *where).rows()) == (
            "cancel failure_message finished_at id last_heartbeat_at num_failures num_resets process_after "
            "queued_at started_at state worker"
        )
    assert keys(call("table", "cancel", 1, *where).rows()) == ANSWER
    assert keys(call("table", "retry", 1, *where).rows()) == ANSWER
    with closing(sqlite3.connect("app.db")) as connection, connection:
        connection.execute("alter table jobs drop column failure_message")
    assert keys(call("table", "check", *where).rows()) == "fatal fix problem warned"


def test_the_keys_of_flows(run: Run, call: Stowhand, folder: Path) -> None:
    program = f"shop_{uuid.uuid4().hex[:8]}"
    (folder / f"{program}.py").write_text(PROGRAM.format(place=f"sqlite:///{folder}/flow.db"))
    bad, child = add(run, program, "bad", "with a child")
    work(run, program)
    (waiting,) = add(run, program, "next")
    assert keys(call("flows", "list", program, "--json").rows()) == (
        "next parent priorities[delayed failed parked paused priority processing waiting] queue slots"
    )
    assert keys(call("flows", "jobs", program, "--json").rows()) == "job_id position priority queue ready_at state"
    assert keys(call("flows", "show", program, waiting, "--json").rows()) == (
        "children failure job[correlationId id text userId] paused queue stands[job_id position priority "
        "queue ready_at state] state"
    )
    assert keys(call("flows", "show", program, child, "--json").rows()[0]["children"]) == "second[done failed]"
    assert keys(call("flows", "monitor", program, "--once", "--json").rows()) == (
        "at flow queues[delayed failed parked paused priority processing queue waiting] returned"
    )
    for attributes in call("flows", "jobs", program, "--failed", "--json").rows():
        assert attributes.keys() >= {"id", "failedQueue", "failedErrorMsg"}
    for attributes in call("flows", "jobs", program, "--key", "userId=0", "--json").rows():
        assert attributes.keys() >= {"id", "userId", "text"}
    assert keys(call("flows", "retry", program, bad, "--json").rows()) == ANSWER
    assert keys(call("flows", "cancel", program, waiting, "--json").rows()) == ANSWER
