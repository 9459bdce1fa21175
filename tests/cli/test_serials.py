"""``stowhand serials``: several names at once, what they hold, answers for people and programs."""

from __future__ import annotations

import pytest

from stowhand.cli.program import run
from tests.cli.conftest import Stowhand


@pytest.fixture
def serial(call: Stowhand) -> Stowhand:
    assert call("migrate").code == 0
    return call


def test_queues_are_paused_listed_and_resumed(serial: Stowhand) -> None:
    serial("enqueue", "hello", '{"name": "a"}', "--serial", "mail")
    serial("enqueue", "hello", "--serial", "mail", "--run-at", "+1h")
    paused = serial("serials", "pause", "mail", "not yeté[2J")
    assert (paused.code, paused.out.splitlines()) == (0, ["mail: paused", "not yeté[2J: paused"])
    assert serial("serials", "pause", "mail").out == "mail: unchanged (it is already paused)\n"
    heads, mail, other = serial("serials", "list").out.splitlines()
    assert heads.split() == ["SERIAL", "STATE", "WAITING", "DUE", "FAILED", "SINCE"]
    assert mail.split()[:5] == ["mail", "paused", "2", "1", "0"]
    assert other.startswith("not yet")
    assert serial("worker", "--once").code == 0
    assert len(serial("jobs", "list", "--state", "queued", "--json").rows()) == 2
    assert serial("serials", "resume", "mail").out == "mail: resumed\n"
    assert serial("serials", "resume", "mail").out == "mail: unchanged (it is not paused)\n"
    serial("worker", "--once")
    assert len(serial("jobs", "list", "--state", "completed", "--json").rows()) == 1


def test_programs_read_objects(serial: Stowhand) -> None:
    (answer,) = serial("serials", "pause", "q", "q", "--json").rows()
    assert answer == {"serial": "q", "done": "paused", "why": ""}
    (row,) = serial("serials", "list", "--json").rows()
    assert row["paused_since"].endswith("Z")
    since = row.pop("paused_since")
    assert row == {"name": "q", "held_by": None, "waiting": 0, "due": 0, "running": 0, "failed": 0, "due_since": None}
    assert since


def test_no_queues_and_bad_names(serial: Stowhand) -> None:
    empty = serial("serials", "list")
    assert (empty.code, empty.out, empty.err.strip()) == (0, "", "No serial keys.")
    assert serial("serials", "pause").code == 2
    refused = serial("serials", "pause", "x" * 129)
    assert refused.code != 0
    assert "the limit is 128" in refused.err
    assert serial("serials", "pause", "mail", "").code == 2
    assert serial("serials", "list").out == "", "all of them or none"


def test_a_closed_output_ends_with_its_own_exit_code(serial: Stowhand, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", None)
        assert run(["serials", "pause", "q"]) == 0
    assert serial("serials", "pause", "q").out.startswith("q: unchanged")


def test_a_task_is_paused_listed_and_resumed(serial: Stowhand) -> None:
    serial("enqueue", "hello", '{"name": "a"}')
    paused = serial("serials", "pause", "--task", "hello")
    assert paused.out.splitlines() == ["task hello: paused"]
    assert serial("serials", "pause", "--task", "hello").out == "task hello: unchanged (it is already paused)\n"
    heads, task = serial("serials", "list").out.splitlines()
    assert heads.split() == ["ALSO", "PAUSED", "SINCE"]
    assert task.startswith("task hello ")
    (row,) = serial("serials", "list", "--json").rows()
    assert row["task"] == "hello"
    assert "task hello" in serial("stats").out
    assert "paused: task hello" in serial("doctor").out
    serial("worker", "--once")
    assert len(serial("jobs", "list", "--state", "queued", "--json").rows()) == 1
    resumed = serial("serials", "resume", "--task", "hello", "--json").rows()
    assert [row["done"] for row in resumed] == ["resumed"]
    serial("worker", "--once")
    assert len(serial("jobs", "list", "--state", "completed", "--json").rows()) == 1


def test_a_pause_of_nothing_is_refused(serial: Stowhand) -> None:
    refused = serial("serials", "pause")
    assert refused.code == 2
    assert "--task NAME" in refused.err
