"""Executable files as tasks: what they are given, what is heard from them, and every way in which they end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.clock import Clock, SystemClock, sleep_blocking
from stowhand.errors import ConfigurationError
from stowhand.events import Events, JobEnded
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Retry
from stowhand.protocols.attempt import Attempt, control_of
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.store import Claim
from stowhand.service.quarantine import Quarantine
from stowhand.tasks import executable, program
from stowhand.tasks.discovery import load_folder, read_folder
from stowhand.tasks.dispatch import TaskHandler
from stowhand.tasks.executable import Executable, environment_of
from stowhand.tasks.program import MAX_LINE_BYTES, LineSplitter, kill_programs
from stowhand.tasks.registry import Registry
from stowhand.testing import FakeClock, MemoryStore
from stowhand.worker.host import DEFAULT_TIMINGS
from stowhand.worker.worker import Worker
from tests.conftest import Run

SH, PYTHON = "#!/bin/sh\n", f"#!{sys.executable}\n"
NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


class Heard:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.info_lines: list[str] = []
        self.error_lines: list[str] = []

    def debug(self, message: object, /, **facts: Any) -> None: ...

    def warning(self, message: object, /, **facts: Any) -> None: ...

    def info(self, message: object, /, **facts: Any) -> None:
        self.info_lines.append(str(message))

    def error(self, message: object, /, **facts: Any) -> None:
        self.error_lines.append(str(message))


@pytest.fixture
def heard() -> Heard:
    return Heard()


def write(folder: Path, name: str, text: str, mode: int = 0o755) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def attempt_of(payload: str = "{}", **details: Any) -> Attempt[Job]:
    job = Job(
        id=7, task="hello", payload_text=payload, state=State.PROCESSING, serial=None, priority=-3, run_at=NOON,
        attempts=2, max_attempts=25, created_at=NOON, **details,
    )  # fmt: skip
    return Attempt(Claim(Lease(7, "token", 5), job, "hello", 2, 25), started=0.0)


def run_file(file: Path, heard: Heard, payload: str = "{}", **details: Any) -> Retry | None:
    async def story() -> Retry | None:
        return await Executable(file).run(attempt_of(payload, **details), heard)

    return asyncio.run(asyncio.wait_for(story(), 30))


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -- which files -----------------------------------------------------------------------------------


def test_any_executable_file_is_a_task_by_its_name_without_ending(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "def a(payload): ...", 0o644)
    write(tmp_path, "hello.sh", SH)
    write(tmp_path, "plain", SH)
    write(tmp_path, "mail/send.rb", "#!/usr/bin/env ruby\n")
    write(tmp_path, "_shared.sh", SH)
    write(tmp_path, "notes.md", "", 0o644)
    folder = read_folder(tmp_path)
    assert sorted(one.name for one in folder.tasks) == ["a", "hello", "mail/send", "plain"]
    assert folder.skipped_files == (
        "notes.md: skipped: neither a Python file nor executable; to make it a task, run chmod +x",
    )


def test_a_python_file_that_is_executable_is_still_imported(tmp_path: Path) -> None:
    write(tmp_path, "hello.py", "def hello(payload): return 'imported'")
    (task,) = read_folder(tmp_path).tasks
    assert not task.executable
    assert task.function(None) == "imported"


def test_two_files_of_one_name_are_an_error_that_names_both(tmp_path: Path) -> None:
    write(tmp_path, "hello.py", "def hello(payload): ...", 0o644)
    write(tmp_path, "hello.sh", SH)
    with pytest.raises(ConfigurationError, match=r"hello.sh: hello.py is also the task 'hello'; rename one"):
        read_folder(tmp_path)


def test_a_file_that_every_user_may_write_to_is_not_run_neither_when_found_nor_later(
    tmp_path: Path, heard: Heard
) -> None:
    write(tmp_path, "a.py", "def a(payload): ...", 0o644)
    file = write(tmp_path, "open.sh", SH + "echo ran", 0o757)
    assert [one.name for one in read_folder(tmp_path).tasks] == ["a"]
    outcome = run_file(file, heard)
    assert isinstance(outcome, Retry)
    assert "every user of this machine may write to it" in outcome.error
    assert heard.info_lines == []


# -- what it is given ------------------------------------------------------------------------------


def test_it_reads_the_payload_from_its_input_to_the_letter(tmp_path: Path, heard: Heard) -> None:
    file = write(tmp_path, "hello", SH + "cat")
    payload = '{"n": 1.10, "big": 123456789012345678901234567890, "text": "\\u00e9é"}'
    assert run_file(file, heard, payload) is None
    assert heard.info_lines == [f'{{"payload":{payload}}}']


def test_a_payload_that_was_written_on_several_lines_is_read_from_one(tmp_path: Path, heard: Heard) -> None:
    file = write(tmp_path, "hello", SH + "read -r line; printf '%s\\n' \"$line\"; cat")
    assert run_file(file, heard, '{\r\n  "a": 1,\n"b": "c\\nd"}\n') is None
    (line,) = heard.info_lines
    assert json.loads(line) == {"payload": {"a": 1, "b": "c\nd"}}


def test_it_finds_the_facts_in_its_environment_under_both_names(tmp_path: Path, heard: Heard) -> None:
    file = write(
        tmp_path,
        "hello",
        PYTHON + "import os, json\nprint(json.dumps({k: v for k, v in os.environ.items()"
        " if k.startswith(('STOWHAND_JOB', 'STOWHAND_TASK_', 'STOWHAND_PAYLOAD', 'GRAPHILE_WORKER_'))}))",
    )
    assert run_file(file, heard, key="k") is None
    facts = {
        "PAYLOAD_FORMAT": "json",
        "TASK_IDENTIFIER": "hello",
        "JOB_ID": "7",
        "JOB_KEY": "k",
        "JOB_ATTEMPTS": "2",
        "JOB_MAX_ATTEMPTS": "25",
        "JOB_PRIORITY": "-3",
        "JOB_RUN_AT": "2026-01-01T12:00:00.123Z",
    }
    ours = {f"STOWHAND_{name}": value for name, value in facts.items()}
    assert json.loads(heard.info_lines[0]) == ours | {
        f"GRAPHILE_WORKER_{name}": value for name, value in facts.items()
    } | {"STOWHAND_JOB_TOKEN": "token", "STOWHAND_JOB_EPOCH": "5"}


def test_facts_of_another_job_are_not_passed_on() -> None:
    inherited = {"STOWHAND_JOB_KEY": "old", "GRAPHILE_WORKER_JOB_KEY": "old", "STOWHAND_JOB_SERIAL": "q", "PATH": "p"}
    environment = environment_of(attempt_of().record, Lease(7, "token", 5), inherited)
    assert environment["PATH"] == "p"
    assert not {"STOWHAND_JOB_KEY", "GRAPHILE_WORKER_JOB_KEY", "STOWHAND_JOB_SERIAL"} & environment.keys()


@pytest.mark.parametrize("program", ["exec <&-; exit 0", "exit 0", "head -c 1 >/dev/null"])
def test_it_may_leave_its_input_unread(tmp_path: Path, heard: Heard, program: str) -> None:
    file = write(tmp_path, "hello", SH + program)
    assert run_file(file, heard, json.dumps("x" * 1_000_000)) is None


# -- what is heard ---------------------------------------------------------------------------------


def test_what_it_says_is_logged_line_by_line_and_its_complaints_as_errors(tmp_path: Path, heard: Heard) -> None:
    file = write(tmp_path, "hello", SH + "echo one; echo; echo bad >&2; printf 'two\\r\\nlast'")
    assert run_file(file, heard) is None
    assert heard.info_lines == ["one", "two", "last"]
    assert heard.error_lines == ["bad"]


def test_megabytes_in_every_direction_at_once_do_not_block(tmp_path: Path, heard: Heard) -> None:
    program = (
        "import sys, threading\n"
        "def flood(out):\n"
        "    for _ in range(30_000): out.write('x' * 99 + '\\n')\n"
        "threads = [threading.Thread(target=flood, args=(out,)) for out in (sys.stdout, sys.stderr)]\n"
        "[one.start() for one in threads]; [one.join() for one in threads]\n"
        "print(len(sys.stdin.read()))\n"
    )
    file = write(tmp_path, "hello", PYTHON + program)
    assert run_file(file, heard, json.dumps("y" * 1_000_000)) is None
    assert (len(heard.info_lines), len(heard.error_lines)) == (30_001, 30_000)
    assert heard.info_lines[-1] == str(1_000_002 + len('{"payload":}\n'))


def test_a_line_without_end_is_cut_and_what_is_no_text_is_replaced(tmp_path: Path, heard: Heard) -> None:
    # A buffer of its own: where PYTHONUNBUFFERED is set, sys.stdout's writes as much as goes in at once.
    program = "with open(1, 'wb') as out: out.write(b'a' * 5_000_000 + b'\\n\\xff\\x00b\\n')\n"
    file = write(tmp_path, "hello", PYTHON + program)
    assert run_file(file, heard) is None
    assert heard.info_lines == ["a" * MAX_LINE_BYTES + "…", "\ufffd\x00b"]


def test_lines_come_whole_however_they_arrive() -> None:
    text = "é one\n\ntwo ☃\r\n" + "x" * (MAX_LINE_BYTES + 5) + "\nrest"
    for size in (1, 2, 7, 10_000):
        messages: list[str] = []
        lines = LineSplitter(messages.append)
        raw = text.encode()
        for start in range(0, len(raw), size):
            lines.feed(raw[start : start + size])
            assert len(lines._line) <= MAX_LINE_BYTES + 1, "a program may write for ever without a line break"
        lines.end()
        assert messages == ["é one", "two ☃", "x" * MAX_LINE_BYTES + "…", "rest"]


# -- how it ends -----------------------------------------------------------------------------------


def test_another_exit_code_is_a_failure_with_the_last_error_lines(tmp_path: Path, heard: Heard) -> None:
    file = write(tmp_path, "hello.sh", SH + "for n in $(seq 30); do echo line $n >&2; done; exit 3")
    outcome = run_file(file, heard)
    assert isinstance(outcome, Retry)
    assert outcome.error.splitlines() == [
        "hello.sh exited with code 3",
        *(f"line {number}" for number in range(11, 31)),
    ]
    assert len(heard.error_lines) == 30


def test_a_signal_is_named(tmp_path: Path, heard: Heard) -> None:
    outcome = run_file(write(tmp_path, "hello", SH + "kill -SEGV $$"), heard)
    assert isinstance(outcome, Retry)
    assert outcome.error == "hello was killed by SIGSEGV"


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("#!/no/such/ruby -w\n", 0o755, "its first line names /no/such/ruby, which is not installed on this machine"),
        ("echo no first line", 0o755, "a script begins with a line such as #!/bin/sh"),
        (SH, 0o644, "Permission denied"),
    ],
)
def test_a_program_that_cannot_be_started_says_why(
    tmp_path: Path, heard: Heard, text: str, mode: int, words: str
) -> None:
    outcome = run_file(write(tmp_path, "hello", text, mode), heard)
    assert isinstance(outcome, Retry)
    assert outcome.error.startswith("hello could not be started: ")
    assert words in outcome.error


def test_a_program_that_is_gone_says_so(tmp_path: Path, heard: Heard) -> None:
    outcome = run_file(tmp_path / "hello", heard)
    assert isinstance(outcome, Retry)
    assert "No such file" in outcome.error


def test_processes_left_by_a_program_are_killed(tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "OUTPUT_TIMEOUT_SECONDS", 0.1)
    file = write(tmp_path, "hello", SH + "sleep 300 & echo $!")
    assert run_file(file, heard) is None
    wait_until_gone(int(heard.info_lines[0]))


def wait_until_gone(pid: int) -> None:
    """Its parent is gone, so it is collected by whoever is the first process here, or never."""
    deadline = SystemClock().monotonic() + 10
    while not gone(pid):
        assert SystemClock().monotonic() < deadline
        sleep_blocking(0.01)


# -- told to stop ----------------------------------------------------------------------------------


async def begun(heard: Heard, lines: int = 1) -> None:
    """Until it has said so much."""
    async with asyncio.timeout(20):
        while len(heard.info_lines) < lines:
            await SystemClock().sleep(0.01)


async def canceled(file: Path, heard: Heard, *, lines: int = 1, lost: bool = False, times: int = 1) -> float:
    """Start it, cancel it; how long it took to end."""
    attempt = attempt_of()
    running = asyncio.ensure_future(Executable(file).run(attempt, heard))
    await begun(heard, lines)
    control_of(attempt).lost = lost
    since = SystemClock().monotonic()
    for _ in range(times):
        running.cancel()
        await asyncio.wait([running], timeout=0.1)
    with pytest.raises(asyncio.CancelledError):
        await running
    return SystemClock().monotonic() - since


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is killed before a test's own time is up."""
    monkeypatch.setattr(executable, "KILL_DELAY_SECONDS", 60)


