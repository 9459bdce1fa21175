"""``App(flows=[…])``: the App's worker runs the workers of the flows beside its own jobs."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from stowhand import App
from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.flows import Flow, FlowJob, Queue, Stage
from stowhand.testing import MemoryStore
from tests.conftest import Run
from tests.service.flow_work import declared
from tests.service.processes import Workers, add, exit_code_within, wait_until_done

APP = ("--app", "tests.service.flow_work:app")


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/flow.db" if is_sqlite else str(request.getfixturevalue("redis_url"))
    monkeypatch.setenv("FLOW_PLACE", url)
    return url


@pytest.fixture
def workers(sqlite_workers: Workers, place: str) -> Workers:
    sqlite_workers._task_options = APP
    return sqlite_workers


async def create(file: Path) -> str:
    async with declared() as flow:
        return await flow.create_job({"file": str(file)})


async def state(job_id: str) -> Stage:
    async with declared() as flow:
        job = await flow.get_job(job_id)
        assert job is not None
        return job.state


@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_runs_jobs_of_both_and_drains_both(run: Run, workers: Workers, tmp_path: Path, processes: int) -> None:
    job_id = run(create(tmp_path / "go"))
    add(workers.url, "greet", "{}")
    process = workers.start("--processes", str(processes))
    workers.wait_for("also runs the flows of its App: served", times=processes)
    workers.wait_for("holding")
    wait_until_done(workers.url, 60)
    process.send_signal(signal.SIGTERM)
    workers.wait_for("Stopping; waiting for 1 running job")
    (tmp_path / "go").touch()
    assert exit_code_within(process, 60) == 0
    assert run(state(job_id)) is Stage.COMPLETED


def test_a_job_of_a_flow_is_returned_at_the_end_of_the_workers_grace(
    run: Run, workers: Workers, tmp_path: Path
) -> None:
    job_id = run(create(tmp_path / "never"))
    process = workers.start("--grace", "0.2")
    workers.wait_for("holding")
    process.send_signal(signal.SIGTERM)
    assert exit_code_within(process, 15) == 0  # the grace of the flow's worker is 25 s
    assert run(state(job_id)) is Stage.WAITING


def test_a_quiet_worker_claims_no_jobs_of_its_flows(run: Run, workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    process = workers.start()
    workers.wait_for("also runs the flows")
    process.send_signal(signal.SIGUSR2)
    workers.wait_for("Quiet: claiming nothing new", times=2)  # of the worker and of the flow's
    run(create(tmp_path / "go"))
    process.send_signal(signal.SIGUSR2)
    workers.wait_for("holding")
    output = workers.output()
    assert output.rindex("Claiming jobs again") < output.index("holding")


def test_an_error_that_ends_a_flows_worker_stops_the_process(
    run: Run, sqlite_workers: Workers, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_PLACE", redis_url)
    other = Flow("other", redis_url, [Queue("hold")], events=Events())
    other.create_workers("hold", lambda job: None)

    async def claim() -> None:
        await other.start_all()
        await other.stop_all()

    run(claim())
    sqlite_workers._task_options = APP
    assert exit_code_within(sqlite_workers.start(), 60) == 1
    assert "A worker of flow served ended: ConfigurationError" in sqlite_workers.output()


def test_an_embedded_worker_runs_the_flows(run: Run, place: str) -> None:
    async def story() -> None:
        flow = Flow("embedded", place, [Queue("one")], events=Events())
        app = App(store=MemoryStore(), flows=[flow])
        async with app:
            with pytest.raises(ConfigurationError, match="flow 'embedded' has no workers"):
                app.worker(events=Events())
            done = asyncio.Event()

            async def step(job: FlowJob) -> None:
                done.set()

            flow.create_workers("one", step, wait_timeout=0.2)
            with pytest.raises(ConfigurationError, match="leave out once"):
                app.worker(events=Events(), once=True)
            async with app.run_in_background(events=Events()):
                await flow.create_job()
                await done.wait()

    run(story())


def test_other_objects_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="flows: got 'orders'; use a list of Flow objects"):
        App(flows=["orders"])  # type: ignore[list-item]
