"""Chaos, small tier: real processes, a server of their own, kills and freezes by a seeded plan, and a clean ledger.

``CHAOS_SEED`` repeats a plan, and ``CHAOS_SCALE=10`` makes so many times the faults and half as many times the jobs.
What is shown: nothing lost, no settlement of a stale lease accepted, nothing stuck, attempts within bounds, no more
jobs at once than limits and serial keys allow, and no transition that breaks a rule of tests/support/history.py.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import open_store
from tests.chaos.ledger import Entry, executions, overlaps, read_ledger
from tests.chaos.nemesis import Fault, Fleet, Plan
from tests.chaos.work import LIMITS
from tests.support import history
from tests.support.history import Transition
from tests.support.servers import PostgresServer

SCALE = int(os.environ.get("CHAOS_SCALE", "1"))
JOBS = {
    task: count * max(SCALE // 2, 1)
    for task, count in {
        "step": 4000,
        "serial": 200,
        "at_once": 300,
        "customer": 250,
        "paced": 150,
        "paced_customer": 100,
    }.items()
}
"""The number of jobs of each task."""
KEYS = 5
TOTAL = sum(JOBS.values())
MAXIMA = {"serial": 1, "at_once": 3, "customer": 2}
KILLS, FREEZES, TERMINATED, CLOCK_STEPS = 10 * SCALE, 5 * SCALE, 5 * SCALE, SCALE
PAUSE = 0.03
LONG_PAUSE = 2.5
"""Seconds: longer than a lease, which heartbeats renew."""
RESETS = 100 * SCALE
"""More than faults: whom workers die under again and again by chance is not to be given up."""
DEADLINE = 200.0 * SCALE
OPTIONS = StoreOptions(history=3600.0)
COMPLETED = re.compile(r"Completed task (\d+) \(\w+\) with success")


@pytest.mark.timeout(300 * SCALE)
def test_a_sqlite_queue_loses_nothing_under_kills_and_freezes(tmp_path: Path, seed: int) -> None:
    """An execution that continues after its process was paused beyond its lease counts as ended with that lease."""
    chaos = Chaos(f"sqlite:///{tmp_path}/chaos.db", tmp_path, seed)
    clock = tmp_path / "clock"
    chaos.fleet.environment["CHAOS_CLOCK"] = str(clock)
    chaos.faults += [lambda: chaos.step_clock(lambda shift: _replace(clock, str(shift)))] * CLOCK_STEPS
    chaos.run()


@pytest.mark.durable
@pytest.mark.timeout(300 * SCALE)
def test_a_postgres_queue_loses_nothing_under_kills_freezes_and_a_server_restart(
    tmp_path: Path, seed: int, durable_postgres: PostgresServer
) -> None:
    """An execution that continues after its process was paused beyond its lease counts as ended with that lease."""
    chaos = Chaos(durable_postgres.url("postgres"), tmp_path, seed)
    chaos.faults += [lambda: terminate_backend(durable_postgres, chaos.rng)] * TERMINATED
    chaos.faults += [lambda: restart(durable_postgres)] * SCALE
    chaos.faults += [lambda: chaos.step_clock(lambda shift: step_postgres(durable_postgres, shift))] * CLOCK_STEPS
    chaos.forgets_claims = True
    chaos.run()


def terminate_backend(server: PostgresServer, rng: random.Random) -> str:
    """End one connection of a worker, whichever."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        rows = connection.execute(
            "select pid, application_name from pg_stat_activity"
            " where application_name like 'stowhand:%' and pid <> pg_backend_pid() order by pid"
        ).fetchall()
        if not rows:
            return "no backend to terminate"
        pid, name = rng.choice(rows)
        connection.execute("select pg_terminate_backend(%s)", (pid,))
        return f"terminated {name}"


def restart(server: PostgresServer) -> str:
    """As after a power cut."""
    server.restart("immediate")
    return "restarted the server"


