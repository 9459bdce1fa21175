"""Health: alive as long as the loops move, ready as long as work is done; asked of real workers."""

from __future__ import annotations

import asyncio
import http.server
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from stowhand.app.settings.resolver import read_settings
from stowhand.cli import health as health_command
from stowhand.clock import SystemClock
from stowhand.events import Events
from stowhand.protocols.options import WorkerOptions
from stowhand.service.children import Child
from stowhand.service.health import (
    MAX_REPORT_AGE_SECONDS,
    MAX_START_SECONDS,
    Process,
    Report,
    max_loop_ages,
    stuck_process_reasons,
    stuck_reasons,
    unready_reasons,
)
from stowhand.service.health_reporter import METRICS_FOLDER_VARIABLE, HealthReporter
from stowhand.service.supervisor import Supervisor
from stowhand.service.table_run import joint_bounds, joint_report
from stowhand.stores.sqlite.queue.memory import MemoryStore
from stowhand.testing.clock import FakeClock
from stowhand.worker.worker import Worker
from tests.conftest import Run
from tests.service.manager import Manager
from tests.service.pages import Pages
from tests.service.processes import QUICK, Workers, add, children_of
from tests.support import subprocesses


def health(*options: str, **environment: str) -> tuple[int, str]:
    """``stowhand health``: its exit code, and its one line."""
    command = [sys.executable, "-m", "stowhand.cli", "health", *options]
    done = subprocesses.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)
    output = done.stdout + done.stderr
    assert output.count("\n") == 1, output
    return done.returncode, output.strip()


def until_told(expected: tuple[int, str], *options: str, **environment: str) -> None:
    """It asks for two seconds only, and the store for less: where a machine stands still it is asked again."""
    deadline = time.monotonic() + 60
    while (message := health(*options, **environment)) != expected:
        assert time.monotonic() < deadline, message


