"""Mistakes in a command line. Each is answered with what happened, with which value, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowhand.jobs.task_limits import NO_DECLARATIONS
from stowhand.protocols.operator import WorkerDescription, WorkerList
from stowhand.protocols.queue_store import QueueStore
from tests.cli.conftest import Stowhand, call, folder
from tests.service.processes import with_store

__all__ = ["call", "folder"]

SHOP = """\
from stowhand import App

app = App()


@app.task
async def send(to: str) -> None: ...
"""
PAYLOAD = """; the arguments of the task are one JSON value, in quotes: stowhand enqueue send '{"to": "ada"}'"""
BOTH = "; --queue is the class of work, and --serial runs jobs one at a time"

MISTAKES = {
    # commands
    "retry --error x": "no command 'retry'; did you mean 'jobs retry'?",
    "list": "no command 'list'; did you mean 'jobs list'?",
    "explain 1": "no command 'explain'; did you mean 'jobs explain'?",
    "jobs ls": "no command 'ls'; did you mean 'list'?",
    "status": "no command 'status'; did you mean 'stats'?",
    "dashboard": "no command 'dashboard'; did you mean 'web'?",
    "shop:app": "no command 'shop:app'; to run an App: stowhand worker shop:app",
    # options
    "flows retry shop:flow 1 --error x": "no option '--error'; available: --failed, --queue, --yes, --json",
    "-A shop:app worker": "no option '-A' here; options follow the command: stowhand COMMAND -A",
    "-c shop.db jobs list": "no option '-c' here; options follow the command: stowhand COMMAND -c",
    "jobs --state failed": "no option '--state' here; options follow the command: stowhand jobs COMMAND --state",
    "jobs list --status failed": "no option '--status'; did you mean '--state'?",
    "jobs list --state faild": "must be one of queued, processing, errored, completed, failed, canceled; did you mean",
    "worker --crontabb x": "no option '--crontabb'; did you mean '--crontab'?",
    "worker --loglevel info": "no option '--loglevel'; did you mean '--log-level'?",
    "worker -l info": "no option '-l'; did you mean '--log-level'?",
    "worker -Q mail": "no option '-Q'; did you mean '--queue'?",
    "worker -P prefork": "no option '-P'; did you mean '--processes'?",
    "worker --pool prefork": "no option '--pool'; did you mean '--processes'?",
    "worker --threads 4": "no option '--threads'; did you mean '--concurrency'?",
    "worker --time-limit 30": "no option '--time-limit'; did you mean '--timeout'?",
    "worker --max-tasks-per-child 100": "no option '--max-tasks-per-child'; did you mean '--max-jobs'?",
    "enqueue send --countdown 5": "no option '--countdown'; did you mean '--run-at'?",
    "enqueue send --max-retries 5": "no option '--max-retries'; did you mean '--max-attempts'?",
    "enqueue send --queue-name mail": f"no option '--queue-name'{BOTH}",
    "enqueue send --recipient ada": f"no option '--recipient'{PAYLOAD}",
    "enqueue send --run-at 5m": "'5m' is neither a time (2030-01-31T09:00:00Z) nor a delay (+5m)",
    # arguments
    "jobs retry abc": "'abc' is not a job id, which is a whole number; to list a task's jobs: "
    "stowhand jobs list --task abc",
    "jobs show 0": "'0' is not a job id, which is a whole number",
    "jobs cancel": "name the jobs (ID...), or select them (--task, --state, …, --all)",
    "jobs list failed": "unexpected argument 'failed'; did you mean --state failed?",
    "migrate shop:app": "unexpected argument 'shop:app'; the App is an option here: -A shop:app",
    "worker shop:app mail:app": "unexpected argument 'mail:app'",
    "enqueue send ada": f"payload: JSON is malformed: invalid character (byte 0){PAYLOAD}",
    "enqueue send ada -A shop:app": f"payload of task 'send': JSON is malformed: invalid character (byte 0){PAYLOAD}",
    "enqueue send {} ada": f"unexpected argument 'ada'{PAYLOAD}",
    # the App
    "worker --app shop:ap": "'shop:ap': shop has no 'ap'; did you mean 'app'?",
    "worker --app shop.py:app": "'shop.py:app': use a module, not a file; did you mean 'shop:app'?",
    "worker shop.py": "'shop.py': use a module, not a file; did you mean 'shop:app'?",
    "worker ./mail/shop.py:app": "use a module, not a file; did you mean 'mail.shop:app'?",
    "worker shop.app": "'shop.app': no module named 'shop.app'; did you mean 'shop:app'?",
    "worker shpo:app": "'shpo:app': no module named 'shpo'; did you mean 'shop'?",
    "worker shop:send": "'shop:send': a Task, not App; did you mean 'app'?",
    "worker shop:app -A mail:app": "two Apps: shop:app and --app mail:app; omit one",
    "worker tasks": "tasks is a folder; for a folder of tasks: --tasks tasks; for an App: MODULE:APP",
    "worker --tasks shop.py": "--tasks shop.py: a file; name its folder, or the App in it: stowhand worker shop:app",
    "enqueue sned {} -A shop:app": "did you mean 'send'?",
    # the store
    "worker shop:app -c 4": "-c names the store; for the number of jobs at once: -j 4",
    "worker shop:app -c shop.db": "For an SQLite file write sqlite:///shop.db",
    "worker shop:app -c mysql://h/d": "There is no store for mysql:// here. Name a store by URL: postgresql://",
    "worker shop:app -c postgresql+asyncpg://h/d": "postgresql://",
    "enqueue send": "stowhand.db does not exist: run `stowhand migrate` or start a worker",
}


@pytest.fixture(autouse=True)
def shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_answered_with_what_to_do(call: Stowhand, line: str) -> None:
    ended = call(*line.split())
    assert ended.code in (2, 4)
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert MISTAKES[line] in " ".join(ended.err.split())


@pytest.mark.parametrize(
    "line", ["worker --insecur", "worker --secure", "jobs list --insecuer", "serve --insecure-http"]
)
def test_no_suggestion_is_insecure(call: Stowhand, line: str) -> None:
    ended = call(*line.split())
    assert ended.code == 2
    assert "--insecure'" not in ended.err.partition(";")[2]


def test_a_letter_is_not_taken_for_a_word_that_begins_with_it(call: Stowhand) -> None:
    assert call("worker", "shop:app", "-D").err.startswith("error: no option '-D'\n")


@pytest.mark.parametrize("option", ["-j", "--concurrency", "--jobs", "--workers"])
def test_the_concurrency_has_the_names_that_people_try(call: Stowhand, option: str) -> None:
    assert call("worker", "shop:app", option, "3", "--once").code == 0
    assert call("worker", "shop:app", option, "0").err.startswith("error: --concurrency: got 0")


def test_a_misspelled_task_is_answered_with_the_nearest(
    call: Stowhand, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def show_worker(store: QueueStore) -> None:
        heartbeats = store.heartbeats()
        assert isinstance(heartbeats, WorkerList)
        await heartbeats.worker_seen(WorkerDescription("w1", "host", 1, "1", ("send",), 4), NO_DECLARATIONS)
        await heartbeats.close()

    call("migrate")
    with_store(f"sqlite:///{folder}/stowhand.db", show_worker)
    call("enqueue", "send", '{"to": "ada"}')
    nearest = "; did you mean 'send'?\n"
    assert call("jobs", "list", "--task", "sned").err == f"No waiting, running or failed jobs of task sned{nearest}"
    assert call("jobs", "retry", "--task", "sned", "-y").err == f"No failed jobs of task sned{nearest}"
    monkeypatch.setattr("stowhand.cli.enqueue.has_terminal", lambda: True)
    ended = call("enqueue", "sned")
    assert (ended.out, ended.err) == ("2\n", f"note: no running worker has a task 'sned'{nearest}")
    assert call("enqueue", "send").err == ""


def test_a_worker_takes_its_app_as_a_word_and_enqueue_is_a_command(call: Stowhand) -> None:
    assert call("worker", "shop:app", "--once").code == 0
    assert call("enqueue", "send", '{"to": "ada"}').out == "1\n"
    ended = call("worker", "-A", "shop:app", "--once")
    assert "Completed task 1 (send)" in ended.err
