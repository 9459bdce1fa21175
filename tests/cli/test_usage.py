"""What was typed wrong meets a suggestion and exit code 2; help and version are everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowhand import __version__
from stowhand.cli.program import COMMAND_SUMMARIES
from tests.cli.conftest import Stowhand

JOBS = [("jobs", verb) for verb in ("list", "show", "retry", "cancel", "remove")]
EVERYWHERE = [(), *((name,) for name in COMMAND_SUMMARIES), *JOBS]


@pytest.mark.parametrize("words", EVERYWHERE, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_help_and_version_are_everywhere(call: Stowhand, words: tuple[str, ...], option: str) -> None:
    ended = call(*words, option)
    assert ended.code == 0
    assert ended.err == ""
    if option == "--version":
        assert ended.out == f"stowhand {__version__}\n"
    else:
        assert ended.out.startswith(" ".join(["Usage: stowhand", *words]))


def test_the_exit_codes_are_in_the_help(call: Stowhand) -> None:
    words = " ".join(call("--help").out.split())
    assert "0 ok, 1 failure, 2 usage, 3 the store cannot be reached, 4 its schema is unsuitable" in words


@pytest.mark.parametrize("words", [(), ("jobs",)], ids=["stowhand", "jobs"])
def test_a_group_without_a_command_shows_its_help_as_a_usage_error(call: Stowhand, words: tuple[str, ...]) -> None:
    ended = call(*words)
    assert (ended.code, ended.out) == (2, "")
    assert "Commands:" in ended.err


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (("wroker",), "did you mean 'worker'?"),
        (("jobs", "lst"), "did you mean 'list'?"),
        (("jobs", "qqq"), "available: cancel, complete, explain, fail, failures, fork"),
        (("worker", "--jbos", "3"), "--jobs"),
        (("worker", "--schema_only"), "--schema-only"),
        (("jobs", "list", "--state", "quueed"), "queued, processing, errored"),
        (("enqueue", "hello", "--key", "k", "--key-mode", "debounce"), "replace, preserve_run_at, unsafe_dedupe"),
        (("worker", "--log-level", "loud"), "debug, info, warning, error, off"),
        (("worker", "-c", "queue.db"), "sqlite:///queue.db"),
        (("worker", "-c", "oracle://h/d"), "postgresql://"),
        (("worker", "-c", "my_db", "-m", "3"), "use 6 or more"),
        (("worker", "--app", "nowhere:app"), "nowhere"),
        (("worker", "--tasks", "tsaks"), "tsaks"),
        (("worker", "--tasks", "a", "--app", "b:c"), "--tasks and --app"),
        (("worker", "--crontab", "crontab"), "crontab crontab: No such file"),
        (("jobs", "retry", "0"), "0"),
        (("jobs", "remove"), "name the jobs (ID...)"),
        (("jobs", "list", "--limit", "0"), "--limit"),
        (("enqueue",), "TASK"),
        (("enqueue", "hello", "{nope}"), "payload"),
        (("enqueue", "hello", '{"a": NaN}'), "payload"),
        (("enqueue", ""), "task"),
        (("enqueue", "hello", "--run-at", "tomorrow"), "2030-01-31T09:00:00Z"),
        (("enqueue", "hello", "--run-at", "2030-01-31T09:00:00"), "time zone"),
        (("enqueue", "hello", "--run-at", "+5parsecs"), "unit of time"),
        (("enqueue", "hello", "--key-mode", "replace"), "--key"),
        (("enqueue", "hello", "--max-attempts", "0"), "--max-attempts: got 0"),
        (("enqueue", "hello", "--priority", "99999999999"), "priority"),
        (("enqueue", "helo", "--tasks", "tasks"), "did you mean 'hello'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_typing_mistake_gets_a_suggestion(call: Stowhand, words: tuple[str, ...], suggestion: str) -> None:
    ended = call(*words)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert suggestion in ended.err
    assert "error: " in ended.err
    assert "Traceback" not in ended.err


def test_all_invalid_settings_are_reported_at_once(call: Stowhand, folder: Path) -> None:
    (folder / "stowhand.toml").write_text("proceses = 2\n")
    ended = call("worker", "-j", "0", "--lease", "0.1")
    assert ended.code == 2
    assert ended.err.count("error: ") == 1
    assert "did you mean 'processes'?" in ended.err
    assert "--concurrency: got 0" in ended.err
    assert "--lease: got 0.1" in ended.err


def test_a_worker_without_tasks_shows_how_to_write_one(call: Stowhand, folder: Path) -> None:
    (folder / "tasks" / "hello.py").unlink()
    (folder / "tasks").rmdir()
    ended = call("worker")
    assert ended.code == 2
    assert "async def hello(payload, helpers):" in ended.err
    assert not (folder / "stowhand.db").exists()


def test_an_argument_cannot_control_the_terminal(call: Stowhand) -> None:
    ended = call("worker\x1b[2J")
    assert ended.code == 2
    assert "\x1b" not in ended.err


def test_an_unreachable_store_is_code_3_without_the_password(stowhand: Stowhand) -> None:
    ended = stowhand("jobs", "list", "-c", "postgresql://me:hunter2@127.0.0.1:1/nothing")
    assert ended.code == 3, ended.err
    assert "hunter2" not in ended.err
    assert ended.err.startswith("error: ")
    assert "Traceback" not in ended.err


def test_ctrl_c_is_130_and_no_traceback(call: Stowhand, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stowhand.cli.jobs.with_store", interrupted)
    ended = call("jobs", "list")
    assert (ended.code, ended.out, ended.err.strip()) == (130, "", "")


def test_a_bug_is_a_traceback_without_passwords_and_code_1(call: Stowhand, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("postgresql://me:hunter2@h/d")

    monkeypatch.setattr("stowhand.cli.jobs.with_store", broken)
    ended = call("jobs", "list")
    assert ended.code == 1
    assert "Traceback" in ended.err
    assert "error: unexpected RuntimeError: postgresql://me:***@h/d" in ended.err
    assert "hunter2" not in ended.err


def test_shells_can_complete(stowhand: Stowhand) -> None:
    assert "_STOWHAND_COMPLETE" in stowhand(_STOWHAND_COMPLETE="bash_source").out


SHOP = """\
from stowhand import App

app = App()


@app.task
async def send(to: str) -> None: ...
"""


@pytest.mark.parametrize("words", [("shop:app",), ("shop",), ("-A", "shop:app"), ("--app", "shop:app")], ids=" ".join)
def test_a_worker_takes_its_app_as_an_argument_or_an_option(
    call: Stowhand, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    (folder / "shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(folder)
    ended = call("worker", *words, "--once")
    assert ended.code == 0, ended.err
    assert "(task names: 'send')" in ended.err


def test_two_apps_are_refused(call: Stowhand) -> None:
    for command in ("worker", "dev"):
        ended = call(command, "shop:app", "-A", "other:app")
        assert ended.code == 2
        assert "two Apps: shop:app and --app other:app; omit one" in ended.err


def test_add_is_another_name_of_enqueue(call: Stowhand) -> None:
    call("migrate")
    assert call("add", "hello").out == "1\n"
    assert call("enqueue", "hello").out == "2\n"
