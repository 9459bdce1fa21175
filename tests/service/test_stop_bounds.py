"""A worker has left five seconds after its grace: whatever blocks its loop, and however silent its store is."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.settings import StoreSettings, WorkerSettings
from stowhand.events import Events
from stowhand.jobs.job import State
from stowhand.jobs.lease import ResetJob
from stowhand.protocols.options import WorkerOptions
from stowhand.service import exit_codes
from stowhand.service.children import ORDERLY_EXIT_OFFSET, Child, Slot
from stowhand.service.process import Stopper
from stowhand.service.supervisor import ChildOrder, Supervisor
from stowhand.tasks.executable import KILL_DELAY_SECONDS
from stowhand.worker.host import DEFAULT_TIMINGS, Timings
from tests.conftest import Run
from tests.service.processes import COUNTING_PROGRAM, Workers, add, exit_code_within, job_of, signal_until, with_store
from tests.support.proxy import Proxy

LINGERING = ("tests.service.lingering",)
HASTY = Timings(final_timeout=0.5, final_calls_time=0.1, exit_timeout=1.5)
SLACK = 3.0
"""Seconds for a slow machine; a blocked loop took half a minute and more."""


def test_the_time_limits_of_a_stop_fit_together() -> None:
    assert DEFAULT_TIMINGS.final_timeout - DEFAULT_TIMINGS.final_calls_time > KILL_DELAY_SECONDS, (
        "a stopping worker waits a little longer for its programs"
    )
    assert DEFAULT_TIMINGS.final_timeout < DEFAULT_TIMINGS.exit_timeout - DEFAULT_TIMINGS.forced_exit_margin, (
        "a worker that is not stuck ends in order"
    )
    assert DEFAULT_TIMINGS.lease_release_timeout < DEFAULT_TIMINGS.forced_exit_margin - DEFAULT_TIMINGS.kill_margin, (
        "a child gives back what it holds before it is killed"
    )


def test_a_blocked_loop_does_not_outlast_the_grace_by_more_than_seconds(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    workers = Workers(url, tmp_path)
    job_id = add(url, "blocker", '{"seconds": 120}')
    giving = replace(HASTY, lease_release_timeout=60.0)
    started = workers.start("--log-level", "debug", "--grace", "0", program=COUNTING_PROGRAM, timings=giving)
    try:
        workers.wait_for("Started task")
        signal_until(started, signal.SIGTERM, lambda: "request 1" in workers.output())
        assert exit_code_within(started, HASTY.exit_timeout + SLACK) == exit_codes.FAILURE
    finally:
        workers.destroy()
    job = job_of(url, job_id)
    assert (job.state, job.attempts, job.resets) == (State.QUEUED, 0, 0)


def test_a_store_that_stops_answering_does_not_delay_a_stopping_worker(postgres_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_id = add(postgres_url, "gated", f'{{"gate": "{gate}"}}')
    with Proxy(postgres_url) as proxy:
        workers = Workers(proxy.url, tmp_path)
        started = workers.start("--log-level", "debug", "--grace", "1s", timings=HASTY)
        try:
            workers.wait_for("Started task")
            for role in ("claim", "settle", "heart", "listen"):
                proxy.silence_next_request(role)
            started.send_signal(signal.SIGTERM)
            gate.touch()
            code = exit_code_within(started, HASTY.exit_timeout + SLACK)
            assert code == exit_codes.FAILURE, "the driver's own patience is five seconds"
        finally:
            workers.destroy()
    assert f"Not recorded: task {job_id} (gated) succeeded" in workers.output(), workers.output()


def test_a_process_that_exits_slowly_after_its_work_has_not_failed(tmp_path: Path) -> None:
    """Exit handlers of the tasks' own, or of what they import, may take their time."""
    workers = Workers(f"sqlite:///{tmp_path}/queue.db", tmp_path)
    started = workers.start("--grace", "0", program=LINGERING)
    try:
        workers.wait_for("looking for jobs")
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == exit_codes.OK
    finally:
        workers.destroy()


