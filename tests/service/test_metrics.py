"""Metrics of workers: real processes on both stores, of which some die."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.mmap_dict import mmap_key

from stowhand.events import Events, JobLeft, JobLost, JobsReset, JobStarted, TasksReloaded, WorkerStarted
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import ResetJob
from stowhand.jobs.lifecycle import Cancel, Fail, Outcome, Retry, Snooze
from stowhand.observe.exposition import EXITED_PROCESSES, Exposition
from stowhand.observe.metric_definitions import JOB_BUCKETS_SECONDS
from stowhand.observe.prometheus import MmapedDict
from stowhand.observe.queue_metrics import QueueMetrics
from stowhand.observe.worker_metrics import MAX_KINDS, WorkerMetrics
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.counts import (
    MAX_EXACT_COUNT_FOR_METRICS,
    BoundedCount,
    CronFigures,
    Figures,
    LimitCounts,
    LiveCounts,
    Pauses,
)
from stowhand.protocols.options import WorkerOptions
from stowhand.protocols.queue_store import QueueStore
from stowhand.testing import MemoryStore
from stowhand.worker.worker import Worker
from tests.service.pages import Pages, samples
from tests.service.processes import SIGNAL_SPACING_SECONDS, Workers, with_store
from tests.support.proxy import Proxy

DONE = "stowhand_worker_jobs_processed_total"
RUNNING = "stowhand_worker_in_flight"


@pytest.fixture
def metrics() -> tuple[CollectorRegistry, WorkerMetrics]:
    registry = CollectorRegistry()
    return registry, WorkerMetrics(registry)


def add(url: str, *payloads: str, task: str = "innocent") -> None:
    async def enqueue(store: QueueStore) -> None:
        for payload in payloads:
            await store.jobs.enqueue(NewJob(task=task, payload=payload))

    with_store(url, enqueue)


def test_a_worker_shows_counts_of_finished_and_waiting_jobs(url: str, workers: Workers, tmp_path: Path) -> None:
    crontab = tmp_path / "crontab"
    crontab.write_text("0 4 1 1 * innocent ?id=yearly {number: 1}\n")
    add(url, "{}", task="nobody_has_it")
    add(url, *['{"number": 1}'] * 3, '{"number": 2, "pause": 60}')
    workers.start("--http", "0", "-j", "2", "--crontab", str(crontab))
    pages = Pages(workers)
    expected = {
        'stowhand_queue_cron_unscheduled{item="yearly"}': 0,
        'stowhand_queue_cron_missed{item="yearly"}': 0,
        f'{DONE}{{kind="innocent",outcome="ok"}}': 3,
        f'{RUNNING}{{kind="innocent"}}': 1,
        'stowhand_worker_job_duration_seconds_count{kind="innocent"}': 3,
        "stowhand_worker_claim_jobs_sum": 4,
        "stowhand_worker_settle_jobs_sum": 3,
    }
    pages.wait(lambda pages: expected.items() <= pages.metrics().items())
    shown = pages.metrics()
    assert shown["stowhand_worker_claim_duration_seconds_count"] >= 1
    assert shown["stowhand_worker_settle_duration_seconds_count"] >= 1
    info = next(name for name in shown if name.startswith("stowhand_worker_info"))
    assert f'store="{url.partition(":")[0]}"' in info
    assert shown['stowhand_queue_jobs{state="queued"}'] >= 1
    # What runs and what is over are two looks: a job that ended between them is in both until the next one.
    pages.wait(
        lambda pages: sum(v for name, v in pages.metrics().items() if name.startswith("stowhand_queue_jobs")) == 5
    )
    assert shown['stowhand_queue_task_jobs{state="due",task="nobody_has_it"}'] == 1
    assert 0 < shown['stowhand_queue_oldest_due_seconds{queue="default"}'] < 300
    assert shown['stowhand_worker_job_wait_seconds_count{kind="innocent"}'] == 4
    assert 0 < shown['stowhand_worker_job_wait_seconds_sum{kind="innocent"}'] < 1200


def test_metrics_of_several_processes_are_summed_without_dead_ones(
    sqlite_workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    url, victim = sqlite_workers.url, tmp_path / "victim"
    add(url, *[f'{{"number": {number}, "pause": 0.2}}' for number in range(8)])
    process = sqlite_workers.start("--http", "0", "--processes", "2", "-j", "2")
    pages = Pages(sqlite_workers)
    done = f'{DONE}{{kind="innocent",outcome="ok"}}'
    pages.wait(lambda pages: pages.metrics().get(done) == 8)
    add(url, f'{{"file": "{victim}", "seconds": 300}}', task="linger")
    running = f'{RUNNING}{{kind="linger"}}'
    pages.wait(lambda pages: pages.metrics().get(running) == 1 and victim.exists())
    folders = list(tmp_path.glob("stowhand-*"))
    assert len(folders) == 1
    assert folders[0].stat().st_mode & 0o077 == 0, "private"
    dead = int(victim.read_text())
    os.kill(dead, signal.SIGKILL)
    pages.wait(lambda pages: pages.metrics().get('stowhand_worker_resets_total{state="queued"}') == 1)
    pages.wait(lambda pages: pages.metrics().get(running) == 1)  # its second run, and the first is forgotten
    shown = pages.metrics()
    assert shown[done] == 8, "what the dead have counted is kept"
    assert shown["stowhand_worker_settle_jobs_sum"] == 8
    pages.wait(lambda pages: not list(folders[0].glob(f"*_{dead}.db")))
    pages.wait(lambda pages: len(pages.json("/healthz")[1]["processes"]) == 2)
    process.send_signal(signal.SIGTERM)
    sqlite_workers.wait_for("Stopping; waiting for 1 running job")
    time.sleep(SIGNAL_SPACING_SECONDS)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert not folders[0].exists()


def test_children_whose_parent_was_killed_remove_the_folder(
    sqlite_workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    add(sqlite_workers.url)
    process = sqlite_workers.start("--http", "0", "--processes", "2")
    pages = Pages(sqlite_workers)
    pages.wait_until_ready()
    (folder,) = tmp_path.glob("stowhand-*")
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_the_extra_health_works_and_metrics_say_what_to_install(sqlite_workers: Workers) -> None:
    add(sqlite_workers.url)
    sqlite_workers.start("--http", "0", program=("tests.service.without_metrics",))
    pages = Pages(sqlite_workers)
    pages.wait_until_ready()
    assert pages.get("/metrics") == (501, b"metrics need prometheus-client: pip install 'stowhand[metrics]'\n")
    assert pages.get("/healthz")[0] == 200


def test_a_missing_folder_for_metrics_is_reported_with_a_fix(
    sqlite_workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "nowhere"))
    process = sqlite_workers.start("--http", "0")
    assert process.wait(60) == 2
    assert "make that folder, or unset the variable" in sqlite_workers.output()
    assert "Traceback" not in sqlite_workers.output()


def test_figures_are_absent_during_an_outage(postgres_url: str, tmp_path: Path) -> None:
    add(postgres_url)
    with Proxy(postgres_url) as proxy:
        started = Workers(proxy.url, tmp_path)
        try:
            started.start("--http", "0")
            pages = Pages(started)
            pages.wait_until_ready()
            assert any(name.startswith("stowhand_queue") for name in pages.metrics())
            proxy.__exit__()
            pages.wait(
                lambda pages: any("the store does not answer" in said for said in pages.json("/readyz")[1]["reasons"])
            )
            pages.wait(lambda pages: not any(name.startswith("stowhand_queue") for name in pages.metrics()))
            assert pages.metrics()["stowhand_worker_claim_duration_seconds_count"] >= 1
            status, said = pages.json("/readyz")
            assert status == 503
            assert said["store_heard_seconds_ago"] > 0
            assert pages.get("/healthz")[0] == 200, "starting it anew would not help"
        finally:
            started.destroy()


def test_every_outcome_is_counted(metrics: tuple[CollectorRegistry, WorkerMetrics]) -> None:
    registry, counted = metrics
    outcomes: dict[str, Outcome | None] = {
        "ok": None,
        "retry": Retry("again", 1000.0),
        "failed": Fail("no"),
        "poison": Fail("no", poison=True),
        "snoozed": Snooze(1000.0),
        "canceled": Cancel(),
    }

    async def handle(attempt: Attempt[Job], job: Job) -> object:
        return outcomes[job.task]

    async def work() -> None:
        store = MemoryStore()
        for task in outcomes:
            await store.jobs.enqueue(NewJob(task=task))
        options = WorkerOptions(once=True, tasks=tuple(outcomes))
        await Worker(store, handle, options, events=counted.of(Events())).run()

    asyncio.run(work())
    shown = samples(generate_latest(registry))
    for task in outcomes:
        assert shown[f'{DONE}{{kind="{task}",outcome="{task}"}}'] == 1
        assert shown[f'{RUNNING}{{kind="{task}"}}'] == 0


def test_ends_without_a_settlement_of_a_worker_are_counted(metrics: tuple[CollectorRegistry, WorkerMetrics]) -> None:
    registry, counted = metrics
    events = counted.of(Events())
    events.emit(JobLost("w", 1, "t", "late"))
    events.emit(JobsReset((ResetJob(1, "t", State.QUEUED), ResetJob(2, "t", State.FAILED))))
    counted.lag(0.3)
    counted.lag(-0.1)
    shown = samples(generate_latest(registry))
    assert shown[f'{DONE}{{kind="t",outcome="lost"}}'] == shown["stowhand_worker_lost_leases_total"] == 1
    assert shown['stowhand_worker_resets_total{state="failed"}'] == 1
    assert shown['stowhand_worker_loop_lag_seconds_bucket{le="0.25"}'] == 1
    assert shown["stowhand_worker_loop_lag_seconds_sum"] == pytest.approx(0.3)


def test_metrics_for_alerts_are_zero_before_the_first_event(
    metrics: tuple[CollectorRegistry, WorkerMetrics],
) -> None:
    """``rate`` and ``increase`` see nothing in a series that begins with 1: the first failure would raise no alert."""
    registry, counted = metrics
    events = counted.of(Events())
    events.emit(WorkerStarted("w", ("one",)))
    events.emit(TasksReloaded("w", ("one", "two"), None))
    shown = samples(generate_latest(registry))
    for task in ("one", "two"):
        for outcome in ("ok", "retry", "failed", "poison"):
            assert shown[f'{DONE}{{kind="{task}",outcome="{outcome}"}}'] == 0
    assert shown['stowhand_worker_resets_total{state="failed"}'] == shown["stowhand_worker_lost_leases_total"] == 0


def test_kinds_are_bounded(metrics: tuple[CollectorRegistry, WorkerMetrics]) -> None:
    registry, counted = metrics
    events = counted.of(Events())
    for number in range(MAX_KINDS + 50):
        events.emit(JobStarted("w", 1, f"t{number}", 1))
    shown = samples(generate_latest(registry))
    assert shown[f'{RUNNING}{{kind="other"}}'] == 50
    events.emit(WorkerStarted("w", ("known",)))
    events.emit(TasksReloaded("w", ("new",), None))
    for task in ("known", "new", "strange"):
        events.emit(JobStarted("w", 1, task, 1))
    shown = samples(generate_latest(registry))
    assert [shown.get(f'{RUNNING}{{kind="{task}"}}') for task in ("known", "new", "strange", "other")] == [
        1,
        1,
        None,
        51,
    ]


def test_the_in_flight_gauge_uses_the_kind_from_the_start_of_the_job(
    metrics: tuple[CollectorRegistry, WorkerMetrics],
) -> None:
    registry, counted = metrics
    events = counted.of(Events())
    events.emit(WorkerStarted("first", ("known",)))
    events.emit(JobStarted("takes any", 1, "late", 1))
    events.emit(WorkerStarted("second", ("late",)))
    events.emit(JobStarted("second", 1, "late", 1))
    events.emit(JobLeft("takes any", 1, "late"))
    shown = samples(generate_latest(registry))
    assert (shown[f'{RUNNING}{{kind="other"}}'], shown[f'{RUNNING}{{kind="late"}}']) == (0, 1)


def test_sums_of_dead_processes_are_merged_and_their_gauges_deleted(tmp_path: Path) -> None:
    for _ in range(3):
        dead = subprocess.Popen(["true"])
        dead.wait()
        for kind in ("counter", "gauge_all", "gauge_livesum"):
            file = MmapedDict(str(tmp_path / f"{kind}_{dead.pid}.db"))
            file.write_value(mmap_key(kind, f"{kind}_total" * (kind == "counter") or kind, [], [], "Some"), 2.0, 0.0)
            file.close()
    exposition = Exposition(lambda: None, lambda: None, tmp_path)
    for _ in range(2):
        assert samples(exposition.text()) == {"counter_total": 6}
    assert [file.name for file in tmp_path.iterdir()] == [f"counter_{EXITED_PROCESSES}.db"]


def test_the_buckets_of_durations_are_exponential() -> None:
    assert len(JOB_BUCKETS_SECONDS) == 12
    assert JOB_BUCKETS_SECONDS[:3] == (0.005, 0.0125, 0.03125)


def test_a_queue_that_cannot_be_counted_is_absent() -> None:
    registry = CollectorRegistry()
    QueueMetrics(lambda: None, lambda: None, registry)
    assert generate_latest(registry) == b""


def test_only_the_gauge_without_an_answer_is_absent() -> None:
    registry = CollectorRegistry()
    QueueMetrics(lambda: None, lambda: {"mail": 3.0}, registry)
    assert samples(generate_latest(registry)) == {
        'stowhand_queue_oldest_due_seconds{queue="default"}': 0,
        'stowhand_queue_oldest_due_seconds{queue="mail"}': 3,
    }


def test_an_empty_queue_has_series_with_zero_and_a_paused_one_is_marked(tmp_path: Path) -> None:
    async def read(store: QueueStore) -> Figures:
        await store.operate.pause_queue("mail")
        return await store.inspect.figures()

    figures = with_store(f"sqlite:///{tmp_path}/q.db", read)
    registry = CollectorRegistry()
    QueueMetrics(lambda: figures, dict, registry)
    shown = samples(generate_latest(registry))
    for queue, is_paused in (("default", 0), ("mail", 1)):
        assert shown[f'stowhand_queue_live_jobs{{queue="{queue}",state="due"}}'] == 0
        assert shown[f'stowhand_queue_oldest_due_seconds{{queue="{queue}"}}'] == 0
        assert shown[f'stowhand_queue_is_paused{{queue="{queue}"}}'] == is_paused


def test_tasks_and_queues_beyond_the_limit_are_one_series() -> None:
    many = [
        LiveCounts(name=f"t{number}", queued=BoundedCount(2), due=BoundedCount(1), failed=BoundedCount(3))
        for number in range(5)
    ]
    states = {
        State.QUEUED: BoundedCount(17),
        State.COMPLETED: BoundedCount(MAX_EXACT_COUNT_FOR_METRICS, is_lower_bound=True),
    }
    figures = Figures(
        states=states,
        tasks=[*many, LiveCounts(name=None, queued=BoundedCount(7), failed=BoundedCount(1, is_lower_bound=True))],
        serials=[LiveCounts(name="q", errored=BoundedCount(1))],
        queues=[],
        workers=[],
        paused={"q": datetime.fromtimestamp(2000, UTC)},
        pauses=Pauses(tasks={"t0": datetime.fromtimestamp(1000, UTC)}),
    )
    registry = CollectorRegistry()
    QueueMetrics(lambda: figures, lambda: None, registry, labels=2)
    shown = samples(generate_latest(registry))
    task = "stowhand_queue_task_jobs"
    assert {name for name in shown if name.startswith(task)} == {
        f'{task}{{state="{state}",task="{name}"}}'
        for state in ("waiting", "due", "running", "failed")
        for name in ("t0", "t1", "other")
        if (state, name) != ("failed", "other")
    }, "of what was not counted to its end there is no sample, rather than one that stands still"
    assert shown[f'{task}{{state="waiting",task="other"}}'] == 3 * 2 + 7
    assert shown['stowhand_queue_serial_jobs{serial="q",state="waiting"}'] == 1
    assert shown['stowhand_queue_jobs{state="queued"}'] == 17
    assert 'stowhand_queue_jobs{state="completed"}' not in shown
    assert shown["stowhand_queue_paused"] == 2
    assert shown["stowhand_queue_paused_since_timestamp_seconds"] == 1000


def test_limits_have_series_and_those_beyond_the_limit_are_one() -> None:
    names = {"a": 1, "b": 5, "c": 0, "d": 0}
    limits = [
        LimitCounts(name=name, slots=None if name == "a" else 4, used=1, waiting=BoundedCount(7), due=BoundedCount(due))
        for name, due in names.items()
    ]
    figures = Figures(states={}, tasks=[], serials=[], queues=[], workers=[], paused={}, limits=limits)
    registry = CollectorRegistry()
    QueueMetrics(lambda: figures, lambda: None, registry, labels=2)
    shown = samples(generate_latest(registry))
    jobs, slots = "stowhand_queue_limit_jobs", "stowhand_queue_limit_slots"
    assert {name: number for name, number in shown.items() if name.startswith("stowhand_queue_limit")} == {
        f'{jobs}{{limit="b",state="used"}}': 1,
        f'{jobs}{{limit="b",state="waiting"}}': 7,
        f'{jobs}{{limit="b",state="due"}}': 5,
        f'{slots}{{limit="b"}}': 4,
        f'{jobs}{{limit="a",state="waiting"}}': 7,
        f'{jobs}{{limit="a",state="due"}}': 1,
        f'{jobs}{{limit="other",state="used"}}': 2,
        f'{jobs}{{limit="other",state="waiting"}}': 14,
        f'{jobs}{{limit="other",state="due"}}': 0,
    }


def test_recurring_items_with_problems_are_listed_first() -> None:
    cron = CronFigures(known=("a", "b", "c", "d"), unscheduled=("c", "d"), missed={"d": datetime.now(UTC)})
    registry = CollectorRegistry()
    QueueMetrics(lambda: None, lambda: None, registry, cron=lambda: cron, labels=3)
    assert samples(generate_latest(registry)) == {
        **{
            f'stowhand_queue_cron_unscheduled{{item="{name}"}}': number
            for name, number in zip("acd", (0, 1, 1), strict=True)
        },
        **{
            f'stowhand_queue_cron_missed{{item="{name}"}}': number
            for name, number in zip("acd", (0, 0, 1), strict=True)
        },
        'stowhand_queue_cron_unscheduled{item="other"}': 0,
        'stowhand_queue_cron_missed{item="other"}': 0,
    }


def test_every_name_follows_the_convention(metrics: tuple[CollectorRegistry, WorkerMetrics]) -> None:
    registry, _ = metrics
    for metric in registry.collect():
        assert re.fullmatch(r"stowhand_worker_[a-z_]+", metric.name)
        if metric.type == "histogram":
            assert metric.name.endswith(("_seconds", "_jobs", "_leases"))
