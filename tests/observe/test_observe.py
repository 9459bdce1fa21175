"""Events become the README's log lines; user strings neither forge a line, drive a terminal nor leak a password."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from stowhand.events import (
    ChildDied,
    DashboardChanged,
    DashboardStoreLost,
    DashboardStoreRecovered,
    Event,
    Events,
    JobEnded,
    JobLost,
    JobsReset,
    JobsReturned,
    JobStarted,
    JobUnknown,
    LeaseExpiring,
    LoopBlocked,
    ResultDropped,
    StoreCallFailed,
    StoreRecovered,
    ThreadAbandoned,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from stowhand.jobs.job import State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.lifecycle import AttemptOutcome
from stowhand.jobs.queues import Queues
from stowhand.observe.job_logger import core_logger, job_logger
from stowhand.observe.lending_listener import LendingListener
from stowhand.observe.listener import LogListener
from stowhand.observe.logs import configure_logging, logging_restored
from stowhand.observe.safe_text import escape, escape_lines, scrub, summary_line

W = "worker-7327280603017288"


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """Logging is global; what a test configures must not reach the next one."""
    root = logging.getLogger()
    names = ("stowhand", "psycopg", "psycopg.pool", "asyncio")
    before = root.handlers[:], root.level, [(name, logging.getLogger(name).level) for name in names]
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    for name, level in before[2]:
        logging.getLogger(name).setLevel(level)


def written(*events: Event, level: str = "debug", fmt: str = "text") -> str:
    stream = io.StringIO()
    configure_logging(level, fmt, stream)
    hub = Events()
    LogListener(hub)
    for event in events:
        hub.emit(event)
    return stream.getvalue()


def ended(
    how: AttemptOutcome = AttemptOutcome.OK,
    error: str | None = None,
    task: str = "hello",
    retry_in: float | None = None,
) -> JobEnded:
    return JobEnded(W, 1, task, 2, 25, how, 0.00016, error, retry_in)


def test_the_lines_of_the_readme() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    hub = Events()
    LogListener(hub)
    hub.emit(WorkerStarted(W, ("hello",)))
    job_logger(W, "hello", 1).info("Hello, Bobby Tables")
    hub.emit(ended())
    assert stream.getvalue() == (
        "[core] INFO: Worker connected and looking for jobs... (task names: 'hello')\n"
        "[job(worker-7327280603017288: hello{1})] INFO: Hello, Bobby Tables\n"
        "[worker(worker-7327280603017288)] INFO: Completed task 1 (hello) with success (0.16ms)\n"
    )


def test_a_failure_logs_its_attempt_and_the_first_line_of_the_error() -> None:
    error = ended(AttemptOutcome.RETRY, "ValueError: no\nTraceback …\n  deep, password=hunter2", retry_in=7.389)
    line = f"[worker({W})] WARNING: Failed task 1 (hello), attempt 2/25, retrying in 7.4s: ValueError: no (0.16ms)\n"
    assert written(error, level="info") == line
    assert written(error) == f"{line}    Traceback …\n      deep, password=***\n"
    entry = json.loads(written(error, level="info", fmt="json"))
    assert entry["trace"] == "Traceback …\n  deep, password=***"
    assert (entry["outcome"], entry["duration"], entry["max_attempts"]) == ("retry", 0.00016, 25)


@pytest.mark.parametrize(
    ("how", "level"), [(AttemptOutcome.RETRY, logging.WARNING), (AttemptOutcome.FAILED, logging.ERROR)]
)
def test_failures_of_a_task_have_one_message_with_numbers_as_arguments(how: AttemptOutcome, level: int) -> None:
    """Sentry groups by the message before it is formatted, and makes an issue of each line at ERROR."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[assignment]
    logger = logging.getLogger("stowhand.worker")
    logger.addHandler(handler)
    errors = {number: f"ValueError: bad row {number} password=a{number}" for number in (1, 2)}
    try:
        written(*(JobEnded(W, n, "50%s off", n, 25, how, n / 1000, error) for n, error in errors.items()))
    finally:
        logger.removeHandler(handler)
    one, other = records
    assert one.msg == other.msg
    again = ("at once",) if how is AttemptOutcome.RETRY else ()
    assert (one.levelno, one.args) == (level, ("1", 1, 25, *again, "ValueError: bad row 1 password=***", 1.0))
    assert "task 2 (50%s off)" in other.getMessage()
    assert "attempt 2/25" in other.getMessage()