def test_a_child_that_exits_slowly_after_its_work_has_ended_in_order(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with_store(url, lambda store: store.inspect.counts())
    store = StoreSettings(connection=ResolvedStore(url, "a test"))
    order = ChildOrder(WorkerSettings(store=store, app="tests.service.work:app").to_json(), "child")
    with subprocess.Popen([sys.executable, "-m", *LINGERING, "child"], stdin=subprocess.PIPE) as child:
        try:
            assert child.stdin is not None
            child.stdin.write(msgspec.json.encode(order) + b"\ndrain\n")
            child.stdin.flush()
            assert child.wait(60) == ORDERLY_EXIT_OFFSET + exit_codes.OK
        finally:
            child.kill()


@pytest.mark.parametrize("supervisor", ["gone before the child began", "ended, but still the parent"])
def test_a_child_without_a_supervisor_removes_the_folder(supervisor: str, tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path}/queue.db", tmp_path / "reports"
    folder.mkdir()
    with_store(url, lambda store: store.inspect.counts())
    settings = WorkerSettings(
        store=StoreSettings(connection=ResolvedStore(url, "a test")), app="tests.service.work:app"
    )
    with subprocess.Popen([sys.executable, "-c", ""]) as died:
        died.wait(60)
    parent = died.pid if supervisor.startswith("gone") else os.getpid()
    order = ChildOrder(settings.to_json(), "child", str(folder), parent)
    subprocess.run(
        [sys.executable, "-m", "stowhand.service.child"],
        input=msgspec.json.encode(order) + b"\n",
        timeout=60,
        check=False,
    )
    assert not folder.exists()


class Fake:
    """As much of a worker as a stopper knows."""

    def __init__(self) -> None:
        self.options = WorkerOptions(grace=7.0)
        self.stops: list[bool] = []

    def stop(self, *, now: bool) -> None:
        self.stops.append(now)


def test_a_child_obeys_its_supervisor_with_a_blocked_loop_and_after_a_signal(run: Run) -> None:
    async def scenario() -> None:
        worker, bounds = Fake(), list[float]()
        stopper = Stopper(worker, lambda: None, bounds.append)  # type: ignore[arg-type]
        stopper.request_stop()
        reader = threading.Thread(target=stopper.drain)
        reader.start()
        reader.join()  # the loop runs on only now
        assert bounds == [7.0], "the same wish, heard from two sides"
        reader = threading.Thread(target=stopper.now)
        reader.start()
        reader.join()
        assert bounds == [7.0, 0.0]
        await asyncio.sleep(0)
        assert worker.stops == [False, True]

    run(scenario())


class Heart:
    """Gives back what dead children held, once."""

    def __init__(self, held: Sequence[ResetJob]) -> None:
        self._held = [held]

    async def reset_worker(self, name: str) -> Sequence[ResetJob]:
        return self._held.pop() if self._held else ()

    async def close(self) -> None: ...


def _supervisor(url: str, held: Sequence[ResetJob] = ()) -> Supervisor:
    settings = WorkerSettings(store=StoreSettings(connection=ResolvedStore(url, "a test")), processes=2)
    heartbeats = Heart(held)
    return Supervisor(settings, lambda: heartbeats, Events())  # type: ignore[arg-type, return-value]


def test_an_unreachable_store_ends_a_child_at_the_start_and_restarts_it_later(run: Run) -> None:
    async def scenario() -> None:
        code = exit_codes.STORE_UNREACHABLE
        early, late = _supervisor("sqlite:///x"), _supervisor("sqlite:///x")
        assert early._ends_with(code)
        assert early.children.is_stopping
        late._started_at -= DEFAULT_TIMINGS.min_steady_time + 1
        assert not late._ends_with(code)
        assert not late.children.is_stopping
        late.request_stop()
        assert late._ends_with(code)
        assert late._code == exit_codes.OK, "it held nothing"
        assert late._ends_with(exit_codes.SCHEMA_UNSUITABLE), "that will not pass by itself"

    run(scenario())


def test_the_first_process_of_a_container_obeys_a_signal_during_its_start(tmp_path: Path) -> None:
    """The kernel keeps from process 1 every signal that it has no handler for."""
    inside = ["unshare", "--pid", "--fork", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no process namespaces here")
    (tmp_path / "tasks").mkdir()
    loading = tmp_path / "loading"
    (tmp_path / "tasks" / "slow.py").write_text(
        f"import pathlib, time\npathlib.Path({str(loading)!r}).touch()\ntime.sleep(60)\nasync def slow(): pass\n"
    )
    command = [*inside, "--kill-child", sys.executable, "-m", "stowhand.cli", "worker", "-c", "sqlite:///queue.db"]
    outer = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not loading.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        first = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])
        os.kill(first, signal.SIGTERM)
        assert outer.wait(60) == 128 + signal.SIGTERM
    finally:
        outer.kill()
        outer.wait()


@pytest.mark.parametrize(
    ("held", "code"),
    [((), exit_codes.OK), ((ResetJob(7, "deaf", State.QUEUED, "w"),), exit_codes.FAILURE)],
    ids=["before they work", "whose handler lets signals kill"],
)
def test_a_signal_that_kills_all_processes_is_a_failure_where_it_ends_a_job(
    run: Run, monkeypatch: pytest.MonkeyPatch, held: Sequence[ResetJob], code: int
) -> None:
    async def scenario() -> int:
        supervisor, made = _supervisor("sqlite:///x", held), asyncio.Queue[asyncio.subprocess.Process]()

        async def start(slot: Slot) -> Child:
            process = await asyncio.create_subprocess_exec("sleep", "60", stdin=asyncio.subprocess.PIPE)
            made.put_nowait(process)
            return Child(process)

        monkeypatch.setattr(supervisor.children, "_start", start)
        running = asyncio.create_task(supervisor.run())
        both = [await made.get(), await made.get()]
        supervisor.request_stop()
        for one in both:
            one.terminate()
        return await running

    assert run(scenario()) == code
