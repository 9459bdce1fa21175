"""``stowhand flows``: what stands where, for people and programs; retries; and workers that a signal stops."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stowhand.flows import Flow
from stowhand.tasks.loader import load_object
from tests.cli.conftest import Stowhand, command
from tests.conftest import Run
from tests.support import subprocesses

PROGRAM = """\
from stowhand.flows import Flow, Queue

flow = Flow("demo", {place!r}, [
    Queue("first", next_queue="second"),
    Queue("second", next_queue="third", children=(Queue("kid"),)),
    Queue("third"),
], lookup_attributes=["userId"])
idle = Flow("demo", {place!r}, [Queue("first")])
ranked = Flow("ranked", {place!r}, [Queue("only", priorities=2)], layout="priority")


async def first(job):
    job.ctx.logger.info("at work")
    if "bad" in str(job["text"]):
        raise ValueError(f"no: {{job['text']}}")
    bad = [{{"childName": "kid", "n": "bad"}}] if "child" in str(job["text"]) else []
    return {{"children:second:params": [{{"childName": "kid", "n": 1}}, {{"childName": "kid", "n": 2}}, *bad]}}


async def kid(job):
    return {{"twice": int(job["n"]) * 2}}


flow.create_workers("first", first, 2)
flow.create_workers("first", first)
flow.create_parent_workers("second")
flow.create_child_workers("second", "kid", kid, 2)
"""
NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, folder: Path) -> str:
    """Where the flow's jobs are."""
    if request.param == "sqlite":
        return f"sqlite:///{folder}/flow.db"
    url: str = request.getfixturevalue("redis_url")
    return url


Write = Callable[[str], str]


@pytest.fixture
def write(folder: Path) -> Write:
    """Makes a module of the application's, of a name that no other test imports; gives the name."""

    def write(place: str) -> str:
        name = f"shop_{uuid.uuid4().hex[:8]}"
        (folder / f"{name}.py").write_text(PROGRAM.format(place=place))
        return name

    return write


@pytest.fixture
def program(write: Write, place: str) -> str:
    """The module's name; its flow is `flow`."""
    return write(place)


def add(run: Run, program: str, *texts: str, **options: Any) -> list[str]:
    """A job for each text, and their ids."""

    async def story() -> list[str]:
        async with load_object(program, Flow, default="flow") as flow:
            return [
                await flow.create_job({"text": text, "userId": number}, **options) for number, text in enumerate(texts)
            ]

    return run(story())


def work(run: Run, program: str) -> None:
    """Until nothing waits but for the third queue, which has no workers."""

    async def is_done(flow: Flow) -> bool:
        counts = await flow.monitor.counts()
        return not any(one.waiting + one.processing + one.parked for one in counts if one.queue != "third")

    async def story() -> None:
        async with load_object(program, Flow, default="flow") as flow:
            await flow.start_all()
            await until(lambda: is_done(flow))

    run(story())


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():  # noqa: ASYNC110 - what is asked is the store
        await asyncio.sleep(0.02)


def test_the_queues_are_listed_with_counts_by_state(run: Run, call: Stowhand, program: str) -> None:
    add(run, program, "one", "two")
    add(run, program, "later", delay=60)
    listed = call("flows", "list", program)
    assert listed.code == 0
    heading, *lines = [line.split() for line in listed.out.splitlines()]
    assert heading[:7] == ["QUEUE", "NEXT", "SLOTS", "WAITING", "PROCESSING", "DELAYED", "PARKED"]
    assert [line[:7] for line in lines] == [
        ["first", "second", "3", "2", "0", "1", "0"],
        ["second", "third", "1", "0", "0", "0", "0"],
        ["second:kid", "-", "2", "0", "0", "0", "0"],
        ["third", "-", "0", "0", "0", "0", "0"],
    ]
    assert "\n  second:kid" in listed.out, "a child stands below its parent"
    first, _, kid, _ = call("flows", "list", program, "--json").rows()
    assert {name: first[name] for name in ("queue", "parent", "next", "slots")} == {
        "queue": "first",
        "parent": None,
        "next": "second",
        "slots": 3,
    }
    (figures,) = first["priorities"]
    assert (figures["priority"], figures["waiting"], figures["delayed"]) == (1, 2, 1)
    assert kid["parent"] == "second"


