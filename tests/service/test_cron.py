"""Recurring tasks with real processes and real stores: shared work, signals, a supervisor, lost connections."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stowhand.app.app import App
from stowhand.clock import wall_clock
from stowhand.cron.crontab import parse_crontab
from stowhand.cron.scheduler import Scheduler
from stowhand.events import CronScheduled, CronStarted, Events, SchedulingFailed
from stowhand.jobs.job import Job, State
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import open_store
from tests.conftest import Run
from tests.service.processes import Workers, children_of, with_store
from tests.support.proxy import Proxy

FILLED = "* * * * * innocent ?fill=1d {number: 1}"


@pytest.fixture
def crontab(tmp_path: Path) -> Path:
    return tmp_path / "crontab"


@pytest.mark.parametrize("count", [2, 5])
def test_identical_crontabs_make_one_job_per_tick(url: str, workers: Workers, crontab: Path, count: int) -> None:
    crontab.write_text(FILLED)
    began = _known_since(url, FILLED, hours=3)
    for _ in range(count):
        workers.start("--crontab", str(crontab))
    for number in range(count):
        workers.wait_for("Scheduling 1 recurring task", number)
    ticks = Counter(tick for tick in _ticks(url) if tick.endswith("*"))
    assert set(ticks.values()) == {1}
    assert 179 <= len(ticks) <= 180 + _minutes_since(began)
    jobs = [workers.output(number).partition("backfilled ")[2].split(" ")[0] for number in range(count)]
    assert sum(int(number or 0) for number in jobs) == len(ticks), "each by one of them"


def test_a_live_minute_is_scheduled_once_by_several(url: str, workers: Workers, crontab: Path) -> None:
    crontab.write_text("* * * * * innocent {number: 1}")
    ahead = crontab.with_name("ahead")
    _shift(ahead, 3600.0)
    for _ in range(2):
        workers.start("--crontab", str(crontab), program=("tests.service.shifted", str(ahead)))
    for number in range(2):
        workers.wait_for("Scheduling 1 recurring task", number)
    minute = _shift(ahead, 3600.0, until_minute=1.5)
    for process in workers.processes:
        process.send_signal(signal.SIGHUP)  # looks at the store's clock, and sleeps until the minute that is near now
    _wait_for(lambda: minute in {job.run_at for job in _jobs(url)}, workers)
    _wait_for(lambda: all(job.state is State.COMPLETED for job in _jobs(url)), workers)
    jobs = _jobs(url)
    assert [json.loads(job.payload_text)["_cron"]["backfilled"] for job in jobs] == [False] * len(jobs)
    assert len({job.run_at for job in jobs}) == len(jobs), "never two for one minute"
    (live,) = (job for job in jobs if job.run_at == minute)
    assert timedelta(0) <= live.created_at - minute < timedelta(seconds=20), "and on time"
    assert "Scheduled task" in workers.output(0) + workers.output(1)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_hup_reads_the_crontab_again_and_a_bad_one_keeps_the_old(
    url: str, workers: Workers, crontab: Path, processes: str
) -> None:
    crontab.write_text("0 4 1 1 * innocent ?id=first {number: 1}")
    process = workers.start("--crontab", str(crontab), "--processes", processes)
    workers.wait_for("Scheduling 1 recurring task: 'first'")
    workers.wait_for("looking for jobs")
    crontab.write_text("nonsense\n0 4 1 1 * innocent ?id=second {number: 1}\n61 * * * * innocent\n")
    process.send_signal(signal.SIGHUP)
    workers.wait_for("crontab line 3")
    assert "keeping the loaded one ('first')" in workers.output()
    assert "crontab line 1" in workers.output(), "all that is wrong"
    crontab.write_text("0 4 1 1 * innocent ?id=first {number: 1}\n0 4 1 1 * missing ?id=second\n")
    process.send_signal(signal.SIGHUP)
    workers.wait_for("Scheduling 2 recurring tasks: 'first', 'second'")
    assert "Reloaded the crontab: 'first', 'second'" in workers.output()
    assert "no task 'missing' here" in workers.output()
    assert _known(url) == ["first", "second"]
    process.terminate()
    assert process.wait(60) == 0


def test_a_supervisor_schedules_while_its_children_die(url: str, workers: Workers, crontab: Path) -> None:
    crontab.write_text(FILLED)
    process = workers.start("--crontab", str(crontab), "--processes", "2")
    workers.wait_for("Scheduling 1 recurring task")
    _wait_for(lambda: workers.output().count("looking for jobs") == 2, workers)
    for child in children_of(process):
        child.kill()
    _wait_for(lambda: workers.output().count("looking for jobs") == 4, workers)
    assert workers.output().count("Scheduling 1 recurring task") == 1, "children schedule nothing"
    process.terminate()
    assert process.wait(60) == 0


def test_a_bad_crontab_stops_the_start_with_all_its_lines(url: str, workers: Workers, crontab: Path) -> None:
    crontab.write_text("61 * * * * innocent\n* * * * innocent\n")
    assert workers.start("--crontab", str(crontab)).wait(60) == 2
    assert "line 1" in workers.output()
    assert "line 2" in workers.output()
    assert workers.start("--crontab", str(crontab.with_name("missing")), "--processes", "2").wait(60) == 2
    assert "No such file" in workers.output(1)


def test_once_schedules_what_is_due_and_works_it_off(url: str, workers: Workers, crontab: Path) -> None:
    crontab.write_text(FILLED)
    began = _known_since(url, FILLED, hours=1)
    for number, processes in enumerate(("1", "2")):
        assert workers.start("--crontab", str(crontab), "--once", "--processes", processes).wait(60) == 0
        assert workers.output(number).count("Scheduling 1 recurring task") == 1
    jobs = _jobs(url)
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert 60 <= len(jobs) <= 60 + _minutes_since(began)
    assert len({job.run_at for job in jobs}) == len(jobs)


@pytest.mark.parametrize("to", [b"cron_enter", b"COMMIT\0"])
def test_a_lost_reply_neither_loses_nor_repeats_a_tick(run: Run, postgres_url: str, to: bytes) -> None:
    began = _known_since(postgres_url, FILLED, hours=20)
    with Proxy(postgres_url) as proxy:

        async def scenario() -> list[str]:
            store = open_store(proxy.url, StoreOptions())
            await store.open()
            proxy.lose_next_reply("schema", to)  # the connection that looked at the schema is used again
            events, started = Events(), asyncio.Event()
            lines: list[object] = []
            events.on(CronStarted, lambda event: started.set())
            for kind in (SchedulingFailed, CronScheduled):
                events.on(kind, lines.append)
            scheduler = Scheduler(store, parse_crontab(FILLED), events)
            running = asyncio.create_task(scheduler.run())
            await asyncio.wait_for(started.wait(), 40)
            scheduler.stop()
            await running
            await store.close()
            assert proxy.lost.is_set()
            assert any(isinstance(event, SchedulingFailed) for event in lines)
            return await asyncio.to_thread(_ticks, postgres_url)

        ticks = run(scenario(), 60)
    backfilled = [tick for tick in ticks if tick.endswith("*")]
    assert len(set(backfilled)) == len(backfilled)
    assert 1199 <= len(backfilled) <= 1200 + _minutes_since(began)


def test_an_app_schedules_in_the_background(run: Run, url: str) -> None:
    app = App(url)
    ran: list[int] = []

    @app.task
    async def count(number: int) -> None:
        ran.append(number)

    app.cron("* * * * *", count, {"number": 1}, backfill_period=timedelta(hours=1))
    spec = app.cron_items[0].spec
    _known_since(url, spec, minutes=5)

    async def scenario() -> None:
        async with app, app.run_in_background(crontab="* * * * * count ?id=other&fill=1h {number: 2}") as worker:
            deadline = worker._clock.monotonic() + 25
            while len(ran) < 5:
                assert worker._clock.monotonic() < deadline, ran
                await asyncio.sleep(0.02)

    run(scenario())
    assert set(ran) <= {1, 2}
    assert _known(url) == ["count", "other"]


def _known_since(url: str, crontab: str, **ago: int) -> datetime:
    """Have the items known for so long; gives the moment until which."""
    now = wall_clock()
    since = now - timedelta(**ago)

    async def register() -> None:
        store = open_store(url, StoreOptions(pinned=lambda: since))
        await store.schema.install()
        await store.open()
        await store.timetable.register([(item.identifier, item.spec) for item in parse_crontab(crontab)])
        await store.close()

    asyncio.run(register())
    return now


def _minutes_since(moment: datetime) -> int:
    """How many have begun since then."""
    return int(wall_clock().timestamp() // 60 - moment.timestamp() // 60)


def _shift(ahead: Path, seconds: float, until_minute: float | None = None) -> datetime:
    """Let the stores' clock be so far ahead, or a little further: just before a whole minute, which is given."""
    shown = wall_clock() + timedelta(seconds=seconds)
    minute = shown.replace(second=0, microsecond=0) + timedelta(minutes=1)
    if until_minute is not None:
        if (minute - shown).total_seconds() < until_minute:
            minute += timedelta(minutes=1)
        seconds += (minute - shown).total_seconds() - until_minute
    fresh = ahead.with_name("fresh")
    fresh.write_text(str(seconds))
    fresh.replace(ahead)  # whoever reads it sees one or the other
    return minute


def _jobs(url: str) -> list[Job]:
    async def look(store: QueueStore) -> list[Job]:
        return list(await store.inspect.list(JobFilter(states=tuple(State), limit=100_000)))

    return with_store(url, look)


def _ticks(url: str) -> list[str]:
    ticks = []
    for job in _jobs(url):
        cron = json.loads(job.payload_text)["_cron"]
        assert datetime.fromisoformat(cron["ts"]).astimezone(UTC) == job.run_at
        ticks.append(cron["ts"] + ("*" if cron["backfilled"] else ""))
    return ticks


def _known(url: str) -> list[str]:
    async def look(store: QueueStore) -> list[str]:
        return [item.identifier for item in await store.timetable.known_items()]

    return with_store(url, look)


def _wait_for(reached: Callable[[], bool], workers: Workers) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, "\n".join(workers.output(at) for at in range(len(workers.processes)))
        time.sleep(0.05)
