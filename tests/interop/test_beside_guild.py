"""One flow in Redis, two programs: the published original (guild.py drives it) and ours, in the classic layout.

Its monitor does not run here: it holds every job for failed that ends while it looks, its own workers' jobs too. Ours
looks twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from fnmatch import fnmatch

import pytest
import redis

from stowhand.clock import stopwatch
from stowhand.protocols.flow_shape import FlowShape, Queue
from tests.conftest import Run
from tests.interop.guild import CORRELATION, LOCK_SECONDS, Found, Ours, Side, Step, Theirs
from tests.interop.guild_footprint import Left, look
from tests.support.valkey import LiveRedis

pytestmark = pytest.mark.xdist_group("interop")

JOBS = 200
FAILS = 25
"""Every job whose number is a multiple of this fails in the second queue."""
LINE = FlowShape(
    name="demo",
    queues=(
        Queue("first", ("userId", "n", "missing"), next_queue="second"),
        Queue("second", ("n",), next_queue="third"),
        Queue("third", ("n", "text", "second-text")),
    ),
    lookup_attributes=("userId", "roleIds"),
)
STEPS = (
    Step("first", {"first-text": 'ä "b" \\ \n'}, saw="saw-first"),
    Step("second", {"second-text": "", "list": [1, 2.5, None, {"a": False}]}, fails=FAILS),
    Step("third", {"done": True, "n": 1_000_000}, saw="saw-third"),
)
FAN = FlowShape(
    name="demo",
    queues=(
        Queue("enter", ("n",), next_queue="fan"),
        Queue("fan", next_queue="leave", children=(Queue("kid", ("n", "text")), Queue("other", ("n",)))),
        Queue("leave", ("n", "children:fan:jobs")),
    ),
    lookup_attributes=("userId",),
)
KID, OTHER = Step("kid", {"done": True}, saw="saw", fails=3), Step("other", {"done": True, "far": "ö"})
CHILDREN = [{"childName": "kid", "n": n, "text": f"kid {n}"} for n in (1, 2, 3)] + [{"childName": "other", "n": 4}]

WHOLE = FlowShape(
    name="demo",
    queues=(
        Queue("first", ("userId", "n", "missing"), next_queue="second"),
        Queue("second", ("n",)),
        Queue("fan", next_queue="third", children=FAN.queues[1].children),
        Queue("third", ("n", "text")),
    ),
    lookup_attributes=("userId", "roleIds"),
)
# What one leaves in Redis, and the other does not, or differently: why.
ONLY_THEIRS = {
    "lock:*:<*>": "a failed job keeps its lock until it expires; ours is taken away in the same step",
    "job:demo:<*>.nothing": "an attribute that is null is written as such; ours is not written",
}
ONLY_OURS = {
    "settled:<call>": "by which a settlement that is sent twice is known; two minutes",
    "job:demo:<passed>.children:fan:results": "what its children have come to, as later versions write it",
    "job:fan:*:<child ?>.parent": "by which the last child wakes its parent",
    "job:fan:*:<child ?>.correlationId": "the parent's, as later versions write it",
    "job:*:<*>.flow:*": "the state, as our scripts have written it",
    "queue:*:failed": "which jobs have failed",
}


def _job(n: int) -> dict[str, object]:
    return {"userId": n % 4, "roleIds": [n % 3, "r"], "n": n, "text": 'an "ü"', "flag": False}


async def until(reached: Callable[[], object], seconds: float = 60.0) -> None:
    end = stopwatch() + seconds
    while not reached():
        assert stopwatch() < end, "it did not come to that"
        await asyncio.sleep(0.02)


def _ledger(client: redis.Redis, name: str) -> list[str]:
    return list(client.lrange(f"ledger:{name}", 0, -1))  # type: ignore[arg-type]


def _queued(client: redis.Redis) -> list[str]:
    """Queues in which a job is left: not the notes of the sweep, nor the ids of failed jobs."""
    keys = [key for kind in ("list", "zset") for key in client.scan_iter("queue:*", count=1000, _type=kind)]
    return [key for key in keys if not key.endswith((":unlocked", ":failed"))]


@pytest.mark.parametrize(
    "serving",
    [("theirs", "ours", "theirs"), ("ours", "theirs", "ours"), ("both", "both", "both")],
    ids=["second-is-ours", "second-is-theirs", "both-serve-all"],
)
def test_every_job_passes_every_queue_once(
    run: Run, redis_url: str, redis_server: LiveRedis, serving: Sequence[str]
) -> None:
    async def story(client: redis.Redis) -> None:
        async with Theirs(redis_url, LINE) as theirs, Ours(redis_url, LINE) as ours:
            sides: dict[str, list[Side]] = {"theirs": [theirs], "ours": [ours], "both": [theirs, ours]}
            for who, step in zip(serving, STEPS, strict=True):
                for side in sides[who]:
                    await side.work(step.name, step)
            await asyncio.gather(theirs.start(), ours.start())
            jobs = [_job(n) for n in range(1, JOBS + 1)]
            job = await asyncio.gather(theirs.create(jobs[::2]), ours.create(jobs[1::2]))
            ids = [job_id for pair in zip(*job, strict=True) for job_id in pair]
            failed = ids[FAILS - 1 :: FAILS]
            passed = {*ids} - {*failed}
            await until(lambda: len(_ledger(client, "third")) >= len(passed) and not _queued(client))

            assert Counter(_ledger(client, "first")) == Counter(ids)
            assert Counter(_ledger(client, "second")) == Counter(ids)
            assert Counter(_ledger(client, "third")) == Counter(passed)
            locks = {key: client.ttl(key) for key in client.scan_iter("lock:*")}
            of_failures = {f"lock:second:{job_id}" for job_id in failed}
            assert locks.keys() <= (set() if serving[1] == "ours" else of_failures)
            assert all(0 < seconds <= LOCK_SECONDS + 2 for seconds in locks.values())
            await _is_found_equally(theirs, ours, failed)

    with redis_server.client() as client:
        run(story(client), 110)


async def _is_found_equally(theirs: Side, ours: Side, failed: Sequence[str]) -> None:
    for key, value, count in (("userId", 3, 50), ("roleIds", 2, 67), ("roleIds", "r", JOBS)):
        result = await ours.find(key, value)
        assert len(result) == count
        assert result == await theirs.find(key, value)
        for job in result:
            ended = _ended(job)
            assert ("failed" in ended) == (job["id"] in failed)
            assert job == job | ended


def _ended(job: Found) -> Found:
    n = job["saw-first"]["n"]
    saw = {"id": job["id"], "n": n}
    instance = {"correlationId": CORRELATION, "text": 'an "ü"', "flag": False, "roleIds": [n % 3, "r"]}
    first = {"first-text": 'ä "b" \\ \n', "saw-first": {**saw, "userId": n % 4, "missing": None}}
    if n % FAILS == 0:
        message = {"done": True, "failed": True, "failedQueue": "second", "failedErrorMsg": STEPS[1].message}
        return instance | first | message | {"completed-queue": "first"}
    third = {"done": True, "saw-third": {**saw, "text": 'an "ü"', "second-text": ""}, "completed-queue": "third"}
    return instance | first | {"second-text": "", "list": [1, 2.5, None, {"a": False}]} | third


def test_a_deletion_by_either_is_visible_to_the_other(run: Run, redis_url: str) -> None:
    async def story() -> None:
        async with Theirs(redis_url, LINE) as theirs, Ours(redis_url, LINE) as ours:
            await theirs.start()
            for maker, deleter in ((theirs, ours), (ours, theirs)):
                kept, gone = await maker.create([_job(1), _job(1)])
                await deleter.delete(gone)
                for side in (theirs, ours):
                    assert [job["id"] for job in await side.find("roleIds", "r")] == [kept]
                await maker.delete(kept)

    run(story(), 110)


def test_jobs_of_their_dead_worker_are_finished_by_ours(run: Run, redis_url: str, redis_server: LiveRedis) -> None:
    shape = FlowShape(name="demo", queues=(Queue("first", ("n",), max_retries=1),), lookup_attributes=("n",))

    async def story(client: redis.Redis) -> None:
        async with (
            Theirs(redis_url, shape) as theirs,
            Theirs(redis_url, shape) as witness,
            Ours(redis_url, shape) as ours,
        ):
            await theirs.work("first", Step("theirs", hangs=True))
            await theirs.start()
            (job_id,) = await theirs.create([{"n": 1}])
            await until(lambda: _ledger(client, "theirs"))
            await theirs.die()
            await ours.flow.monitor.sweep()
            assert not client.exists("queue:first:unlocked")  # its lock still holds
            client.delete(f"lock:first:{job_id}")  # so that nobody waits until it expires
            await ours.flow.monitor.sweep()
            assert client.lrange("queue:first:processing", 0, -1) == [job_id]  # one look is not enough
            client.zincrby("queue:first:unlocked", -1000, job_id)  # nor for a second to pass
            assert await ours.flow.monitor.sweep() == 1
            await ours.work("first", Step("ours", {"done": True}))
            await ours.start()
            await until(lambda: _ledger(client, "ours") == [job_id] and not _queued(client))
            await witness.start()
            expected = {"id": job_id, "n": 1, "done": True, "completed-queue": "first", "correlationId": CORRELATION}
            assert await witness.find("n", 1) == await ours.find("n", 1) == [expected]

    with redis_server.client() as client:
        run(story(client), 110)


@pytest.mark.parametrize("parents_are", ["theirs", "ours"])
def test_a_parent_and_its_children_are_served_by_two_programs(
    run: Run, redis_url: str, redis_server: LiveRedis, parents_are: str
) -> None:
    """The original's children end without waking their parent; our sweep counts them from time to time."""

    async def story(client: redis.Redis) -> None:
        async with Theirs(redis_url, FAN) as theirs, Ours(redis_url, FAN) as ours:
            parents, children = (theirs, ours) if parents_are == "theirs" else (ours, theirs)
            await parents.work("enter", Step("enter", {"children:fan:params": CHILDREN}))
            await parents.parent("fan")
            await children.child("fan", "kid", KID)
            await children.child("fan", "other", OTHER)
            await children.work("leave", Step("leave", {"done": True}, saw="saw"))
            await asyncio.gather(theirs.start(), ours.start())
            jobs = [*await theirs.create([{"userId": 7, "n": 1}]), *await ours.create([{"userId": 7, "n": 2}])]
            await until(lambda: len(_ledger(client, "kid")) == 6 and len(_ledger(client, "other")) == 2)
            if parents_are == "ours":
                await until(lambda: not client.exists(*(f"queue:fan:{kid}:processing" for kid in ("kid", "other"))))
                client.zadd("queue:fan:parked", dict.fromkeys(jobs, 0))  # so that nobody waits for the next count
                await ours.flow.monitor.sweep()
            await until(lambda: len(_ledger(client, "leave")) == 2 and not _queued(client))
            result = await ours.find("userId", 7, resolve=True)
            assert _bare(result) == await theirs.find("userId", 7, resolve=True)
            for job in result:
                _fanned_out(job)

    with redis_server.client() as client:
        run(story(client), 110)