def test_a_queue_with_priorities_has_a_line_for_each(run: Run, call: Stowhand, program: str) -> None:
    async def story() -> list[str]:
        async with load_object(f"{program}:ranked", Flow) as flow:
            return [await flow.create_job({}, priority=priority) for priority in (2, 1, 2)]

    second, first, third = run(story())
    listed = [line.split() for line in call("flows", "list", f"{program}:ranked").out.splitlines()]
    assert listed[0][:5] == ["QUEUE", "NEXT", "SLOTS", "PRIO", "WAITING"]
    assert (listed[1][:5], listed[2][:5]) == (["only", "-", "0", "1", "1"], ["only", "-", "0", "2", "2"])
    rows = call("flows", "jobs", f"{program}:ranked", "--json").rows()
    assert [(row["job_id"], row["priority"]) for row in rows] == [(first, 1), (second, 2), (third, 2)]


def test_the_jobs_of_a_queue_are_listed_in_their_order(run: Run, call: Stowhand, program: str) -> None:
    ids = [*add(run, program, "one", "two"), *add(run, program, "later", delay=60)]
    rows = call("flows", "jobs", program, "--queue", "first", "--json").rows()
    assert [(row["job_id"], row["state"], row["position"]) for row in rows] == [
        (ids[0], "waiting", 1),
        (ids[1], "waiting", 2),
        (ids[2], "delayed", 1),
    ]
    listed = call("flows", "jobs", program).out.splitlines()
    assert listed[0].split() == ["QUEUE", "STATE", "POSITION", "READY", "AT", "ID"]
    assert listed[2].split() == ["first", "waiting", "2", "-", ids[1]]
    assert listed[3].split()[-1] == ids[2]
    shown = call("flows", "show", program, ids[1])
    assert "state             waiting in first, priority 1, position 2\n" in shown.out
    assert 'text              "two"\n' in shown.out
    empty = call("flows", "jobs", program, "--queue", "third")
    assert (empty.code, empty.out, empty.err) == (0, "", "No jobs.\n")


def test_failed_jobs_are_listed_with_queue_and_error(run: Run, call: Stowhand, program: str) -> None:
    good, *failing = add(run, program, "good", *["bad\n\x1b[2Jforged"] * 2)
    bad, worse = sorted(failing)
    work(run, program)
    rows = call("flows", "jobs", program, "--failed", "--json").rows()
    assert [(row["id"], row["failedQueue"]) for row in rows] == [(bad, "first"), (worse, "first")]
    listed = call("flows", "jobs", program, "--failed", "--queue", "first", "--limit", 1)
    assert [line.split()[0] for line in listed.out.splitlines()] == ["ID", bad]
    assert "no: bad" in listed.out
    assert "\x1b" not in listed.out
    assert listed.err == f"There may be more: --after {bad}\n"
    assert [row["id"] for row in call("flows", "jobs", program, "--failed", "--after", bad, "--json").rows()] == [worse]
    shown = call("flows", "show", program, bad)
    assert "state             failed in first\n" in shown.out
    assert "\x1b" not in shown.out
    job = call("flows", "show", program, good, "--children", "--json").rows()[0]
    assert (job["stands"]["queue"], job["stands"]["state"]) == ("third", "waiting")
    page = call("flows", "show", program, good, "--children").out
    assert "\nchildren:second:jobs [\n" in page
    assert '"twice": 2' in page
    assert '"twice": 4' in page
    assert "\nchildren:second   2 done (--children shows them)\n" in call("flows", "show", program, good).out
    heading, first, *_ = [line.split() for line in call("flows", "list", program).out.splitlines()]
    assert dict(zip(heading, first, strict=True))["FAILED"] == "2"
    sums = call("flows", "monitor", program, "--once").out.splitlines()[-1]
    assert sums.split()[-1] == "2"


def test_a_paused_queue_is_marked_in_every_view(run: Run, call: Stowhand, program: str) -> None:
    (job,) = add(run, program, "one")
    assert call("flows", "pause", program, "first").out == "Queue first of flow demo is paused.\n"
    assert call("flows", "pause", program, "first").out == "Queue first of flow demo was already paused.\n"
    assert "\nfirst (paused)" in call("flows", "list", program).out
    assert "\nfirst (paused)" in call("flows", "monitor", program, "--once").out
    assert "position 1; the queue is paused\n" in call("flows", "show", program, job).out
    assert call("flows", "list", program, "--json").rows()[0]["priorities"][0]["paused"] is True
    assert call("flows", "resume", program, "first").out == "Queue first of flow demo is resumed.\n"
    assert call("flows", "resume", program, "first").out == "Queue first of flow demo was not paused.\n"
    assert "paused" not in call("flows", "list", program).out
    assert call("flows", "pause", program, "frist").code == 2


def test_a_job_with_many_children_is_summarized(run: Run, call: Stowhand, program: str) -> None:
    (job,) = add(run, program, "child")
    work(run, program)
    shown = call("flows", "show", program, job).out
    assert "\nchildren:second   2 done, 1 failed (--children shows them)\n" in shown
    assert "second:kid:" not in shown
    row = call("flows", "show", program, job, "--json").rows()[0]
    assert row["children"] == {"second": {"done": 2, "failed": 1}}