@pytest.mark.usefixtures("patient")
def test_a_stop_sends_term_to_the_process_group(tmp_path: Path, heard: Heard, run: Run) -> None:
    file = write(tmp_path, "hello", SH + "sleep 300 & echo $!; echo $$; wait")
    assert run(canceled(file, heard, lines=2)) < 20
    for line in heard.info_lines:
        wait_until_gone(int(line))


@pytest.mark.usefixtures("patient")
def test_a_program_may_clean_up_before_it_ends(tmp_path: Path, heard: Heard, run: Run) -> None:
    file = write(tmp_path, "hello", SH + "trap 'echo cleaned; exit 0' TERM\necho $$\nwhile :; do sleep 0.05; done")
    assert run(canceled(file, heard)) < 20
    assert heard.info_lines[1:] == ["cleaned"]


IGNORING = SH + "trap '' TERM\necho $$\nwhile :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("lost", "times", "pauses", "least", "most"),
    [(False, 1, (0.7, 60), 0.6, 20), (True, 1, (60, 0.4), 0.3, 20), (False, 2, (60, 60), 0, 20)],
)
def test_one_that_ignores_term_is_killed_after_a_pause(
    tmp_path: Path,
    heard: Heard,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    lost: bool,
    times: int,
    pauses: tuple[float, float],
    least: float,
    most: float,
) -> None:
    assert executable.KILL_DELAY_AFTER_LOSS_SECONDS < executable.KILL_DELAY_SECONDS < DEFAULT_TIMINGS.final_timeout, (
        "a stopping worker waits longer"
    )
    monkeypatch.setattr(executable, "KILL_DELAY_SECONDS", pauses[0])
    monkeypatch.setattr(executable, "KILL_DELAY_AFTER_LOSS_SECONDS", pauses[1])
    file = write(tmp_path, "hello", IGNORING)
    assert least <= run(canceled(file, heard, lost=lost, times=times)) < most
    assert not psutil.pid_exists(int(heard.info_lines[0])), "it was waited for: no zombie is left"


