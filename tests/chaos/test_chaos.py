"""Chaos, small tier: real processes, a server of their own, kills and freezes by a seeded plan, and a clean ledger.

``CHAOS_SEED`` repeats a plan. What is shown: nothing lost, no settlement of a stale lease accepted, nothing stuck,
attempts within bounds, and no transition that breaks a rule of tests/support/history.py.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sqlite3
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.protocols.queue_store import JobFilter, QueueStore
from stowhand.protocols.store import StoreOptions
from stowhand.stores.url import open_store
from tests.chaos.nemesis import Fault, Fleet, Plan
from tests.support import history
from tests.support.servers import PostgresServer

JOBS = 5_000
KILLS, FREEZES, TERMINATED = 10, 5, 5
PAUSE = 0.03
RESETS = 50
"""More than faults: whom workers die under again and again by chance is not to be given up."""
DEADLINE = 200.0
OPTIONS = StoreOptions(history=3600.0)
COMPLETED = re.compile(r"Completed task (\d+) \(step\) with success")


@dataclass
class Entry:
    """One line of the ledger."""

    what: str
    number: int
    job_id: int
    epoch: int
    token: str
    pid: int


@pytest.mark.timeout(300)
def test_a_sqlite_queue_loses_nothing_under_kills_and_freezes(tmp_path: Path, seed: int) -> None:
    Chaos(f"sqlite:///{tmp_path}/chaos.db", tmp_path, seed).run()


@pytest.mark.durable
@pytest.mark.timeout(300)
def test_a_postgres_queue_loses_nothing_under_kills_freezes_and_a_server_restart(
    tmp_path: Path, seed: int, durable_postgres: PostgresServer
) -> None:
    chaos = Chaos(durable_postgres.url("postgres"), tmp_path, seed)
    chaos.faults += [lambda: terminate_backend(durable_postgres, chaos.rng)] * TERMINATED
    chaos.faults.append(lambda: restart(durable_postgres))
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
        self.forgets_claims = False
        """A crashed PostgreSQL may forget claims of its last moments, and give their epochs again."""

    def run(self) -> None:
        asyncio.run(self._enqueue())
        try:
            self._rage()
            codes = self.fleet.stop(grace=60.0)
            assert codes == [0] * len(codes), f"exit codes {codes}\n{self.dump()}"
            asyncio.run(self._check())
            history.assert_lawful(self.url)
        finally:
            self.fleet.destroy()

    async def _enqueue(self) -> None:
        store = await self._opened(install=True)
        history.install(self.url)
        try:
            pauses = [self.rng.uniform(0, 2 * PAUSE) for _ in range(JOBS)]
            await store.jobs.enqueue_many(
                NewJob(task="step", payload=f'{{"number":{n},"pause":{pause:.4f}}}', max_resets=RESETS)
                for n, pause in enumerate(pauses)
            )
        finally:
            await store.close()

    def _rage(self) -> None:
        """Until everything is done and every fault has struck, or the deadline has passed."""
        plan = Plan(self.rng, self.faults)
        while True:
            self.fleet.keep()
            live = self._live()
            self.told += plan.strike(self.fleet, 1 - live / JOBS)
            if not plan and not self.fleet.frozen and live == 0:
                return
            assert self.fleet.started < 60, f"workers end by themselves\n{self.dump()}"
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
            completed = await store.inspect.list(JobFilter(states=(State.COMPLETED,), limit=2 * JOBS))
        finally:
            await store.close()
        entries = read_ledger(self.ledger)
        assert counts[State.COMPLETED] == JOBS, f"lost: {counts}\n{self.dump()}"
        assert sum(counts.values()) == JOBS, f"stuck or failed: {counts}\n{self.dump()}"
        assert all(1 <= job.attempts <= job.max_attempts for job in completed), "attempts out of bounds"
        ended = {entry.number for entry in entries if entry.what == "ended"}
        assert ended == set(range(JOBS)), f"{JOBS - len(ended)} jobs were completed without having ended\n{self.dump()}"
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
        assert len(settled) == JOBS
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


def read_ledger(path: Path) -> list[Entry]:
    entries = []
    for line in path.read_text().splitlines():
        what, number, job_id, epoch, token, pid = line.split()
        entries.append(Entry(what, int(number), int(job_id), int(epoch), token, int(pid)))
    return entries