def test_a_job_is_found_at_any_position_or_the_search_limit_is_reported(
    run: Run, call: Stowhand, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stowhand.cli.flows.MAX_SEARCHED_JOBS", 2)
    monkeypatch.setattr("stowhand.flows.monitor.MAX_SEARCHED_JOBS", 2)
    _, second, third = add(run, program, "one", "two", "three")
    assert "waiting in first, priority 1, position 2" in call("flows", "show", program, second).out
    behind = call("flows", "show", program, third)
    assert behind.err == "Only the first 2 of first were searched; the job may be behind them.\n"


def test_jobs_by_a_lookup_attribute(run: Run, call: Stowhand, program: str) -> None:
    ids = add(run, program, "one", "two", "three")
    more = add(run, program, "four", "five")
    result = call("flows", "jobs", program, "--key", "userId=1", "--json").rows()
    assert [(row["id"], row["userId"]) for row in result] == [(ids[1], 1), (more[1], 1)]
    first = call("flows", "jobs", program, "--key", "userId=1", "--limit", 1)
    assert [line.split()[0] for line in first.out.splitlines()] == ["ID", ids[1]]
    assert first.err == "These are the first of 2: --limit\n"


def test_retries_by_id_report_each_job(run: Run, call: Stowhand, program: str) -> None:
    good, bad = add(run, program, "good", "bad")
    work(run, program)
    answers = call("flows", "retry", program, bad, good, "nobody", "--json")
    assert answers.code == 1
    assert [(row["id"], row["done"]) for row in answers.rows()] == [
        (bad, "done"),
        (good, "refused"),
        ("nobody", "missing"),
    ]
    (row,) = call("flows", "jobs", program, "--queue", "first", "--json").rows()
    assert (row["job_id"], row["state"]) == (bad, "waiting")


def test_cancellations_report_each_job(run: Run, call: Stowhand, program: str) -> None:
    failed = add(run, program, "bad")
    work(run, program)
    (waiting,) = add(run, program, "next")
    answers = call("flows", "cancel", program, waiting, *failed, "nobody", "--json")
    assert answers.code == 1
    assert [(row["id"], row["done"]) for row in answers.rows()] == [
        (waiting, "done"),
        (failed[0], "refused"),
        ("nobody", "missing"),
    ]
    again = call("flows", "cancel", program, waiting)
    assert (again.code, again.out) == (0, f"{waiting}: unchanged (it is canceled already)\n")
    (shown,) = call("flows", "show", program, waiting, "--json").rows()
    assert shown["state"] == "canceled"


def test_retrying_all_failed_jobs_asks_with_their_number(
    run: Run, call: Stowhand, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = sorted(add(run, program, "bad 1", "bad 2"))
    work(run, program)
    for answer in ("n\n", ""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        denied = call("flows", "retry", program, "--failed")
        assert (denied.code, denied.out) == (1, "")
        assert "Retry 2 failed jobs of flow demo? [y/N]" in denied.err
        assert "Nothing was changed." in denied.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    agreed = call("flows", "retry", program, "--failed", "--queue", "first")
    assert (agreed.code, agreed.out) == (0, f"{ids[0]}: done\n{ids[1]}: done\n")
    assert "failed jobs of queue first?" in agreed.err
    work(run, program)
    assert call("flows", "retry", program, "--failed", "--yes").code == 0
    none = call("flows", "retry", program, "--failed")
    assert (none.code, none.err) == (0, "No failed jobs.\n")


def test_a_failed_child_whose_parent_continued_is_listed_and_not_retried_with_the_others(
    run: Run, call: Stowhand, program: str
) -> None:
    (bad, _) = add(run, program, "bad", "with a child")
    work(run, program)
    rows = {row["failedQueue"]: row["id"] for row in call("flows", "jobs", program, "--failed", "--json").rows()}
    assert rows.keys() == {"first", "second:kid"}
    retried = call("flows", "retry", program, "--failed", "--yes")
    assert (retried.code, retried.out) == (0, f"{bad}: done\n")
    named = call("flows", "retry", program, "--failed", "--queue", "second:kid", "--yes")
    assert named.code == 1
    assert f"{rows['second:kid']}: refused (" in named.out


@pytest.mark.parametrize("odd", ["\udcff", "a:b:\udcff"])
def test_an_id_that_is_not_text_is_not_found(call: Stowhand, program: str, odd: str) -> None:
    shown = call("flows", "show", program, odd)
    assert shown.code == 1
    assert "error: there is no job" in shown.err
    assert call("flows", "retry", program, odd).code == 1
    assert call("flows", "cancel", program, odd).code == 1
    assert call("flows", "jobs", program, "--failed", "--after", odd).code == 0


def test_monitor_with_once_prints_one_update(run: Run, call: Stowhand, program: str) -> None:
    add(run, program, "one", "two")
    look = call("flows", "monitor", program, "--once")
    heading, blank, _, first, *_, sums = look.out.splitlines()
    assert heading.startswith("demo  ")
    assert blank == ""
    assert (first.split()[:2], sums.split()[:2]) == (["first", "2"], ["all", "2"])
    (row,) = call("flows", "monitor", program, "--once", "--json").rows()
    assert (row["flow"], row["returned"]) == ("demo", 0)
    assert row["queues"][0]["waiting"] == 2


def test_monitor_updates_in_place_within_80_columns_until_ctrl_c(write: Write, redis_url: str, folder: Path) -> None:
    program = write(redis_url)
    text = (folder / f"{program}.py").read_text().replace('"kid"', repr("kid" * 13))
    (folder / f"{program}.py").write_text(f"{text}\nflow.monitor.interval = 0.05\n")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    watching = subprocesses.Popen(command("flows", "monitor", program), cwd=folder, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while seen.count(b"all ") < 2:
            seen += os.read(ours, 65536)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
    finally:
        watching.kill()
        os.close(ours)
    looks = seen.decode().split("\x1b[H")[1:]
    assert len(looks) >= 2
    for line in looks[1].replace("\x1b[K", "").replace("\x1b[J", "").splitlines():
        assert len(line) <= 80
    assert "…" in looks[1]


def test_run_works_until_a_signal(run: Run, program: str, folder: Path, call: Stowhand) -> None:
    (job_id,) = add(run, program, "one")
    working = subprocesses.Popen(
        command("flows", "run", program), cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert working.stderr is not None
    output = ""
    while "Completed task" not in output.rpartition("second")[2] or "kid" not in output:
        line = working.stderr.readline()
        assert line, output
        output += line
    working.send_signal(signal.SIGTERM)
    out, rest = working.communicate(timeout=60)
    assert (working.returncode, out) == (0, "")
    output += rest
    assert "slots: first (3), second (1), second:kid (2)\n" in output
    assert "No workers here for: third\n" in output
    correlation = call("flows", "show", program, job_id, "--json").rows()[0]["job"]["correlationId"]
    (at_work,) = [line for line in output.splitlines() if "at work" in line]
    assert at_work.endswith(f"INFO: at work (correlation_id={correlation})")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["list", "nowhere"], 2, "no module named 'nowhere'"),
        (["list", "{}:flwo"], 2, "did you mean 'flow'?"),
        (["list", "{}:first"], 2, "a function, not Flow"),
        (["jobs", "{}", "--queue", "frist"], 2, "flow 'demo' has no queue 'frist'; did you mean 'first'? Available:"),
        (["jobs", "{}", "--key", "userId"], 2, "write it with =, as in name=value"),
        (["jobs", "{}", "--key", "text=1"], 2, "'text' is not a lookup attribute; it has: userId"),
        (["jobs", "{}", "--key", "userId=1", "--failed"], 2, "omit --queue and --failed"),
        (["jobs", "{}", "--after", "x"], 2, "--after goes with --failed"),
        (["show", "{}", "nobody\x1b[2J"], 1, "there is no job nobody\\x1b[2J"),
        (["show", "{}", ""], 2, "job id: got '';"),
        (["retry", "{}"], 2, "name the jobs"),
        (["retry", "{}", "x", "--failed"], 2, "name the jobs"),
        (["retry", "{}", "x", "--yes"], 2, "--queue and --yes go with --failed"),
        (["retry", "{}", "--failed", "--queue", "frist"], 2, "has no queue 'frist'"),
        (["run", "{}:idle"], 2, "has created no workers"),
        (["mnitor", "{}"], 2, "did you mean 'monitor'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_invalid_option_is_one_line(
    write: Write, folder: Path, call: Stowhand, arguments: list[str], code: int, said: str
) -> None:
    name = write(f"sqlite:///{folder}/flow.db")
    ended = call("flows", *(argument.format(name) for argument in arguments))
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert "\x1b" not in ended.err


@pytest.mark.parametrize("words", ["list", "monitor", "run", "show", "retry", "cancel"])
def test_a_store_that_cannot_be_reached_is_code_3(write: Write, call: Stowhand, words: str) -> None:
    ended = call("flows", words, write(NOBODY), *(["x"] if words in ("show", "retry", "cancel") else []))
    assert ended.code == 3, ended.err
    assert "Traceback" not in ended.err