def test_a_process_that_leaves_without_a_word_takes_its_programs_with_it(
    tmp_path: Path, heard: Heard, run: Run
) -> None:
    file = write(tmp_path, "hello", IGNORING)

    async def story() -> Retry | None:
        running = asyncio.ensure_future(Executable(file).run(attempt_of(), heard))
        await begun(heard)
        kill_programs()
        return await running

    outcome = run(story())
    assert outcome is not None
    assert "SIGKILL" in outcome.error


# -- in a worker -----------------------------------------------------------------------------------


@asynccontextmanager
async def working(
    folder: Path, heard: Heard, clock: Clock | None = None, **options: Any
) -> AsyncIterator[tuple[MemoryStore, list[JobEnded]]]:
    """A worker on the tasks of a folder; how its jobs ended."""
    registry = Registry()
    load_folder(folder, registry)
    store, ended, events = MemoryStore(clock), list[JobEnded](), Events()
    events.on(JobEnded, ended.append)
    handler = TaskHandler(registry, enqueue=store.jobs.enqueue, logger_factory=lambda job: heard)
    worker = Worker(store, handler, WorkerOptions(tasks=registry.names, **options), clock=clock, events=events)
    running = asyncio.ensure_future(worker.run())
    try:
        yield store, ended
    finally:
        worker.stop(now=True)
        await running
        handler.close()


