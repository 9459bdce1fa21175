"""From ``add`` to ``jobs`` on an SQLite file: ids on stdout, answers for people and programs, exit codes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stowhand.cli.columns import table
from stowhand.cli.job_views import list_columns
from stowhand.jobs.job import Job, State
from stowhand.observe.safe_text import columns
from tests.cli.conftest import Stowhand

LEAST = {"id", "task", "state", "attempts", "max_attempts", "serial", "key", "priority", "run_at", "last_error"}


@pytest.fixture
def serial(call: Stowhand) -> Stowhand:
    """The same program, its schema installed."""
    assert call("migrate").code == 0
    return call


def test_enqueue_never_installs_and_names_the_command(call: Stowhand, folder: Path) -> None:
    ended = call("enqueue", "hello")
    assert (ended.code, ended.out) == (4, "")
    assert ended.err.startswith("error: no store was named, so this is the default one; for the store of an App add -A")
    assert "stowhand migrate" in ended.err
    assert not (folder / "stowhand.db").exists()
    assert "default" not in call("enqueue", "hello", "-c", "sqlite:///other.db").err


def test_migrate_installs_once_and_then_has_nothing_to_do(call: Stowhand) -> None:
    assert "CREATE TABLE" in call("migrate", "--plan").out
    assert call("jobs", "list").code == 4, "a plan installs nothing"
    assert call("migrate").out.startswith("Installed")
    assert call("migrate").out.startswith("Nothing to do")
    assert call("migrate", "--plan").out == ""


def test_add_prints_the_id_and_list_shows_every_field(serial: Stowhand) -> None:
    options = ["--serial", "q", "--key", "k", "--max-attempts", 3, "--priority", -2, "--flag", "a", "--flag", "b"]
    options += ["--run-at", "2031-02-03T04:05:06+01:00"]
    added = serial("enqueue", "mail/send", '{"to": ["a", 1.5, null]}', *options)
    assert added.code == 0, added.err
    assert added.err == ""
    (row,) = serial("jobs", "list", "--json").rows()
    assert row.keys() >= LEAST
    assert (
        row
        | {
            "id": int(added.out),
            "task": "mail/send",
            "state": "queued",
            "payload": {"to": ["a", 1.5, None]},
            "serial": "q",
            "key": "k",
            "attempts": 0,
            "max_attempts": 3,
            "priority": -2,
            "flags": ["a", "b"],
            "run_at": "2031-02-03T03:05:06Z",
            "last_error": None,
        }
        == row
    )


def test_a_payload_may_come_from_stdin(stowhand: Stowhand) -> None:
    assert stowhand("migrate").code == 0
    assert stowhand("enqueue", "hello", "-", stdin='{"name": "Zoë"}\n').code == 0
    assert stowhand("jobs", "list", "--json").rows()[0]["payload"] == {"name": "Zoë"}


def test_a_delay_counts_from_now(serial: Stowhand) -> None:
    serial("enqueue", "later", "--run-at", "+1h")
    serial("enqueue", "now")
    later, now = (row["run_at"] for row in serial("jobs", "list", "--json").rows())
    assert later > now


def test_a_job_may_expire(serial: Stowhand) -> None:
    refused = serial("enqueue", "hello", "--expires", "soon")
    assert (refused.code, "--expires" in refused.err) == (2, True)
    assert serial("enqueue", "hello", "--run-at", "2020-01-01T00:00Z", "--expires", "10m").code == 0
    assert serial("worker", "--once").code == 0
    (row,) = serial("jobs", "list", "--state", "canceled", "--json").rows()
    assert row["last_error"] == "it expired before its first attempt"


def test_the_preset_and_the_settings_decide_the_number_of_attempts(serial: Stowhand, folder: Path) -> None:
    (folder / "stowhand.toml").write_text("preset = 'service'\n")
    serial("enqueue", "hello")
    serial("enqueue", "hello", "--max-attempts", 7)
    assert [row["max_attempts"] for row in serial("jobs", "list", "--json").rows()] == [5, 7]


def test_a_task_is_checked_only_if_tasks_are_named(serial: Stowhand) -> None:
    assert serial("enqueue", "helo").code == 0
    assert serial("enqueue", "hello", "--tasks", "tasks").code == 0
    assert serial("enqueue", "helo", "--tasks", "tasks").code == 2


def test_a_list_can_be_narrowed_and_paged(serial: Stowhand) -> None:
    for number in range(3):
        serial("enqueue", "a", "--serial", f"q{number}")
    serial("enqueue", "b", "--key", "k")

    def ids(*options: object) -> list[int]:
        return [row["id"] for row in serial("jobs", "list", "--json", *options).rows()]

    everything = ids()
    assert len(everything) == 4
    assert ids("--task", "a") == everything[:3]
    assert ids("--serial", "q1") == [everything[1]]
    assert ids("--key", "k") == [everything[3]]
    assert ids("--limit", 2) == everything[:2]
    assert ids("--after", everything[1]) == everything[2:]
    assert ids("--state", "failed", "--state", "errored") == []
    assert ids("--state", "failed", "--state", "queued") == everything
    assert f"--after {everything[1]}" in serial("jobs", "list", "--limit", 2).err


def test_the_table_has_aligned_columns_and_cannot_control_the_terminal(serial: Stowhand) -> None:
    serial("enqueue", "hello", "--key", "r\u202egth")
    serial("enqueue", "a-much-longer-name", '{"x": "\\u001b[2J"}')
    lines = serial("jobs", "list").out.splitlines()
    assert " ".join(lines[0].split()) == "ID STATE TASK ATTEMPTS SERIAL KEY PRIORITY RUN AT LAST ERROR"
    assert {line.index("0/25") + len("0/25") for line in lines[1:]} == {lines[0].index("ATTEMPTS") + len("ATTEMPTS")}
    assert "\\u202e" in lines[1]
    assert "\x1b" not in serial("jobs", "show", 2).out


def test_an_empty_list_prints_nothing_to_stdout(serial: Stowhand) -> None:
    assert serial("jobs", "list").out == ""
    assert serial("jobs", "list", "--json").out == ""


def test_show_prints_everything_about_one_job(serial: Stowhand) -> None:
    serial("enqueue", "hello", '{"name": "Bobby"}')
    page = serial("jobs", "show", 1)
    assert page.code == 0
    assert "payload" in page.out
    assert "Bobby" in page.out
    assert serial("jobs", "show", 1, "--json").rows()[0]["payload"] == {"name": "Bobby"}
    missing = serial("jobs", "show", 99)
    assert (missing.code, missing.out) == (1, "")
    assert "no job 99" in missing.err


def test_each_action_prints_each_answer_and_fails_if_a_job_was_refused(serial: Stowhand) -> None:
    for _ in range(3):
        serial("enqueue", "hello")
    canceled = serial("jobs", "cancel", 1, 99)
    assert canceled.code == 1
    assert [line.partition(":")[0] for line in canceled.out.splitlines()] == ["1", "99"]
    assert canceled.out.splitlines()[0].startswith("1: done")
    assert canceled.out.splitlines()[1].startswith("99: missing")
    assert serial("jobs", "list", "--state", "canceled", "--json").rows()[0]["id"] == 1
    assert serial("jobs", "retry", 1).code == 0
    assert serial("jobs", "remove", 2, 3).code == 0
    assert [row["id"] for row in serial("jobs", "list", "--json").rows()] == [1]


def test_an_invalid_id_is_a_usage_error(serial: Stowhand) -> None:
    for arguments in (("show",), ("retry",), ("remove",), ("list", "--after")):
        ended = serial("jobs", *arguments, 2**63)
        assert (ended.code, ended.out) == (2, "")
        assert "Traceback" not in ended.err
    assert serial("jobs", "show", 2**63 - 1).code == 1


def test_answers_with_json_are_json_lines(serial: Stowhand) -> None:
    serial("enqueue", "hello")
    done, missing = serial("jobs", "cancel", 1, 99, "--json").rows()
    assert (done["id"], done["done"]) == (1, "done")
    assert (missing["id"], missing["done"]) == (99, "missing")


def test_a_job_can_be_removed_by_its_key(serial: Stowhand) -> None:
    serial("enqueue", "hello", "--key", "k")
    assert serial("jobs", "remove", "--key", "k").code == 0
    assert serial("jobs", "remove", "--key", "k").code == 1
    assert serial("jobs", "list", "--json").out == ""


def test_json_is_ascii_so_that_a_terminal_can_show_it(serial: Stowhand) -> None:
    serial("enqueue", "hello", json.dumps({"name": "Zoë \u202e"}, ensure_ascii=False))
    assert serial("jobs", "list", "--json").out.isascii()


def a_job(job_id: int, **fields: Any) -> Job:
    moment = datetime(2031, 2, 3, 3, 5, 6, tzinfo=UTC)
    common: dict[str, Any] = {
        "payload_text": "{}",
        "attempts": 0,
        "max_attempts": 25,
        "run_at": moment,
        "created_at": moment,
    }
    return Job(id=job_id, **common | {"serial": None, "priority": 0} | fields)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_table_fits_its_terminal_with_any_names(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names = {"task": "x" * 128, "serial": "日本語" * 30, "key": "k" * 512}
    jobs = [
        a_job(1, **names, state=State.QUEUED, priority=-100, last_error="E" * 900),
        a_job(22222, task="short", state=State.PROCESSING, attempts=25),
    ]
    lines = table(list_columns(jobs), jobs)
    least = 101  # every column at its narrowest; a narrower terminal wraps
    assert max(columns(line) for line in lines) <= max(width, least)
    starts = {columns(line.partition("2031-")[0]) for line in lines[1:]}
    assert starts == {columns(lines[0].partition("RUN AT")[0])}
    assert "\x1b" not in "".join(lines)
    monkeypatch.setattr("stowhand.cli.columns.wants_color", lambda stream: True)
    assert "\x1b[" in table(list_columns(jobs), jobs)[2], "a state has a color where it is wanted"


def test_a_list_can_be_newest_first_and_filtered_by_time_and_error(serial: Stowhand) -> None:
    ids = [serial("enqueue", "hello").out.strip() for _ in range(3)]
    serial("jobs", "fail", ids[0], "--reason", "LookupError: no such order")
    assert [row["id"] for row in serial("jobs", "list", "--newest", "--limit", 2, "--json").rows()] == [3, 2]
    assert [row["id"] for row in serial("jobs", "list", "--newest", "--after", 2, "--json").rows()] == [1]
    assert [row["id"] for row in serial("jobs", "list", "--error", "NO SUCH", "--json").rows()] == [1]
    assert serial("jobs", "list", "--worker", "w").err == "No waiting, running or failed jobs claimed by w.\n"
    assert len(serial("jobs", "list", "--since", "1h", "--until", "2100-01-01", "--json").rows()) == 3
    assert serial("jobs", "list", "--until", "1h", "--json").rows() == []
    refused = serial("jobs", "list", "--since", "yesterday")
    assert refused.code == 2
    assert "or a time: 2030-01-31T09:00:00Z" in refused.err


def test_all_matching_jobs_are_canceled_rescheduled_and_removed(serial: Stowhand) -> None:
    for task in ("send", "send", "keep", "drop"):
        assert serial("enqueue", task).code == 0
    assert serial("jobs", "remove", "--task", "drop", "--state", "queued", "-y").out == "4: done\n"
    rescheduled = serial("jobs", "reschedule", "--task", "send", "--priority", 7, "--yes")
    assert (rescheduled.code, rescheduled.out) == (0, "1: done (it is queued)\n2: done (it is queued)\n")
    assert [row["priority"] for row in serial("jobs", "list", "--json").rows()] == [7, 7, 0]
    assert serial("jobs", "cancel", "--task", "send", "--until", "0s", "-y").out == "1: done\n2: done\n"
    assert serial("jobs", "remove", "--all", "-y").out == "3: done\n"
    assert serial("jobs", "remove", "--all", "-y").err == "No queued, errored or failed jobs.\n"
    assert serial("jobs", "list").err == "No waiting, running or failed jobs. 2 canceled (--state canceled)\n"


def test_a_change_of_many_jobs_asks_first_and_needs_a_filter(serial: Stowhand) -> None:
    serial("enqueue", "send")
    request = serial("jobs", "cancel", "--task", "send")
    assert (request.code, request.out) == (1, "")
    assert "Cancel 1 queued, errored, processing job of task send?" in request.err
    for nothing_said in (("cancel",), ("remove", "-y"), ("cancel", "1", "--task", "send"), ("remove", "1", "--all")):
        refused = serial("jobs", *nothing_said)
        assert refused.code == 2
        assert "select them" in refused.err
    assert [row["state"] for row in serial("jobs", "list", "--json").rows()] == ["queued"]


def test_show_lists_failed_attempts_and_failures_groups_them(serial: Stowhand, folder: Path) -> None:
    (folder / "tasks").mkdir(exist_ok=True)
    (folder / "tasks" / "mail.py").write_text("def mail(payload):\n    return payload['to']\n")
    for _ in range(2):
        assert serial("enqueue", "mail", "{}", "--max-attempts", 1).code == 0
    assert serial("jobs", "fail", 2, "--reason", "enough").code == 0
    assert serial("worker", "--once").code == 0
    shown = serial("jobs", "show", 1).out.splitlines()
    assert shown[-2].split() == ["ROUND", "ATTEMPT", "ENDED", "OUTCOME", "ERROR", "CLASS", "WORKER", "ERROR"]
    assert shown[-1].split()[:2] == ["1", "1"]
    assert "error" in shown[-1]
    assert "KeyError" in shown[-1]
    (row,) = serial("jobs", "show", 1, "--json").rows()
    (entry,) = row["tries"]
    assert (entry["number"], entry["outcome"], entry["error_class"]) == (1, "error", "KeyError")
    assert row["last_worker"] == entry["worker"]
    assert [line.split()[:3] for line in serial("jobs", "failures").out.splitlines()[1:]] == [
        ["1", "mail", "KeyError"],
        ["1", "mail", "by"],
    ]
    groups = serial("jobs", "failures", "--json").rows()
    assert [(one["task"], one["error_class"], one["jobs"], one["latest"]) for one in groups] == [
        ("mail", "KeyError", 1, 1),
        ("mail", "by hand", 1, 2),
    ]


def test_an_empty_list_says_how_many_jobs_have_finished(serial: Stowhand) -> None:
    for task in ("hello", "hello", "other"):
        serial("enqueue", task)
    serial("jobs", "complete", 1, 2)
    serial("jobs", "cancel", 3)
    live = "No waiting, running or failed jobs"
    assert serial("jobs", "list").err == f"{live}. 2 completed (--state completed), 1 canceled (--state canceled)\n"
    assert serial("jobs", "list", "--task", "other").err == f"{live} of task other. 1 canceled (--state canceled)\n"
    assert serial("jobs", "list", "--limit", 1).err.startswith(f"{live}. 1 or more completed (--state completed)")
    assert serial("jobs", "list", "--state", "failed", "--state", "queued").err == "No failed or queued jobs.\n"
    assert serial("jobs", "list", "--json").err == ""