def test_secrets_are_redacted_in_text_and_json_and_parentheses_stay() -> None:
    facts = {"password": "hunter2", "api_key": "k", "tokens": 3, "nested": {"db_password": "x"}}
    lines = {}
    for fmt in ("text", "json"):
        stream = io.StringIO()
        configure_logging("info", fmt, stream)
        job_logger(W, "hello", 1).info("connecting (password=hunter2)", facts)
        lines[fmt] = stream.getvalue()
        assert "hunter2" not in lines[fmt]
    assert (
        "connecting (password=***) (password=***, api_key=***, tokens=3, nested={'db_password': '***'})"
        in lines["text"]
    )
    entry = json.loads(lines["json"])
    assert entry["message"] == "connecting (password=***)"
    assert entry["meta"] == {"password": "***", "api_key": "***", "tokens": 3, "nested": {"db_password": "***"}}


def test_a_timed_line_starts_with_the_time() -> None:
    line = written(ended(), fmt="timed")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z \[worker\(.*\)\] INFO: Completed .*\n", line), line


def test_many_reset_jobs_are_one_line_with_their_number() -> None:
    states = [State.QUEUED] * 530 + [State.FAILED]
    line = written(JobsReset(tuple(ResetJob(number, "hello", state, "w") for number, state in enumerate(states))))
    assert line.count("\n") == 1
    assert "ERROR: Reset 531 tasks: workers lost (w); 530 queued, 1 failed: tasks 0, 1, 2" in line
    assert "and 481 more" in line


def test_a_failed_store_call_has_fields_in_json() -> None:
    entry = json.loads(written(StoreCallFailed(W, "claim", "gone", 0.25), fmt="json"))
    assert (entry["doing"], entry["retry_in"], entry["error"]) == ("claim", 0.25, "gone")