async def until(reached: Any) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await SystemClock().sleep(0.01)


def test_a_worker_runs_programs_beside_functions(tmp_path: Path, heard: Heard, run: Run) -> None:
    write(tmp_path, "shell/hello.sh", SH + "read line; echo $STOWHAND_TASK_IDENTIFIER $line")
    write(tmp_path, "plain.py", "async def plain(payload, helpers): helpers.logger.info('python')", 0o644)
    write(tmp_path, "bad", SH + "exit 1")

    async def story() -> list[tuple[str, str]]:
        async with working(tmp_path, heard) as (store, ended):
            for task in ("shell/hello", "plain", "bad"):
                await store.jobs.enqueue(NewJob(task=task, payload='{"a":1}', max_attempts=1))
            await until(lambda: len(ended) == 3)
            return sorted((one.task, one.outcome.value) for one in ended)

    assert run(story()) == [("bad", "failed"), ("plain", "ok"), ("shell/hello", "ok")]
    assert sorted(heard.info_lines) == ["python", 'shell/hello {"payload":{"a":1}}']


def test_a_program_that_takes_too_long_is_ended_and_tried_again(tmp_path: Path, heard: Heard, run: Run) -> None:
    write(tmp_path, "slow", SH + "echo $$; sleep 300")

    async def story() -> JobEnded:
        clock = FakeClock()
        async with working(tmp_path, heard, clock, timeout=0.5) as (store, ended):
            await store.jobs.enqueue(NewJob(task="slow", payload="{}"))
            await begun(heard)
            await clock.advance(0.6)
            await until(lambda: ended)
            return ended[0]

    end = run(story())
    assert end.outcome.value == "retry"
    assert end.error is not None
    assert end.error.startswith("timed out: the attempt took longer than 0.5 s")
    assert not psutil.pid_exists(int(heard.info_lines[0]))


