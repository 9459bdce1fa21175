"""Commands of a job, run for real: what they are given, what is heard, and every way in which they end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from stowhand.clock import SystemClock, sleep_blocking, stopwatch
from stowhand.commands import Command, CommandHandler, handler, steps
from stowhand.commands.command import INHERITED_VARIABLES
from stowhand.errors import ConfigurationError
from stowhand.jobs.execution_log import MAX_OUTPUT_BYTES
from stowhand.jobs.lifecycle import Fail, Retry
from stowhand.jobs.text import MAX_ERROR_BYTES
from stowhand.protocols.attempt import control_of
from stowhand.tasks import program
from stowhand.worker.host import DEFAULT_TIMINGS
from tests.commands.harness import Harness, wait_until_gone
from tests.conftest import Run


def sh(script: str, key: str = "step", **details: Any) -> Command:
    return Command(key, ["sh", "-c", script], **details)


def python(script: str, key: str = "step", **details: Any) -> Command:
    return Command(key, [sys.executable, "-c", script], **details)


def outcome_of(harness: Harness, *commands: Command, **options: Any) -> Retry | Fail | None:
    async def story() -> Retry | Fail | None:
        handle = CommandHandler[Any](lambda record: commands, **options).handle
        outcome = await asyncio.wait_for(handle(harness.ctx, harness.ctx.record), 30)
        assert isinstance(outcome, Retry | Fail | None)
        return outcome

    return asyncio.run(story())


@pytest.fixture
def harness() -> Harness:
    return Harness()


# -- one after another -----------------------------------------------------------------------------


def test_each_command_has_an_entry_and_both_outputs_come_in_their_order(harness: Harness, tmp_path: Path) -> None:
    commands = [
        sh("echo one; echo two >&2; echo three; echo four >&2", "first"),
        sh("pwd; cat; echo $WHAT $MORE", "second", cwd=tmp_path, stdin="given\n", env={"MORE": "b"}),
        sh("pwd; cat", "third"),
    ]
    assert outcome_of(harness, *commands, env={"WHAT": "a", "MORE": "-"}, cwd="/") is None
    first, second, third = harness.entries
    assert (first.key, first.command[:2], first.exit_code) == ("first", ("sh", "-c"), 0)
    assert first.out == "one\ntwo\nthree\nfour\n"
    assert second.out == f"{tmp_path}\ngiven\na b\n"
    assert third.out == "/\n", "where the handler says, and without any input"
    assert first.start_time <= second.start_time <= third.start_time
    assert first.duration_ms is not None
    assert 0 <= first.duration_ms < 10_000


def test_the_first_that_fails_ends_the_job_with_its_code_and_its_last_lines(harness: Harness) -> None:
    failing = sh("for n in $(seq 30); do echo line $n; done; exit 3", "lint")
    outcome = outcome_of(harness, sh("true", "a"), failing, sh("true", "never"))
    assert isinstance(outcome, Retry)
    assert outcome.error.splitlines() == ["lint exited with code 3", *(f"line {number}" for number in range(11, 31))]
    assert [(entry.key, entry.exit_code) for entry in harness.entries] == [("a", 0), ("lint", 3)]


@pytest.mark.parametrize(("code", "kind"), [(65, Fail), (75, Retry)])
def test_some_codes_are_final(harness: Harness, code: int, kind: type) -> None:
    assert type(outcome_of(harness, sh(f"exit {code}"), fatal_codes={65})) is kind


def test_a_signal_is_named_and_counted_as_a_shell_does(harness: Harness) -> None:
    outcome = outcome_of(harness, sh("echo so far; kill -SEGV $$"))
    assert outcome == Retry("step was killed by SIGSEGV\nso far")
    (entry,) = harness.entries
    assert (entry.exit_code, entry.out) == (128 + 11, "so far\n[was killed by SIGSEGV]\n")


def test_a_job_may_have_no_commands_and_they_may_be_found_out_asynchronously(harness: Harness) -> None:
    async def commands(record: dict[str, int]) -> list[Command]:
        return [sh(f"echo {record['id']}")] * 2

    asyncio.run(CommandHandler(commands).handle(harness.ctx, harness.ctx.record))
    assert [entry.out for entry in harness.entries] == ["7\n", "7\n"]
    assert outcome_of(harness) is None


def test_without_any_log_store_steps_are_logged_by_the_logger() -> None:
    harness = Harness(keeps_logs=False)
    assert outcome_of(harness, sh("echo one; echo two >&2; exit 2")) == Retry("step exited with code 2\none\ntwo")
    assert [message for _, message in harness.said][1:3] == ["one", "two"]
    assert harness.said[-1][1].startswith("step exited with code 2 after ")


# -- what cannot be started ------------------------------------------------------------------------


def test_a_program_that_cannot_be_started_says_why_in_the_entry_and_in_the_error(
    harness: Harness, tmp_path: Path
) -> None:
    plain, script = tmp_path / "plain", tmp_path / "script"
    plain.write_text("#!/bin/sh\n")
    script.write_text("#!/no/such/ruby\n")
    script.chmod(0o755)
    folder = tmp_path / "none"
    for argv, cwd, code, words in (
        (["no-such-program"], None, 127, "no-such-program: command not found in PATH"),
        ([folder], None, 127, "none: No such file or directory"),
        ([plain], None, 126, "plain: not executable (Permission denied)"),
        ([script], None, 127, "script: its first line names /no/such/ruby, which is not installed on this machine"),
        (["./script"], tmp_path, 127, "its first line names /no/such/ruby"),
        (["true"], folder, 126, f"its folder {folder}: No such file or directory"),
        (["true", "x" * 3_000_000], None, 126, "true: Argument list too long"),
    ):
        outcome = outcome_of(harness, Command("step", argv, cwd=cwd))
        assert isinstance(outcome, Retry), argv
        assert outcome.error.startswith("step could not be started: ")
        assert words in outcome.error
        assert "\n" not in outcome.error
        entry = harness.entries[-1]
        assert (entry.exit_code, words in entry.out) == (code, True), (argv, entry.out)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Command("k", "git clone"), "argv is one string; use a list of words"),
        (lambda: Command("k", []), "argv is empty"),
        (lambda: Command("k", ["a", 3]), "word 1 of argv is not text"),  # type: ignore[list-item]
        (lambda: Command("k", ["a\0b"]), "word 0 of argv is not text without NUL"),
        (lambda: Command("", ["a"]), "use 1 to 255 bytes"),
        (lambda: Command("k", ["a"], env={"A=B": "secret"}), "'A=B' is not a name of a variable"),
        (lambda: Command("k", ["a"], env={"A": 3}), "the value of A is not text"),  # type: ignore[dict-item]
        (lambda: Command("k", ["a"], timeout=0), "use seconds, more than 0"),
        (lambda: Command("k", ["a"], timeout=float("nan")), "use seconds, more than 0"),
        (lambda: Command("k", ["a"], stdin=3), "stdin is an int"),  # type: ignore[arg-type]
        (lambda: Command("k", ["a"], cwd=3), "cwd is an int"),  # type: ignore[arg-type]
        (lambda: CommandHandler([]), "use a function"),  # type: ignore[arg-type]
        (lambda: CommandHandler(lambda record: [], grace=-1), "grace: got -1"),
        (lambda: CommandHandler(lambda record: [], timeout=True), "timeout: got True"),
        (lambda: CommandHandler(lambda record: [], fatal_codes=[0]), "use exit codes, 1 to 255"),
        (lambda: CommandHandler(lambda record: [], redact=["abc"]), "secret 1 is empty or very short"),
    ],
)
def test_an_invalid_option_is_refused_when_it_is_declared(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words.replace("(", r"\(")):
        make()


def test_what_is_no_command_or_too_many_of_them_is_refused_before_any_is_run(harness: Harness) -> None:
    with pytest.raises(ConfigurationError, match="a str among them"):
        outcome_of(harness, sh("true"), "git clone")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="501 of them, the limit is 500"):
        outcome_of(harness, *[sh("true")] * 501)
    assert harness.entries == []


# -- secrets and surroundings ----------------------------------------------------------------------


def test_secrets_are_seen_neither_in_the_command_nor_in_the_output_nor_in_an_error(harness: Harness) -> None:
    slow = "import sys, time\nfor c in 'it is hunter-22!': sys.stdout.write(c); sys.stdout.flush()\nsys.exit(4)"
    outcome = outcome_of(harness, Command("step", [sys.executable, "-c", slow, "hunter-22"]), redact=["hunter-22"])
    assert outcome == Retry("step exited with code 4\nit is ******!")
    (entry,) = harness.entries
    assert entry.out == "it is ******!"
    assert entry.command[2:] == (slow.replace("hunter-22", "******"), "******")
    outcome = outcome_of(harness, sh("exit 4", "of hunter-22"), redact=["hunter-22"])
    assert outcome == Retry("of ****** exited with code 4")
    assert harness.entries[-1].key == "of ******"
    outcome = outcome_of(harness, Command("step", ["/hunter-22/git"]), redact=lambda record: ["hunter-22"])
    assert outcome == Retry("step could not be started: /******/git: No such file or directory")
    assert "hunter-22" not in harness.entries[-1].out


def test_an_error_of_the_function_that_makes_commands_shows_no_secret(harness: Harness) -> None:
    def commands(record: object) -> list[Command]:
        raise ValueError("cannot clone https://hunter-22@example.org")

    instance = CommandHandler(commands, redact=["hunter-22"])
    outcome = asyncio.run(instance.handle(harness.ctx, harness.ctx.record))
    assert isinstance(outcome, Retry)
    assert outcome.error.startswith("ValueError: cannot clone https://******@example.org\n")
    with pytest.raises(ValueError, match="hunter-22"):
        asyncio.run(CommandHandler(commands).handle(harness.ctx, harness.ctx.record))


def test_the_function_that_makes_commands_may_raise_an_outcome_and_shows_no_secret_either(harness: Harness) -> None:
    def commands(record: Any) -> list[Command]:
        try:
            raise ValueError("no access with hunter-22")
        except ValueError as error:
            raise Retry("not cloned yet", delay="1m") from error

    for secrets, shown in (["hunter-22"], "******"), ([], "hunter-22"):
        outcome = asyncio.run(CommandHandler(commands, redact=secrets).handle(harness.ctx, harness.ctx.record))
        assert isinstance(outcome, Retry)
        assert (outcome.error.splitlines()[0], outcome.delay) == ("not cloned yet", 60.0)
        assert f"no access with {shown}" in outcome.error


def test_where_an_error_is_cut_no_half_of_a_secret_is_left(harness: Harness) -> None:
    secret = "hunter-22-" * 500

    def commands(record: object) -> list[Command]:
        raise ValueError(f"cannot clone {secret} {'x' * 30_000} {secret}")

    outcome = asyncio.run(CommandHandler(commands, redact=[secret]).handle(harness.ctx, harness.ctx.record))
    assert isinstance(outcome, Retry)
    assert len(outcome.error) <= MAX_ERROR_BYTES
    assert "hunter" not in outcome.error


def test_a_command_inherits_only_the_listed_variables(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:secret@h/db")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    seen = python("import os; print(*sorted(os.environ))")
    assert outcome_of(harness, seen, env={"GIVEN": "1"}) is None
    names = set(harness.entries[0].out.split())
    assert {"PATH", "GIVEN", "LC_ALL"} <= names
    assert names <= {
        *INHERITED_VARIABLES,
        "GIVEN",
        "LC_CTYPE",
        *(name for name in os.environ if name.startswith("LC_")),
    }


# -- much output, odd output -----------------------------------------------------------------------


def test_the_end_of_a_large_output_is_kept_without_blocking_the_loop(harness: Harness, run: Run) -> None:
    flood = python("import sys\nfor n in range(3000): sys.stdout.write(f'{n:>32767}\\n')\nprint('the end')")

    async def story() -> tuple[Any, int]:
        turns, clock = 0, SystemClock()
        before = psutil.Process().memory_info().rss
        running = asyncio.ensure_future(CommandHandler[Any](lambda record: [flood]).handle(harness.ctx, {}))
        while not running.done():
            await clock.sleep(0.001)
            turns += 1
        assert psutil.Process().memory_info().rss - before < 50_000_000, "96 MB were said"
        return await running, turns

    outcome, turns = run(story())
    assert outcome is None
    out = harness.entries[0].out
    assert len(out.encode()) <= MAX_OUTPUT_BYTES
    assert out.startswith("[…]\n")
    assert out.endswith("2999\nthe end\n")
    assert turns > 20, "others on the loop had their turn meanwhile"


def test_bytes_that_are_no_text_can_be_stored(harness: Harness) -> None:
    assert outcome_of(harness, python("import os; os.write(1, b'a\\x00\\xff\\xed\\xa0\\x80\\x1b[31mred')")) is None
    out = harness.entries[0].out
    out.encode()
    assert "\0" not in out
    assert out.startswith("a\ufffd\ufffd")


# -- told to stop ----------------------------------------------------------------------------------

IGNORING = "trap '' TERM; echo $$; while :; do sleep 0.05; done"


def timed_out(harness: Harness, command: Command, *, own: bool = False, **options: Any) -> tuple[Any, float]:
    """How a command ends that takes too long, once its time was enough to say a word; and that time."""
    for limit in (0.5, 2.0, 8.0):
        if own:
            command = msgspec.structs.replace(command, timeout=limit)
        else:
            options["timeout"] = limit
        outcome = outcome_of(harness, command, **options)
        if not harness.entries[-1].out.startswith("["):
            return outcome, limit
    raise AssertionError("it never said a word")


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(harness: Harness) -> None:
    began = SystemClock().monotonic()
    outcome = outcome_of(harness, sh("sleep 300 & echo $!; echo $$; wait"), timeout=timedelta(seconds=0.3), grace=60)
    assert SystemClock().monotonic() - began < 20
    assert isinstance(outcome, Retry)
    assert outcome.error.startswith("step took longer than 0.3 s and was killed by SIGTERM\n")
    (entry,) = harness.entries
    assert entry.exit_code == 128 + 15
    *pids, last = entry.out.splitlines()
    assert last == "[took longer than 0.3 s and was killed by SIGTERM]"
    for pid in pids:
        wait_until_gone(int(pid))


def test_output_during_the_stop_of_a_command_is_logged(harness: Harness) -> None:
    script = "trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    _, limit = timed_out(harness, sh(script))
    entry = harness.entries[-1]
    assert entry.out.splitlines()[-2:] == ["cleaned", f"[took longer than {limit:g} s and exited with code 0]"]
    assert entry.exit_code == 0


def test_its_own_time_limit_outdoes_the_handlers_and_one_that_ignores_term_is_killed(harness: Harness) -> None:
    outcome, limit = timed_out(harness, sh(IGNORING), own=True, timeout=60, grace=0.2)
    assert isinstance(outcome, Retry)
    assert outcome.error.startswith(f"step took longer than {limit:g} s and was killed by SIGKILL")
    assert not psutil.pid_exists(int(harness.entries[-1].out.split()[0])), "it was waited for: no zombie is left"


@pytest.mark.parametrize(
    ("reason", "pauses", "words", "code"),
    [
        ("canceled", {}, "its job was canceled", 128 + 15),
        ("timeout", {}, "the attempt timed out", 128 + 15),
        ("canceled", {"grace": 0.2}, "its job was canceled", 128 + 9),
        ("returned", {"MAX_STOPPING_GRACE_SECONDS": 0.2}, "the worker stops", 128 + 9),
        ("lost", {"MAX_LOST_GRACE_SECONDS": 0.2}, "its lease was lost", 128 + 9),
    ],
)
def test_a_stop_ends_the_process_group_and_is_logged(
    harness: Harness,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    pauses: dict[str, float],
    words: str,
    code: int,
) -> None:
    monkeypatch.setattr(steps, "UPDATE_INTERVAL_SECONDS", 0.05)
    for name in pauses.keys() - {"grace"}:
        monkeypatch.setattr(handler, name, pauses[name])
    ignores = code == 128 + 9
    command = sh(IGNORING if ignores else "sleep 300 & echo $!; wait")

    async def story() -> None:
        instance = CommandHandler[Any](lambda record: [command, sh("echo never")], grace=pauses.get("grace", 60.0))
        running = asyncio.ensure_future(instance.handle(harness.ctx, {}))
        while not (harness.entries and harness.entries[0].out):
            await SystemClock().sleep(0.01)
        control_of(harness.ctx).lost = reason == "lost"
        harness.ctx.cancel(reason)
        running.cancel()
        await asyncio.wait([running], timeout=10)
        assert running.cancelled()

    run(story())
    (entry,) = harness.entries
    pid, last = entry.out.splitlines()
    assert last == f"[stopped: {words}]"
    assert entry.exit_code == code
    wait_until_gone(int(pid))


def test_a_command_stopped_while_it_starts_kills_its_processes(harness: Harness, tmp_path: Path) -> None:
    message = tmp_path / "pid"

    async def story() -> None:
        instance = CommandHandler[Any](
            lambda record: [sh(f"sleep 300 & echo $! >{message}.new; mv {message}.new {message}; wait")]
        )
        others = set(psutil.Process().children())  # a server of other tests
        running = asyncio.ensure_future(instance.handle(harness.ctx, {}))
        while set(psutil.Process().children()) <= others:  # noqa: ASYNC110 - one turn of the loop at a time
            await asyncio.sleep(0)
        end = stopwatch() + 20
        while (
            not message.exists() and stopwatch() < end
        ):  # a loop that is busy: it runs, and asyncio has not heard of it
            sleep_blocking(0.01)
        harness.ctx.cancel("canceled")
        running.cancel()
        await asyncio.wait([running], timeout=10)
        assert running.cancelled()

    asyncio.run(story())
    assert harness.entries[0].out == "[stopped: its job was canceled]\n"
    wait_until_gone(int(message.read_text()))


def test_a_stop_during_a_failed_start_stops(run: Run) -> None:
    async def story() -> None:
        go = asyncio.Event()

        async def starting() -> Any:
            await go.wait()
            raise FileNotFoundError

        task = asyncio.ensure_future(program._start(starting()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        await asyncio.wait([task])
        assert task.cancelled(), "that nothing was started is not an outcome of the attempt then"

    run(story())


def test_a_stopping_worker_waits_for_commands_to_end() -> None:
    assert handler.MAX_LOST_GRACE_SECONDS < handler.MAX_STOPPING_GRACE_SECONDS < DEFAULT_TIMINGS.final_timeout


def test_processes_left_by_a_command_are_killed(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "OUTPUT_TIMEOUT_SECONDS", 0.1)
    held, quiet = sh("sleep 300 & echo $!"), sh("sleep 300 >/dev/null 2>&1 & echo $!")
    away = python(
        "import subprocess, sys\n"
        "print(subprocess.Popen(['sleep', '300'], start_new_session=True, stdout=sys.stdout).pid)\n"
    )
    assert outcome_of(harness, held, quiet, away) is None
    pids = [int(entry.out) for entry in harness.entries]
    for pid in pids[:2]:
        wait_until_gone(pid)
    psutil.Process(pids[2]).kill()  # it left the group, so it is its own master; nobody waited for it


def test_unread_input_is_discarded(harness: Harness) -> None:
    holds = python(
        "import subprocess\n"
        "print(subprocess.Popen(['sleep', '300'], start_new_session=True, stdout=-3, stderr=-3).pid, flush=True)\n",
        stdin=b"x" * 1_000_000,
    )

    async def story() -> int:
        before = psutil.Process().num_fds()
        await CommandHandler[Any](lambda record: [holds]).handle(harness.ctx, {})
        end = stopwatch() + 10
        while (left := psutil.Process().num_fds() - before) > 0 and stopwatch() < end:
            await SystemClock().sleep(0.05)
        return left

    left = asyncio.run(story())
    psutil.Process(int(harness.entries[0].out)).kill()
    assert left <= 0, "a pipe to a program that left the group, for as long as that lives"