def test_a_listener_that_raises_is_reported_without_a_log_listener(caplog: pytest.LogCaptureFixture) -> None:
    def raises(event: JobEnded) -> None:
        raise ZeroDivisionError("nobody listens to me")

    events = Events()
    events.on(JobEnded, raises)
    events.emit(ended())
    assert "A listener raised" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_traceback_is_summarized_by_its_last_line() -> None:
    error = 'Traceback (most recent call last):\n  File "x"\n    boom\nKeyError: 5\n'
    assert "Permanently failed task 1 (hello), attempt 2/25: KeyError: 5 (" in written(
        ended(AttemptOutcome.FAILED, error)
    )


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (WorkerStarted(W, None), "(task names: any)"),
        (WorkerStarted(W, ("a",), Queues(("mail", "bulk"))), "(task names: 'a'; queues: 'mail', 'bulk')"),
        (WorkerStarted(W, None, Queues(None, ("bulk",))), "(task names: any; excluded queues: 'bulk')"),
        (WorkerStopping(W, 0, False), "INFO: Stopping\n"),
        (WorkerStopping(W, 3, False), "waiting for 3 running jobs"),
        (WorkerStopping(W, 3, True), "Stopping now; returning 3 running jobs to the queue"),
        (WorkerStopped(W, 0), "INFO: Stopped"),
        (WorkerStopped(W, 2), "WARNING: Stopped; 2 handlers could not be stopped"),
        (JobStarted(W, 1, "hello", 2), "DEBUG: Started task 1 (hello), attempt 2"),
        (ended(AttemptOutcome.SNOOZED), "Snoozed task 1"),
        (ended(AttemptOutcome.CANCELED, "by hand"), "Canceled task 1 (hello): by hand"),
        (
            ended(AttemptOutcome.POISON, "Poison: x"),
            "Permanently failed task 1 (hello): poison, attempt 2/25: Poison: x",
        ),
        (JobLost(W, 1, "hello", "late"), "WARNING: Lost the lease of task 1 (hello); nothing was recorded: late"),
        (JobUnknown(W, 1, "hello"), "the result is not known"),
        (JobsReturned(W, (1, 2), "stopping"), "Returned tasks 1, 2 to the queue, attempt not counted: stopping"),
        (
            JobsReset((ResetJob(1, "hello", State.QUEUED, W),)),
            f"WARNING: Reset task 1 (hello): worker {W} lost, state queued",
        ),
        (
            JobsReset((ResetJob(1, "hello", State.FAILED, W),)),
            "ERROR: Permanently failed task 1 (hello): its workers died",
        ),
        (ResultDropped(1, "hello", "too large"), "its result could not be kept: too large"),
        (StoreCallFailed(W, "claim", "gone\nmore", 1.5), "ERROR: Store call failed (claim), retrying in 1.5s: gone\n"),
        (StoreRecovered(W, "claim", 3), "The store is back (claim, after 3 failures)"),
        (LeaseExpiring(W, Lease(1, "t", 1), "hello"), "The lease of task 1 (hello) expires"),
        (
            LoopBlocked(W, "hello", 1, 2.5, "  File x", True),
            "been blocked for 2.5s by task 1 (hello). Stack:\n      File x",
        ),
        (LoopBlocked(W, None, None, 2.5, "s", False), "by a part of the worker; the worker counts as hung"),
        (ThreadAbandoned(W, 1, "hello"), "was stopped, but its thread"),
        (
            ChildDied(W, 77, "killed by SIGKILL", 1),
            "Worker process 77 exited unexpectedly (killed by SIGKILL); 1 job reset",
        ),
    ],
)
def test_every_event_has_a_line(event: Event, words: str) -> None:
    assert words in written(event)


def test_every_kind_of_event_has_a_listener() -> None:
    stream = io.StringIO()
    configure_logging("debug", "text", stream)
    hub = Events()
    LogListener(hub)
    kinds = [kind for kind in Event.__subclasses__() if kind.__module__ != "stowhand.events"]  # lending.py's
    silent = {kind.__name__ for kind in kinds if not hub.wants(kind)}
    # For programs and metrics: a line for every look or call would drown the rest, and a deaf store is said to be in
    # trouble.
    assert silent <= {
        "ClaimStarted",
        "ClaimFinished",
        "Settled",
        "HeartbeatFinished",
        "Listening",
        "HookFinished",
        "JobLeft",
        "StoreCalled",
    }


def test_events_below_the_level_have_no_listener() -> None:
    def wanted(level: str) -> tuple[bool, bool, bool, bool]:
        configure_logging(level, "text", io.StringIO())
        hub = Events()
        LogListener(hub)
        successes = hub.wants(JobEnded, success=True)
        return hub.wants(JobStarted), hub.wants(WorkerStarted), hub.wants(JobEnded), successes

    assert wanted("debug") == (True, True, True, True)
    assert wanted("info") == (False, True, True, True)
    assert wanted("error") == (False, False, True, False), "failures are errors"
    assert wanted("off") == (False, False, False, False)


def test_a_success_is_not_logged_at_level_error() -> None:
    assert written(ended(), level="error") == ""
    assert "Permanently failed task" in written(ended(AttemptOutcome.FAILED, "x"), level="error")
    assert written(ended(AttemptOutcome.RETRY, "x"), level="error") == ""


