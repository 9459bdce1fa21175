"""Chaos on flows in Redis: whatever dies, every job ends once, no id is in two lists, and none is without a home."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.chaos.flow_work import NAMES, declared
from tests.chaos.nemesis import Fault, Fleet, Plan
from tests.support.valkey import RedisServer, find_redis

JOBS = 5000
KILLS, FREEZES, CUTS = 6, 3, 4
DEADLINE = 200.0
LISTS = ("waiting", "processing")
SETS = ("delayed", "parked")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """One that loses nothing it has confirmed."""
    with RedisServer(find_redis(), appendonly="always") as server:
        yield server


@pytest.mark.durable
@pytest.mark.timeout(300)
def test_every_job_passes_its_three_queues_and_ends_once_whatever_dies(
    tmp_path: Path, seed: int, server: RedisServer
) -> None:
    rng = random.Random(seed)
    ids = asyncio.run(_create(server.url))
    program = ("-m", "tests.chaos.flow_work", server.url)
    fleet = Fleet(server.url, tmp_path, dict(os.environ), rng, size=2, program=program)
    faults: list[Fault] = [fleet.kill_one] * KILLS + [fleet.freeze_one] * FREEZES
    faults += [lambda: _cut(server)] * CUTS + [lambda: _restart(server, "kill"), lambda: _restart(server, "orderly")]
    try:
        rage(fleet, server, Plan(rng, faults))
        fleet.keep()  # the last fault may have killed one
        codes = fleet.stop(grace=60.0)
        assert set(codes) == {0}, f"{codes}\n{fleet.logs()[-4000:]}"
    finally:
        fleet.destroy()
    with server.client() as client:
        assert not homes(client), "a job that has ended is still somewhere"
        check_ends(client, ids)


def rage(fleet: Fleet, server: RedisServer, plan: Plan) -> None:
    """Until every job has ended and every fault has struck. Meanwhile no id is ever in two places."""
    messages: list[str] = []
    where: dict[str, list[str]] | None = None
    while plan.seconds < DEADLINE:
        fleet.keep()
        messages += plan.strike(fleet, done(server) / (JOBS * len(NAMES)))
        where = looked(server)
        if where is None:
            continue
        twice = {job: places for job, places in where.items() if len(places) > 1}
        assert not twice, f"{dict(list(twice.items())[:5])}\n{messages}"
        if not plan and not fleet.frozen and not where:
            return
        time.sleep(0.1)
    raise AssertionError(f"not done in time: {list((where or {}).items())[:9]}\n{messages}\n{fleet.logs()[-4000:]}")


def done(server: RedisServer) -> int:
    """How many steps were done, those done twice counted twice; 0 if the connection was cut meanwhile."""
    try:
        with server.client() as client:
            return int(client.llen("ledger"))
    except redis.ConnectionError:
        return 0


def looked(server: RedisServer) -> dict[str, list[str]] | None:
    """Where each id stands; ``None``: the connection was cut meanwhile."""
    try:
        with server.client() as client:
            return homes(client)
    except redis.ConnectionError:
        return None


HOMES = """
local found = {}
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local ids = kind == 'zset' and redis.call('ZRANGE', key, 0, -1) or redis.call('LRANGE', key, 0, -1)
  for _, id in ipairs(ids) do found[#found + 1] = id .. ' ' .. key end
end
return found
"""


def homes(client: redis.Redis) -> dict[str, list[str]]:
    """Where each id stands, at one moment."""
    keys = [f"queue:{name}:{place}" for name in NAMES for place in (*LISTS, *SETS, "suspects")]
    where: dict[str, list[str]] = defaultdict(list)
    for line in client.eval(HOMES, len(keys), *keys):
        job, _, key = line.partition(" ")
        where[job].append(key)
    return where


def check_ends(client: redis.Redis, ids: list[str]) -> None:
    """Assert that each job has passed every queue with a real result of each, and that it will expire."""
    doers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in client.lrange("ledger", 0, -1):
        job, queue, token = str(line).split()
        doers[job, queue].add(token)
    assert client.llen("ledger") > JOBS * len(NAMES), "no zombie has done anything: the faults did not strike"
    outcome: Counter[str] = Counter()
    for job in ids:
        fields: dict[str, str] = client.hgetall(f"job:chaos:{job}")  # type: ignore[assignment]
        outcome[fields.get("completed-queue", "nowhere")] += 1
        assert "failed" not in fields, fields
        for name in NAMES:
            assert fields[f"by-{name}"].strip('"') in doers[job, name], f"{job}: {name} bears what nobody has done"
        assert client.ttl(f"job:chaos:{job}") > 0
    assert outcome == {'"third"': JOBS}
    assert len(list(client.scan_iter("job:chaos:*", count=5000))) == JOBS, "a hash has come from nowhere"
    assert not list(client.scan_iter("lock:*", count=5000))


async def _create(url: str) -> list[str]:
    async with declared(url) as flow:
        return await flow.create_jobs({"number": number} for number in range(JOBS))


def _cut(server: RedisServer) -> str:
    """Every connection at once."""
    try:
        with server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    except redis.ConnectionError:
        return "nothing to cut"
    return "cut every connection"


def _restart(server: RedisServer, mode: str) -> str:
    server.restart("kill" if mode == "kill" else "orderly")
    return f"restarted the server ({mode})"
