"""``stowhand jobs explain``, ``jobs purge``, ``jobs retry --failed`` and ``stats``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from stowhand.app.answers import retry_failed
from stowhand.jobs.durations import format_span
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.queue_store import ActionResult, Answer, QueueStore
from tests.cli.conftest import Stowhand
from tests.service.processes import with_store

BROKEN = ("enqueue", "hello", "{}", "--max-attempts", 1)


@pytest.fixture
def serial(call: Stowhand) -> Stowhand:
    assert call("migrate").code == 0
    return call


def test_a_starting_worker_names_due_tasks_that_no_worker_has(serial: Stowhand) -> None:
    serial("enqueue", "unknown/task")
    serial("enqueue", "unknown/task")
    serial("enqueue", "later/task", "--run-at", "+1h")
    serial("enqueue", "hello", '{"name": "a"}')
    worked = serial("worker", "--once")
    assert worked.code == 0
    assert "Due jobs of tasks that no worker has: unknown/task (2); start a worker that has these tasks" in worked.err


def test_explain_lists_every_reason_with_advice(serial: Stowhand) -> None:
    serial("enqueue", "unknown/task", "--serial", "mail", "--run-at", "+1h")
    serial("serials", "pause", "mail")
    output = serial("jobs", "explain", 1)
    assert output.code == 0
    first, *lines = output.out.splitlines()
    assert first == "1 (unknown/task) is queued:"
    assert lines[0].startswith("  it is not due before ")
    assert lines[1] == "    -> stowhand jobs reschedule 1 --run-at +0s, to run it now"
    assert "    -> stowhand serials resume mail" in lines
    assert "    -> start one that has the task: stowhand worker MODULE:APP, or --tasks FOLDER" in lines
    codes = [row["code"] for row in serial("jobs", "explain", 1, "--json").rows()]
    assert codes == ["not_due", "serial_paused", "no_worker"]
    several = serial("jobs", "explain", 1, 2, 1)
    assert (several.code, several.out.count("1 (")) == (1, 2)
    assert "there is no job 2" in several.err
    assert len(serial("jobs", "explain", 1, 1, "--json").rows()) == 2 * len(codes)
    missing = serial("jobs", "explain", 2)
    assert (missing.code, missing.err) == (1, "error: there is no job 2\n")


def test_purge_counts_with_dry_run_and_then_deletes(serial: Stowhand) -> None:
    serial("enqueue", "hello", '{"name": "a"}')
    serial(*BROKEN)
    serial("worker", "--once")
    assert serial("jobs", "purge", "--completed", "1h", "--failed", "1h").out == "Deleted: 0 completed, 0 failed\n"
    dry = serial("jobs", "purge", "--completed", "0s", "--failed", "0s", "--canceled", "14d", "--dry-run")
    assert dry.out == "Would delete: 1 completed, 1 failed, 0 canceled\n"
    (counts,) = serial("jobs", "purge", "--failed", "0s", "--json").rows()
    assert counts == {"dry_run": False, "failed": 1}
    assert [row["state"] for row in serial("jobs", "list", "--state", "completed", "--json").rows()] == ["completed"]
    assert serial("jobs", "purge", "--completed", "0s").out == "Deleted: 1 completed\n"


def test_purge_without_a_valid_age_is_refused(serial: Stowhand) -> None:
    for arguments in ((), ("--completed", "soon"), ("--failed", "-1d"), ("--failed", "14"), ("--completed", " 1.5 ")):
        refused = serial("jobs", "purge", *arguments)
        assert refused.code == 2, refused
    assert "'14' has no unit; write for example 14d" in serial("jobs", "purge", "--completed", "14").err


def test_all_failed_jobs_are_counted_and_retried(serial: Stowhand, stowhand: Stowhand) -> None:
    for _ in range(3):
        serial(*BROKEN)
    serial(*BROKEN, "--serial", "q")
    serial("worker", "--once")
    denied = stowhand("jobs", "retry", "--failed", stdin="n\n")
    assert denied.code == 1
    assert "Retry 4 failed jobs? [y/N]" in denied.err
    assert "Nothing was changed." in denied.err
    assert serial("jobs", "retry", "--failed", "--until", "1h", "-y").err.startswith("No failed jobs until ")
    assert (
        serial("jobs", "retry", "--error", "no such text", "-y").err
        == "No failed jobs with an error that contains 'no such text'.\n"
    )
    narrowed = ("--serial", "q", "--task", "hello", "--error", "KeyError", "--since", "1h")
    one = stowhand("jobs", "retry", *narrowed, stdin="y\n")
    assert (one.code, one.out) == (0, "4: done\n")
    assert (
        "Retry 1 failed job of task hello of the serial key q with an error that contains 'KeyError' since 1h ago?"
        in one.err
    )
    rest = serial("jobs", "retry", "--all", "--yes", "--json").rows()
    assert [(row["id"], row["done"]) for row in rest] == [(1, "done"), (2, "done"), (3, "done")]
    assert len(serial("jobs", "list", "--state", "queued", "--json").rows()) == 4


@pytest.mark.parametrize("verb", ["retry", "cancel", "remove", "complete", "fail"])
def test_every_verb_takes_ids_or_filters_and_not_both(serial: Stowhand, verb: str) -> None:
    for arguments in ((), (1, "--task", "t"), (1, "--all"), (1, "--since", "1h"), ("-y",)):
        assert serial("jobs", verb, *arguments).code == 2, arguments
    for narrowed in (("--task", "t"), ("--error", "x"), ("--since", "1h"), ("--state", "queued"), ("--worker", "w")):
        assert re.fullmatch(r"No [\w, ]+ jobs .*\.\n|No queued jobs\.\n", serial("jobs", verb, *narrowed, "-y").err)


def test_stats_count_jobs_by_state_and_list_workers(serial: Stowhand) -> None:
    serial("enqueue", "hello", '{"name": "a"}')
    serial(*BROKEN)
    serial("worker", "--once")
    serial("enqueue", "other")
    serial("serials", "pause", "mail")
    output = serial("stats").out
    assert "1 queued" in output
    assert "1 completed" in output
    assert "No workers." in output, "it has said goodbye"
    assert "mail" in output
    line, counted = (line.split()[1:] for line in output.splitlines() if line.startswith("hello"))
    assert line == ["0", "0", "0", "1"]
    assert counted[1:4] == ["1", "0", "0"], "failed, retried, reset, as the worker counted when it ended"
    assert all(time.endswith(("ms", "s")) for time in counted[4:])
    result = json.loads(serial("stats", "--json").out)
    assert result["states"]["failed"] == 1
    lately = result["finished"]["15m"]
    assert (lately["completed"], lately["failed"], lately["canceled"]) == (1, 1, 0)
    assert result["paused"] == ["mail"]
    assert [row["task"] for row in result["tasks"]] == ["hello", "other"]
    assert result["workers"] == []
    (task,) = result["counted"]["tasks"]
    assert (task["task"], task["ended"], task["failures"]) == ("hello", 2, 1)
    assert 0 < task["run_p50"] <= task["run_p95"]


@pytest.mark.parametrize("history", [("--history", "none"), ()])
def test_stats_count_ended_jobs_with_any_history(serial: Stowhand, history: tuple[str, ...]) -> None:
    serial("enqueue", "hello", '{"name": "a"}')
    serial("worker", "--once", *history)
    lately = json.loads(serial("stats", "--json").out)["finished"]["15m"]
    assert (lately["completed"], lately["failed"], lately["canceled"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0s"), (59.9, "59s"), (60, "1m"), (3725, "1h 2m"), (90_061, "1d 1h"), (86_400, "1d")]
)
def test_a_span_has_two_units(seconds: float, said: str) -> None:
    assert format_span(seconds) == said


def test_a_job_that_was_retried_meanwhile_is_not_changed(tmp_path: Path) -> None:
    """Between the count and the answer there may be an hour."""

    async def act(store: QueueStore) -> tuple[Sequence[Answer], Job | None]:
        job = await store.jobs.enqueue(NewJob(task="send"))
        await store.admin.permanently_fail_jobs([job.id])
        await store.admin.retry(job.id)
        await store.admin.cancel(job.id)
        return await retry_failed(store, [job.id, job.id + 1]), await store.jobs.get(job.id)

    (refused, missing), job = with_store(f"sqlite:///{tmp_path}/q.db", act)
    assert job is not None
    assert job.state is State.CANCELED, "it had been canceled, and was not wanted any more"
    assert (refused.result, refused.reason) == (ActionResult.REFUSED, "it is now canceled")
    assert missing.result is ActionResult.MISSING