def test_json_lines_have_the_scope_in_fields() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    job_logger(W, "hello", 1).scope(tenant="a").warning("careful", left=3, place="postgres://u:pw@h")
    line = stream.getvalue()
    assert line.count("\n") == 1
    entry = json.loads(line)
    assert entry.pop("time")
    assert entry == {
        "level": "warning",
        "scope": "job",
        "worker": W,
        "task": "hello",
        "job_id": 1,
        "message": "careful",
        "meta": {"tenant": "a", "left": 3, "place": "postgres://u:***@h"},
    }


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_any_logged_value_is_written_without_an_error(fmt: str) -> None:
    stream = io.StringIO()
    configure_logging("info", fmt, stream)

    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    knot: list[object] = []
    knot.append(knot)
    job_logger(W, "hello", 1).info(
        "100% of %s %d", odd=object(), knot=knot, mute=Mute(), deep=deep, lone="\ud800", key={1: b"x"}
    )
    job_logger(W, "hello", 1).info("\ud800")
    assert "100% of %s %d" in stream.getvalue()
    stream.getvalue().encode()


def test_a_message_cannot_forge_another_line() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    job_logger(W, "evil\n[core] INFO: a", 1).info("hello\n[core] INFO: forged\r\n\x1b[2Jgone")
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if line.startswith("[core]")] == []
    assert "\x1b" not in stream.getvalue()
    assert "\\x1b[2J" in stream.getvalue()


def test_a_task_name_cannot_forge_a_line() -> None:
    assert written(ended(task="a\n[core] INFO: b\x9b")).count("\n") == 1


def test_passwords_are_scrubbed_from_messages_errors_and_tracebacks() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    core_logger().info("connecting to postgresql://me:hunter2@host/db")
    try:
        raise ValueError("host=h password='hunter2 and more' dbname=d")
    except ValueError:
        logging.getLogger("somebody.else").exception("it failed with password=hunter2")
    assert "hunter2" not in stream.getvalue()
    assert "host/db" in stream.getvalue()
    assert "dbname=d" in stream.getvalue()


def test_logging_can_be_configured_twice_without_doubling_lines() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", "text", first)
    configure_logging("info", "text", second)
    core_logger().info("once")
    assert first.getvalue() == ""
    assert second.getvalue() == "[core] INFO: once\n"


@pytest.mark.parametrize("when", ["before", "afterwards"])
def test_a_line_is_written_once_beside_handlers_of_the_program(when: str) -> None:
    """As Django's, of ``django``, with DEBUG on; in a process that is started it comes after ours."""
    stream = io.StringIO()
    logging.getLogger("stowhand.core")  # a process that has started has it, whichever test is the first
    of_the_program = logging.getLogger("of_the_program")
    apart = logging.getLogger("of_the_program.apart")

    def configured() -> None:
        for logger in (logging.getLogger(), of_the_program, apart):
            logger.addHandler(logging.StreamHandler(stream))
        logging.getLogger().setLevel("WARNING")
        logging.getLogger("stowhand.core").disabled = True
        apart.propagate = False

    if when == "before":
        configured()
        logging.getLogger("stowhand.core").disabled = False
        configure_logging("info", "text", stream)
    else:
        configure_logging("info", "text", stream)
        with logging_restored():
            configured()
    try:
        core_logger().info("one")
        logging.getLogger("of_the_program.part").info("two")
        apart.warning("three, in its own form")
    finally:
        apart.handlers.clear()
        apart.propagate = True
        of_the_program.handlers.clear()
    assert stream.getvalue().splitlines() == [
        "[core] INFO: one",
        "[of_the_program.part] INFO: two",
        "three, in its own form",
    ]


def test_color_is_for_terminals_and_the_time_of_day_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    painted, plain = Terminal(), Terminal()
    configure_logging("info", "text", painted)
    core_logger().info("x")
    monkeypatch.setenv("NO_COLOR", "1")
    configure_logging("info", "text", plain)
    core_logger().info("x")
    assert "\x1b[" in painted.getvalue()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[core\] INFO: x\n", plain.getvalue())


def test_a_listener_that_raises_is_reported_and_the_others_continue() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    hub = Events()

    def broken(event: WorkerStopped) -> None:
        raise ZeroDivisionError(event.unfinished)

    hub.on(WorkerStopped, broken)
    LogListener(hub)
    hub.emit(WorkerStopped(W, 0))
    assert "A listener raised" in stream.getvalue()
    assert "ZeroDivisionError" in stream.getvalue()
    assert "INFO: Stopped" in stream.getvalue()