def _bare(jobs: Sequence[Found]) -> list[Found]:
    """As the original shows children: by the last part of their ids."""
    kept = [dict(job) for job in jobs]
    for job in kept:
        job["children:fan:jobs"] = [kid | {"id": kid["id"].rpartition(":")[2]} for kid in job["children:fan:jobs"]]
    return kept


def _fanned_out(job: Found) -> None:
    kids = job["children:fan:jobs"]
    assert [kid["n"] for kid in kids] == [1, 2, 3, 4]
    assert [kid.get("failedErrorMsg") for kid in kids] == [None, None, KID.message, None]
    assert [kid.get("failedQueue") for kid in kids] == [None, None, "fan:kid", None]
    assert [kid.get("completed-queue") for kid in kids] == ["fan:kid", "fan:kid", None, "fan:other"]
    assert all(kid["done"] is True for kid in kids)
    assert job["saw"]["children:fan:jobs"] == [f"job:fan:{name}" for name in _child_names(kids)]
    assert job["completed-queue"] == "leave"


def _child_names(kids: Sequence[Found]) -> list[str]:
    return [f"{'other' if kid['n'] == 4 else 'kid'}:{kid['id'].rpartition(':')[2]}" for kid in kids]


def test_our_and_their_workers_leave_the_same_keys_in_redis(run: Run, redis_url: str, redis_server: LiveRedis) -> None:
    async def leave(side: Side, client: redis.Redis) -> dict[str, Left]:
        await side.work("first", STEPS[0])
        await side.work("second", Step("second", {"nextQueue": "fan", "children:fan:params": CHILDREN}, fails=FAILS))
        await side.parent("fan")
        await side.child("fan", "kid", KID)
        await side.child("fan", "other", OTHER)
        await side.work("third", STEPS[2])
        await side.start()
        since = stopwatch()
        passed, failed = await side.create([_job(1) | {"nothing": None}, _job(FAILS) | {"nothing": None}])
        await until(lambda: client.exists("ledger:third") and not _queued(client))
        return look(client, {"passed": passed, "failed": failed}, since)

    async def story(client: redis.Redis) -> None:
        async with Theirs(redis_url, WHOLE) as side:
            theirs = await leave(side, client)
        client.flushdb()
        async with Ours(redis_url, WHOLE) as side:
            ours = await leave(side, client)
        _is_known(ONLY_THEIRS, theirs.keys() - ours.keys())
        _is_known(ONLY_OURS, ours.keys() - theirs.keys())
        different = {name for name in theirs.keys() & ours.keys() if not theirs[name].is_like(ours[name])}
        assert {name: (theirs[name], ours[name]) for name in different} == {}

    with redis_server.client() as client:
        run(story(client), 110)


def _is_known(reasons: Mapping[str, str], names: Set[str]) -> None:
    """Every name has a reason, and every reason a name."""
    assert {name for name in names if not any(fnmatch(name, known) for known in reasons)} == set()
    assert {known for known in reasons if not any(fnmatch(name, known) for name in names)} == set()
