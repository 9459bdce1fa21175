"""Metrics of a flow: what its workers did, and what stands where."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from stowhand import Cancel
from stowhand.errors import Poison, StoreError, StoreUnreachable
from stowhand.events import JobLost, JobsReset
from stowhand.flows import DelayError, Flow, FlowJob, FlowMonitor, QueueCount
from stowhand.jobs.job import State
from stowhand.jobs.lease import ResetJob
from stowhand.observe.flow_metrics import FlowMetrics
from stowhand.protocols.flow_shape import FlowShape, Limiter, Queue
from stowhand.service.run_all import run_all
from tests.conftest import Run

QUEUES = [Queue("first", next_queue="second", max_retries=1, delayable=True), Queue("second")]


class Shop:
    """A registry, and the metrics of the flow ``demo``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = FlowMetrics(self.registry)

    def __call__(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"stowhand_flow_{name}", {"flow": "demo", **labels})
        assert value is not None, f"{name} {labels}: not among\n{generate_latest(self.registry).decode()}"
        return value

    def ended(self, queue: str) -> dict[str, float]:
        """How often, by outcome; without those that have not happened."""
        outcomes = ("ok", "retry", "failed", "poison", "snoozed", "canceled", "lost")
        result = {outcome: self("jobs_total", queue=queue, outcome=outcome) for outcome in outcomes}
        return {outcome: number for outcome, number in result.items() if number}


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the flow's jobs are."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/flow.db"
    url: str = request.getfixturevalue("redis_url")
    return url


async def act(job: FlowJob) -> object:
    """As its attribute says."""
    match job["do"]:
        case "fail":
            raise ValueError("no")
        case "poison":
            raise Poison("never")
        case "cancel":
            return Cancel("unwanted")
        case "delay":
            raise DelayError("not now", delay=60)
    return {}


def test_executions_are_counted_by_how_they_ended(run: Run, place: str) -> None:
    shop = Shop()

    async def story() -> None:
        flow = Flow("demo", place, QUEUES)
        shop.metrics.of_flow(flow)
        assert shop("jobs_total", queue="first", outcome="failed") == 0, "a first failure is to be a rise"
        assert shop("resets_total") == 0
        flow.create_workers("first", act)
        async with flow:
            for do in ("go", "go", "fail", "poison", "cancel", "delay"):
                await flow.create_job({"do": do})
            await flow.start_all()
            while shop("job_duration_seconds_count", queue="first") < 7:  # noqa: ASYNC110 - what is asked is the metric
                await asyncio.sleep(0.01)
            await flow.halt()
            assert not shop.ended("second"), "nobody has served it"
            flow.monitor.on_counts.append(lambda counts: flow.monitor.stop())
            await run_all(flow.monitor)

    run(story())
    assert shop.ended("first") == {"ok": 2, "retry": 1, "failed": 1, "poison": 1, "canceled": 1, "snoozed": 1}
    assert 0 < shop("job_duration_seconds_sum", queue="first") < 30
    standing = {"waiting": 2, "processing": 0, "delayed": 0, "parked": 0}
    for state, number in standing.items():
        assert shop("queue_jobs", queue="second", priority="1", state=state) == number
    assert shop("queue_jobs", queue="first", priority="1", state="delayed") == 1


def test_losses_and_resets_are_counted_for_this_flow_only(tmp_path: Path) -> None:
    shop = Shop()
    flow = Flow("demo", f"sqlite:///{tmp_path}/flow.db", QUEUES)
    shop.metrics.of_flow(flow)
    first, second = (flow.engine.task(queue) for queue in flow.shape.all_queues())
    flow.events.emit(JobLost("w", 1, first, "late"))
    taken = [(second, State.QUEUED), (second, State.FAILED), ("another", State.QUEUED), ("another", State.FAILED)]
    flow.events.emit(JobsReset(tuple(ResetJob(number, task, state) for number, (task, state) in enumerate(taken))))
    flow.events.emit(JobLost("w", 1, "another", "late"))
    assert (shop.ended("first"), shop.ended("second")) == ({"lost": 1}, {"failed": 1})
    assert shop("resets_total") == 2


def test_several_flows_have_one_set_of_metrics(tmp_path: Path) -> None:
    shop = Shop()
    for name in ("demo", "other"):
        shop.metrics.of_flow(Flow(name, f"sqlite:///{tmp_path}/flow.db", QUEUES))
    assert shop("resets_total", flow="other") == 0


class Shaky:
    """What a monitor asks of an engine; every second look fails. No server does that at the right moment."""

    def __init__(self) -> None:
        self.shape = FlowShape(name="demo", queues=(Queue("first", limiter=Limiter(reservoir=1, interval=1)),))
        self.looks = 0

    async def open(self) -> Sequence[str]:
        return []

    async def sweep(self) -> int:
        self.looks += 1
        if self.looks % 2:
            raise StoreUnreachable("gone")
        return 3

    async def counts(self) -> Sequence[QueueCount]:
        return [QueueCount(queue="first", priority=1, waiting=self.looks)]


def test_a_monitor_reports_its_errors_and_the_jobs_it_has_reset(run: Run) -> None:
    engine: Any = Shaky()
    monitor = FlowMonitor(engine, 0.001)
    troubles: list[StoreError] = []
    looks: list[tuple[int, int]] = []

    def looked(counts: Sequence[QueueCount]) -> None:
        looks.append((counts[0].waiting, monitor.reset_jobs))
        if len(looks) == 2:
            monitor.stop()

    monitor.on_counts.append(looked)
    monitor.on_failed_round.append(troubles.append)
    run(monitor.run())
    assert looks == [(2, 3), (4, 6)]
    assert [str(error) for error in troubles] == ["gone", "gone"]
    assert monitor.failures == 0