def step_postgres(server: PostgresServer, shift: float) -> None:
    """Set the clock that the functions of the store read."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(
            "create or replace function stowhand.at(_now timestamptz) returns timestamptz language sql as $$"
            f" select coalesce(stowhand.pinned(_now), clock_timestamp() + {shift} * interval '1 second') $$"
        )


def _replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


class Chaos:
    """One run against one store."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.url, self.folder, self.seed = url, folder, seed
        self.rng = random.Random(seed)
        self.ledger = folder / "ledger"
        environment = {**os.environ, "CHAOS_LEDGER": str(self.ledger)}
        environment.pop("DATABASE_URL", None)
        self.fleet = Fleet(url, folder, environment, self.rng)
        self.faults: list[Fault] = [self.fleet.kill_one] * KILLS + [self.fleet.freeze_one] * FREEZES
        self.told: list[str] = []
        self.clock_steps: list[tuple[int, int]] = []
        """Places in the log, before and after each."""
        self.forgets_claims = False
        """A crashed PostgreSQL may forget claims of its last moments, and give their epochs again."""

    def run(self) -> None:
        asyncio.run(self._enqueue())
        try:
            self._rage()
            codes = self.fleet.stop(grace=60.0)
            assert codes == [0] * len(codes), f"exit codes {codes}\n{self.dump()}"
            asyncio.run(self._check())
            transitions = history.assert_lawful(self.url, limits=LIMITS, clock_steps=self.clock_steps)
            self._check_overlaps(transitions)
        finally:
            self.fleet.destroy()

    async def _enqueue(self) -> None:
        store = await self._opened(install=True)
        history.install(self.url)
        try:
            tasks = [task for task, count in JOBS.items() for _ in range(count)]
            self.rng.shuffle(tasks)
            await store.jobs.enqueue_many(self._job(number, task) for number, task in enumerate(tasks))
        finally:
            await store.close()

    def _job(self, number: int, task: str) -> NewJob:
        key = f"k{number % KEYS}"
        pause = LONG_PAUSE if number % 200 == 0 and task in MAXIMA else self.rng.uniform(0, 2 * PAUSE)
        return NewJob(
            task=task,
            payload=f'{{"number":{number},"pause":{pause:.4f},"key":"{key}"}}',
            serial=key if task == "serial" else None,
            max_resets=RESETS,
        )

    def step_clock(self, set_clock: Callable[[float], None]) -> str:
        """Set the wall clock by up to half a second from the true time.

        PostgreSQL has leases by this clock, so a larger step forward would end them. Claims that are written at this
        moment have either time.
        """
        shift = round(self.rng.uniform(-0.5, 0.5), 3)
        before = history.log_end(self.url)
        set_clock(shift)
        time.sleep(0.3)
        self.clock_steps.append((before, history.log_end(self.url)))
        return f"set the clock to {shift:+} s"

    def _rage(self) -> None:
        """Until everything is done and every fault has struck, or the deadline has passed."""
        plan = Plan(self.rng, self.faults)
        while True:
            self.fleet.keep()
            live = self._live()
            self.told += plan.strike(self.fleet, 1 - live / TOTAL)
            if not plan and not self.fleet.frozen and live == 0:
                return
            assert self.fleet.started < 60 * SCALE, f"workers end by themselves\n{self.dump()}"
            assert plan.seconds < DEADLINE, f"not done after {DEADLINE} s\n{self.dump()}"
            time.sleep(0.2)

    def _live(self) -> int:
        return asyncio.run(self._count_live())

    async def _count_live(self) -> int:
        store = await self._opened()
        try:
            counts = await store.inspect.counts()
            return counts[State.QUEUED] + counts[State.PROCESSING] + counts[State.ERRORED]
        finally:
            await store.close()

    async def _opened(self, *, install: bool = False) -> QueueStore:
        store = open_store(self.url, OPTIONS)
        if install:
            await store.schema.install()
        await store.open()
        return store

    async def _check(self) -> None:
        store = await self._opened()
        try:
            counts = await store.inspect.counts()
            completed = await store.inspect.list(JobFilter(states=(State.COMPLETED,), limit=2 * TOTAL))
        finally:
            await store.close()
        entries = read_ledger(self.ledger)
        assert counts[State.COMPLETED] == TOTAL, f"lost: {counts}\n{self.dump()}"
        assert sum(counts.values()) == TOTAL, f"stuck or failed: {counts}\n{self.dump()}"
        assert all(1 <= job.attempts <= job.max_attempts for job in completed), "attempts out of bounds"
        ended = {entry.number for entry in entries if entry.what == "ended"}
        assert ended == set(range(TOTAL)), (
            f"{TOTAL - len(ended)} jobs were completed without having ended\n{self.dump()}"
        )
        self._check_fence(entries)

    def _check_fence(self, entries: list[Entry]) -> None:
        """Of each job one success was accepted, once, under the last lease that was ever given."""
        accepted = Counter(int(found) for found in COMPLETED.findall(self.fleet.logs()))
        twice = {job_id: count for job_id, count in accepted.items() if count > 1}
        assert not twice, f"accepted more than once: {twice}\n{self.dump()}"
        by_job: dict[int, list[Entry]] = defaultdict(list)
        for entry in entries:
            by_job[entry.job_id].append(entry)
        settled = settled_leases(self.url)
        assert len(settled) == TOTAL
        for job_id, (epoch, token) in settled.items():
            seen = by_job[job_id]
            of_epoch = {entry.token for entry in seen if entry.epoch == epoch}
            assert token in of_epoch, f"job {job_id}: settled under {token}, but epoch {epoch} was {of_epoch}"
            if not self.forgets_claims:
                assert of_epoch == {token}, f"job {job_id}: epoch {epoch} was {of_epoch}"
            assert max(entry.epoch for entry in seen) == epoch, (
                f"job {job_id}: a stale lease was accepted\n{self.dump()}"
            )
            ends = [entry for entry in seen if entry.token == token and entry.what == "ended"]
            assert len(ends) == 1, f"job {job_id}: accepted, but its handler ended {len(ends)} times under that lease"

    def _check_overlaps(self, transitions: Sequence[Transition]) -> None:
        found = list(executions(read_ledger(self.ledger), self.fleet, transitions))
        complaints = overlaps(found, MAXIMA, keyed=("serial", "customer"))
        assert not complaints, "\n".join([f"{len(complaints)} starts above a limit", *complaints[:9], self.dump()])
        kinds = Counter(message.split(": ")[1].split()[0] for message in self.told)
        print(f"{TOTAL} jobs, {len(found)} executions, faults: {dict(kinds)}, 0 above their limits")  # noqa: T201

    def dump(self) -> str:
        """Return details for the analysis of a failure."""
        lines = self.fleet.logs().splitlines()
        telling = [line for line in lines if "Completed task" not in line][-60:]
        return "\n".join([f"CHAOS_SEED={self.seed}", *self.told, "--- last log lines:", *telling])


def settled_leases(url: str) -> dict[int, tuple[int, str]]:
    """What the store itself remembers: under which epoch and token each completed job was settled."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            rows = file.execute("select id, epoch, settled_token from stowhand_history").fetchall()
    else:
        with psycopg.connect(url) as connection:
            rows = connection.execute("select id, epoch, settled_token::text from stowhand.history").fetchall()
    return {job_id: (epoch, token) for job_id, epoch, token in rows}