def test_escaping_keeps_ordinary_text_and_shows_control_characters() -> None:
    assert escape("Grüße, 日本語 👩‍👩‍👧") == "Grüße, 日本語 👩‍👩‍👧"
    assert escape("a\x00\t\r\n\x7f\x9b\u202e\ud800") == "a\\x00\\t\\r\\n\\x7f\\x9b\\u202e\\ud800"
    assert escape_lines("a\r\nb\u2028c") == "a\n    b\\u2028c"


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p@ss@h/d", "postgresql://u:***@h/d"),
        ("redis://:p@h", "redis://:***@h"),
        ("https://h:80/x", "https://h:80/x"),
        ("password=p host=h", "password=*** host=h"),
        ("sslpassword = 'a b' host=h", "sslpassword = *** host=h"),
        ("postgresql:///d?password=p&host=h", "postgresql:///d?password=***&host=h"),
        ("PGPASSWORD=p", "PGPASSWORD=***"),
        ("the password is wrong", "the password is wrong"),
    ],
)
def test_passwords_are_scrubbed(text: str, scrubbed: str) -> None:
    assert scrub(text) == scrubbed


def test_the_summary_of_an_empty_error_is_empty() -> None:
    assert summary_line("\n \n") == ""


def test_the_audit_of_the_dashboard_is_one_line_with_any_names() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream=stream)
    events = Events()
    LendingListener(events, name="web")
    events.emit(DashboardChanged("retry", "ann\n[core] INFO: forged", ("17", "18"), ("done", "refused"), "10.0.0.1"))
    events.emit(DashboardChanged("pause serial", "", ("a\u202eb",), (), "::1"))
    assert stream.getvalue().splitlines() == [
        "[web(audit)] INFO: retry by ann\\n[core] INFO: forged from 10.0.0.1: 17 done, 18 refused",
        "[web(audit)] INFO: pause serial by an unnamed caller from ::1: a\\u202eb",
    ]


def test_an_outage_of_the_dashboards_store_and_its_end_are_a_line_each() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream=stream)
    events = Events()
    LendingListener(events, name="web")
    events.emit(DashboardStoreLost("no answer of postgresql://ann:hush@db/shop\nfor long"))
    events.emit(DashboardStoreRecovered(83.0))
    assert stream.getvalue().splitlines() == [
        "[web] ERROR: The store does not answer; pages show this until it does: no answer of postgresql://ann:***@db/shop",
        "[web] INFO: The store is back, after 1m 23s",
    ]


def test_the_audit_of_a_mounted_dashboard_needs_no_logging_and_uses_later_logging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An application mounts it at import, before it configures logging, or never does."""
    root, ours = logging.getLogger(), logging.getLogger("stowhand")
    for logger in (root, ours):
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "level", logging.WARNING if logger is root else logging.NOTSET)
    root.manager._clear_cache()  # type: ignore[attr-defined]
    events = Events()
    LendingListener(events, name="web")
    stream = io.StringIO()
    logging.basicConfig(level="INFO", stream=stream, format="%(name)s %(message)s")
    events.emit(DashboardChanged("retry", "ann", ("17",), ("done",), "::1"))
    assert stream.getvalue() == "stowhand.web retry by ann from ::1: 17 done\n"
    monkeypatch.setattr(root, "handlers", [])
    root.setLevel(logging.WARNING)
    events.emit(DashboardChanged("retry", "ann", ("18",), ("done",), "::1"))
    assert capsys.readouterr().err == "[web(audit)] INFO: retry by ann from ::1: 18 done\n"
    root.manager._clear_cache()  # type: ignore[attr-defined]


def test_lines_of_the_driver_are_formatted_in_a_program_without_logging() -> None:
    script = (
        "import logging; from stowhand.observe.logs import configure_unless_configured;"
        "configure_unless_configured();"
        "logging.getLogger('psycopg').warning('hidden: we report it'); logging.getLogger('psycopg').error('a\\nb')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "[psycopg] ERROR: a\n    b\n"