def test_a_stopping_worker_ends_its_programs_and_hands_their_jobs_back(
    tmp_path: Path, heard: Heard, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executable, "KILL_DELAY_SECONDS", 0.3)
    write(tmp_path, "slow", IGNORING)

    async def story() -> Job | None:
        async with working(tmp_path, heard) as (store, _):
            job = await store.jobs.enqueue(NewJob(task="slow", payload="{}"))
            await begun(heard)
        return await store.jobs.get(job.id)

    job = run(story())
    assert job is not None
    assert (job.state, job.attempts) == (State.QUEUED, 0)
    assert not psutil.pid_exists(int(heard.info_lines[0]))


def test_a_suspect_program_is_not_run_in_a_child_between_it_and_the_worker(
    tmp_path: Path, heard: Heard, run: Run
) -> None:
    write(tmp_path, "hello", SH + "echo $PPID")
    registry = Registry()
    load_folder(tmp_path, registry)
    handler = TaskHandler(registry, enqueue=MemoryStore().jobs.enqueue, logger_factory=lambda job: heard)
    settings = WorkerSettings(store=StoreSettings(connection=ResolvedStore("sqlite:///x.db", "test")))
    assert run(Quarantine(settings, "w", handler.is_program, handler, Events()).run(attempt_of())) is None
    assert heard.info_lines == [str(os.getpid())]
    handler.close()


def test_no_descriptor_is_left_behind(tmp_path: Path, heard: Heard) -> None:
    file = write(tmp_path, "hello", SH + "cat")

    async def story() -> tuple[int, int]:
        before = 0
        for number in range(6):
            assert await Executable(file).run(attempt_of(), heard) is None
            await SystemClock().sleep(0)
            if number == 1:
                before = len(os.listdir("/dev/fd"))  # noqa: PTH208
        return before, len(os.listdir("/dev/fd"))  # noqa: PTH208

    before, after = asyncio.run(story())
    assert after <= before