def test_a_draining_worker_is_alive_and_not_ready(sqlite_workers: Workers, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    add(sqlite_workers.url, "gated", f'{{"gate": "{gate}"}}')
    process = sqlite_workers.start("--http", "0", "--log-level", "debug", "--grace", "120")
    pages = Pages(sqlite_workers)
    pages.wait_until_ready()
    status, said = pages.json("/healthz")
    assert (status, said["status"]) == (200, "ok")
    assert said["loops"].keys() == {"loop", "heartbeat", "claiming", "settling", "waking", "cron"}
    assert pages.json("/readyz")[1]["store_heard_seconds_ago"] < 10
    sqlite_workers.wait_for("Started task")
    port = str(pages.port)
    until_told((0, "ok"), "--http", port)
    until_told((0, "ready"), "--ready", STOWHAND_HTTP=f"0.0.0.0:{port}")
    process.send_signal(signal.SIGTERM)
    pages.wait(lambda pages: pages.json("/readyz")[1]["reasons"] == ["it is stopping"])
    assert pages.get("/readyz")[0] == 503
    assert pages.get("/healthz")[0] == 200
    until_told((1, "not ready: it is stopping"), "--ready", "--http", port)
    gate.touch()
    assert process.wait(60) == 0
    code, why = health("--http", port)
    assert code == 1
    assert "no answer from" in why


def test_a_blocked_loop_is_reported_and_is_not_alive_beyond_its_maximum(
    sqlite_workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    manager = Manager(f"@stowhand-test-watchdog-{os.getpid()}")
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    timings = replace(QUICK, blocked_threshold=0.3, min_blocked_time=1.0, report_interval=1.0)
    sqlite_workers.start("--http", "0", "--lease", "1", "--grace", "300", timings=timings)
    pages = Pages(sqlite_workers)
    manager.wait_for("READY=1")
    pages.wait_until_ready()
    manager.hear(0.0)
    heard = (manager.hear(0.4).count("WATCHDOG=1") for _ in range(25))  # machines stand still now and then
    assert any(count in range(2, 6) for count in heard), "every half of what was asked"
    add(sqlite_workers.url, "jam", f'{{"gate": "{gate}"}}')
    pages.wait(lambda pages: pages.get("/readyz")[0] == 503)
    pages.wait(_is_dead)
    (reason,) = pages.json("/readyz")[1]["reasons"]
    assert re.fullmatch(r"loop: no progress for \d+ s; what runs on it blocks it", reason), (
        "and not: the store is silent"
    )
    manager.wait_for("STATUS=loop: no progress for ")
    assert "WATCHDOG=1" not in manager.hear(0.5), "so it will be killed"
    gate.touch()
    pages.wait(lambda pages: pages.get("/healthz")[0] == 200)
    manager.wait_for("WATCHDOG=1")
    lag = {name: value for name, value in pages.metrics().items() if name.startswith("stowhand_worker_loop_lag")}
    assert lag['stowhand_worker_loop_lag_seconds_bucket{le="0.5"}'] < lag["stowhand_worker_loop_lag_seconds_count"]


def _is_dead(pages: Pages) -> bool:
    """And not before its bound: to be blocked for a short while is not death."""
    status, said = pages.json("/healthz")
    if status == 503:
        assert said["loops"]["loop"] > 0.9
        assert re.fullmatch(r"loop: no progress for \d+ s, limit 1 s", said["reasons"][0])
    return status == 503


def test_each_process_is_shown_and_a_dead_one_is_missing_until_its_replacement_works(sqlite_workers: Workers) -> None:
    add(sqlite_workers.url, "innocent", '{"number": 1}')
    supervisor = sqlite_workers.start("--http", "0", "--processes", "2")
    pages = Pages(sqlite_workers)
    assert pages.get("/healthz")[0] == 200, "to start is not a failure"
    pages.wait_until_ready()
    output = pages.json("/healthz")[1]
    assert output["loops"].keys() == {"loop", "cron"}
    assert output["processes"].keys() == {"process 1", "process 2"}
    for process in output["processes"].values():
        assert process["loops"].keys() == {"loop", "heartbeat", "claiming", "settling", "waking"}
        assert process["said_seconds_ago"] < 10
    assert any(_is_missed(pages, supervisor) for _ in range(10))
    assert pages.get("/healthz")[0] == 200
    pages.wait_until_ready()


def _is_missed(pages: Pages, supervisor: subprocess.Popen[bytes]) -> bool:
    """Kill a process, and return whether readiness misses it within a second: later its replacement works."""
    for child in children_of(supervisor):
        child.kill()
        break
    for _ in range(20):
        status, said = pages.json("/readyz")
        if status == 503 and any("is starting" in reason for reason in said["reasons"]):
            return True
        time.sleep(0.05)
    return False


def _refuses(pages: Pages, *loops: str) -> bool:
    """Return whether it is not ready because the store refuses calls of one of these loops."""
    status, said = pages.json("/readyz")
    refused = [reason.partition(": the store has answered with errors for ")[0] for reason in said["reasons"]]
    return status == 503 and any(loop in refused for loop in loops)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can fill a disk for one process")
def test_a_worker_whose_store_refuses_writes_is_alive_and_not_ready(sqlite_workers: Workers) -> None:
    process = sqlite_workers.start("--http", "0")
    pages = Pages(sqlite_workers)
    pages.wait_until_ready()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # no file takes anything any more
    add(sqlite_workers.url, "innocent", '{"number": 1}')
    pages.wait(lambda pages: _refuses(pages, "claiming", "heartbeat"))
    assert pages.get("/healthz")[0] == 200, "starting anew would not help"
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    pages.wait_until_ready()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can fill a disk for one process")
def test_an_idle_worker_is_not_ready_while_the_store_refuses_writes(sqlite_workers: Workers) -> None:
    process = sqlite_workers.start("--http", "0")
    pages = Pages(sqlite_workers)
    pages.wait_until_ready()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    pages.wait(lambda pages: _refuses(pages, "heartbeat"))
    assert pages.get("/healthz")[0] == 200
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    pages.wait_until_ready()
    sqlite_workers.wait_for("The store is back (beat")
    assert sqlite_workers.output().count("The store is back (beat") == 1


def test_refused_calls_and_silent_processes_are_named() -> None:
    well = Report(at=100.0, ages={}, last_answer_at=99.0, has_claimed=True)
    refused = Report(at=100.0, ages={}, last_answer_at=40.0, has_claimed=True, refused={"settling": 12.4})
    processes = [
        Process("process 1", 200.0, well),
        Process("process 2", 200.0, refused),
        Process("process 3", 3.0, None),
    ]
    output = "process 2, settling: the store has answered with errors for 12 s; the log says which"
    assert unready_reasons(processes, now=101.0) == [output]
    assert unready_reasons(processes[:1], now=100.0 + MAX_REPORT_AGE_SECONDS + 1) == ["process 1: no progress for 11 s"]


def test_before_the_first_claim_nothing_is_ready(sqlite_workers: Workers, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    sqlite_workers.start("--http", "0", program=("tests.service.slow_start", str(gate)))
    pages = Pages(sqlite_workers)
    status, said = pages.json("/readyz")
    assert status == 503
    assert said["reasons"][0].startswith("it is starting")
    assert pages.get("/healthz")[0] == 200
    gate.touch()
    pages.wait_until_ready()


def test_a_port_in_use_is_refused_and_a_public_address_is_reported_at_the_start(sqlite_workers: Workers) -> None:
    add(sqlite_workers.url, "innocent", '{"number": 1}')
    sqlite_workers.start("--http", "0.0.0.0:0", "--once")
    assert sqlite_workers.processes[0].wait(60) == 0
    assert "shown to anyone who can reach 0.0.0.0:0; there is no password" in sqlite_workers.output()
    taken = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    port = taken.server_address[1]
    assert sqlite_workers.start("--http", str(port)).wait(60) == 2
    assert "use another port" in sqlite_workers.output(1)
    assert "Worker connected" not in sqlite_workers.output(1)
    threading.Thread(target=taken.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{port}"
    assert health_command.request_health(address, "/healthz") == (False, f"the server at {address} is not a worker")
    taken.shutdown()
    assert health_command.request_health(address, "/healthz") == (
        False,
        f"no answer from {address} within 2 s",
    )  # nobody accepts
    taken.server_close()


def test_health_needs_an_address() -> None:
    code, why = health(STOWHAND_HTTP="")
    assert code == 2
    assert "--http" in why


def test_bounds_follow_the_settings() -> None:
    usual = max_loop_ages(read_settings({}, environ={}).worker)
    assert (usual["loop"], usual["claiming"], usual["waking"]) == (30, 60, 70)
    patient = max_loop_ages(read_settings({"lease": "100s", "poll_interval": "5m"}, environ={}).worker)
    assert (patient["loop"], patient["heartbeat"], patient["waking"]) == (100, 200, 500)


def test_stuck_loops_are_named() -> None:
    bound = {"loop": 5.0, "claiming": 60.0}
    assert stuck_reasons({"loop": 5.0, "claiming": 60.0}, bound) == []
    assert stuck_reasons({"loop": 6.0, "claiming": 75.4}, bound) == [
        "loop: no progress for 6 s, limit 5 s",
        "claiming: no progress for 75 s, limit 60 s",
    ]


def test_each_worker_of_a_process_has_its_own_maximum_ages(run: Run) -> None:
    clock = FakeClock()

    async def handle(ctx: object, record: object) -> None: ...

    def worker(lease: float, clock: FakeClock) -> Worker:
        return Worker(MemoryStore(), handle, WorkerOptions(lease=lease), clock=clock)

    patient, impatient = worker(300, clock), worker(30, clock)
    run(clock.advance(100))
    workers = [patient, impatient, worker(30, FakeClock())]
    process = Process("process 1", 0.0, joint_report(workers, clock))
    assert stuck_process_reasons([process], joint_bounds(workers), clock.monotonic()) == [
        "process 1, worker 2, loop: no progress for 100 s, limit 30 s",
        "process 1, worker 2, heartbeat: no progress for 100 s, limit 60 s",
    ]
    alone = Process("", 0.0, joint_report([impatient], clock))
    assert stuck_process_reasons([alone], joint_bounds([impatient]), clock.monotonic())[0].startswith(
        "loop: no progress"
    )


def test_a_process_is_ready_when_each_of_its_workers_is(run: Run) -> None:
    store = MemoryStore()

    async def handle(ctx: object, record: object) -> None: ...

    ready, starting = (Worker(store, handle, WorkerOptions(once=True)) for _ in range(2))
    run(ready.run())
    clock = SystemClock()
    assert joint_report([ready], clock).has_claimed
    assert not joint_report([ready, starting], clock).has_claimed
    assert joint_report([ready, starting], clock).last_answer_at == ready.controls.liveness.last_answer_at


def test_a_process_that_does_not_report_is_stuck() -> None:
    well = Report(at=100.0, ages={"loop": 0.1}, last_answer_at=None, has_claimed=True)
    ill = Report(at=100.0, ages={"loop": 9.0}, last_answer_at=None, has_claimed=True)
    children = [Process("process 1", 500.0, well), Process("process 2", 3.0, None)]
    assert stuck_process_reasons(children, {"loop": 5.0}, 100.0 + MAX_START_SECONDS) == []
    assert stuck_process_reasons(children, {"loop": 5.0}, 101.0 + MAX_START_SECONDS) == [
        "process 1: no progress for 61 s, limit 60 s"
    ]
    assert stuck_process_reasons([Process("process 1", 61.0, None)], {"loop": 5.0}, 0.0) != []
    assert stuck_process_reasons([Process("process 1", 9.0, ill)], {"loop": 5.0}, 101.0) == [
        "process 1, loop: no progress for 9 s, limit 5 s"
    ]


def test_a_closed_reporter_leaves_no_folder_of_metrics_in_the_environment() -> None:
    health_reporter = HealthReporter(read_settings({"processes": "2", "http": "0"}, environ={}), None)
    health_reporter.open()
    folder = Path(os.environ[METRICS_FOLDER_VARIABLE])
    assert folder.is_dir()
    health_reporter.close()
    assert not folder.exists()
    assert METRICS_FOLDER_VARIABLE not in os.environ, "another worker of this process would look for the folder"


def test_a_dead_child_may_be_replaced_in_time_and_is_not_missed_during_a_stop(run: Run, tmp_path: Path) -> None:
    settings = read_settings({"processes": "2"}, environ={})
    health_reporter = HealthReporter(settings, None)

    async def scenario() -> None:
        supervisor = Supervisor(settings, lambda: None, Events())  # type: ignore[arg-type, return-value]
        slots = supervisor.children.slots
        for slot in slots:
            slot.child = Child(await asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.PIPE))
            await slot.child.wait()
        with health_reporter.supervising(supervisor):
            assert health_reporter.problems() == [], "it has ended just now"
            slots[0].changed_at -= MAX_START_SECONDS + 1
            assert health_reporter.problems() == ["process 1: no progress for 61 s, limit 60 s"]
            supervisor.request_stop()
            for slot in slots:
                slot.is_done = True
            assert health_reporter.problems() == [], "they have ended as they were told"
            assert "it is stopping" in health_reporter.unready_problems(), "also where no signal has asked for it"

    run(scenario())
