"""Looking at a flow in Redis: jobs by id and by attribute, with their children; failed ones; where they stand."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from stowhand.errors import ConfigurationError
from stowhand.flows.engine import QueueCount
from stowhand.flows.job import FlowJob
from tests.conftest import Run
from tests.support.flow_bench import SHAPES, FlowBench, Queue, flow_bench, shape
from tests.support.redis_proxy import RedisProxy
from tests.support.valkey import LiveRedis
from tests.support.valkey_groups import RedisCluster

KIDS = [{"childName": "kid", "n": 1}, {"childName": "other", "n": 2}]
FAMILY = [
    Queue("first", next_queue="parent"),
    Queue("parent", next_queue="last", children=(Queue("kid"), Queue("other"))),
    Queue("last"),
]
every_layout = pytest.mark.parametrize("layout", SHAPES)


@pytest.fixture
def look(redis_server: LiveRedis, redis_url: str) -> Iterator[redis.Redis]:
    """How the test looks."""
    with redis_server.client() as client:
        yield client


def refuse(job: FlowJob) -> object:
    """A worker function."""
    raise ValueError(f"{job['n']} is bad")


@every_layout
def test_children_are_shown_instead_of_their_keys(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout, lookup=("userId",)), look) as bench:
            job = await bench.create({"userId": "u", "children:parent:params": KIDS})
            await bench.work("first", lambda _: None)
            await bench.work("parent")
            assert await bench.work("parent:kid", lambda job: {"doubled": job["n"] * 2}) == 1
            assert await bench.work("parent:other", refuse) == 1

            (plain,) = await bench.engine.read([job], resolve_children=False)
            assert plain is not None
            keys = plain["children:parent:jobs"]
            assert [key.rpartition(":")[0] for key in keys] == [
                bench.key("job:parent:kid"),
                bench.key("job:parent:other"),
            ]
            ((shown,),) = [await bench.engine.read(await bench.engine.ids("userId", "u"), resolve_children=True)]
            assert shown is not None
            assert shown | {"children:parent:jobs": keys} == plain
            kid, other = shown["children:parent:jobs"]
            assert kid | {"n": 1, "doubled": 2, "done": True, "completed-queue": "parent:kid"} == kid
            assert other | {"failed": True, "failedErrorMsg": "2 is bad", "failedQueue": "parent:other"} == other
            for key, child in zip(keys, (kid, other), strict=True):
                assert child["id"] == key.removeprefix(bench.key("job:"))
                assert await bench.engine.read([child["id"]], resolve_children=False) == [child]

            look.delete(keys[0])
            ((shown,),) = [await bench.engine.read([job], resolve_children=True)]
            assert shown is not None
            assert shown["children:parent:jobs"] == [other]

    run(check())


@every_layout
def test_missing_jobs_do_not_shift_positions(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout, lookup=("k",)), look) as bench:
            jobs = list(await bench.engine.create_many([bench.new({"k": 1, "n": n}) for n in range(450)]))
            gone = jobs[3]
            look.delete(bench.hash_key(gone))
            assert await bench.engine.ids("k", "1") == jobs
            result = await bench.engine.read(jobs, resolve_children=True)
            assert [None if job is None else (job["id"], job["n"]) for job in result] == [
                None if job == gone else (job, n) for n, job in enumerate(jobs)
            ]

    run(check())


def test_values_that_are_not_json_are_none(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY), look) as bench:
            job = await bench.create({"n": 1})
            look.hset(f"job:demo:{job}", mapping={"broken": "{", "bytes": b"\xff\xfe", "id": '"not its own"'})
            look.set("job:demo:taken", "by somebody else")
            assert await bench.engine.read([job, "taken"], resolve_children=True) == [
                {"n": 1, "correlationId": "corr-1", "broken": None, "bytes": None, "id": job},
                None,
            ]
            assert await bench.engine.delete("taken") is False
            (answer,) = await bench.engine.retry(["taken"])
            assert answer.result == "missing"

    run(check())


# -- failed


async def fail_some(bench: FlowBench, number: int) -> list[str]:
    """Failed jobs of the first queue, oldest first, among others that are well."""
    failed = [await bench.create({"n": n}) for n in range(number)]
    await bench.work("first", refuse, limit=number)
    await bench.create({"n": 1, "failed": False})
    return sorted(failed)


@every_layout
def test_failed_jobs_are_listed_page_by_page(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout, lookup=("k",)), look) as bench:
            failed = await fail_some(bench, 25)
            look.set(bench.key("job:demo:a-text"), "x")
            look.hset(bench.key("job:demo:k:v"), mapping={"failed": "true"})
            look.hset(bench.key("job:stranger:x"), mapping={"failed": "true"})
            job = await bench.create({"children:parent:params": KIDS})
            await bench.work("first", lambda _: None)
            await bench.work("parent")
            await bench.work("parent:other", refuse)
            child = f"parent:other:{bench.value(job, 'children:parent:jobs')[1].rpartition(':')[2]}"

            pages, after = [], None
            while page := await bench.engine.failed("first", after=after, limit=10):
                pages.append(len(page))
                assert page == [one for one in failed if after is None or one > after][:10]
                after = page[-1]
            assert pages == [10, 10, 5]
            assert await bench.engine.failed("last", after=None, limit=10) == []
            assert await bench.engine.failed("parent:other", after=None, limit=10) == [child]
            assert await bench.engine.failed("parent:kid", after=None, limit=10) == []
            assert await bench.engine.failed(None, after=None, limit=100) == sorted([*failed, child])
            with pytest.raises(ConfigurationError, match="no queue 'frist'"):
                await bench.engine.failed("frist", after=None, limit=10)

    run(check())


# -- where they stand


@every_layout
def test_every_queue_is_counted(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout), look) as bench:
            await bench.create({"children:parent:params": KIDS})
            await bench.work("first", lambda _: None)
            await bench.work("parent")
            *_, job = [await bench.create({}) for _ in range(4)]
            await bench.create({}, delay=60)
            look.hset(bench.hash_key(job), "resets:first", 2)
            await bench.claim("first", 1)
            look.lrem(bench.queue("first", "waiting"), 1, job)
            look.rpush(bench.queue("first", "suspects"), job)
            assert await bench.engine.counts() == [
                QueueCount(queue="first", priority=1, waiting=3, processing=1, delayed=1, failed=0),
                QueueCount(queue="parent", priority=1, parked=1, failed=0),
                QueueCount(queue="parent:kid", priority=1, waiting=1, failed=0),
                QueueCount(queue="parent:other", priority=1, waiting=1, failed=0),
                QueueCount(queue="last", priority=1, failed=0),
            ]
            (parked,) = await bench.engine.positions("parent", 10)
            assert (parked.state, parked.position) == ("parked", 1)
            (child,) = await bench.engine.positions("parent:kid", 10)
            assert (await bench.engine.read([child.job_id], resolve_children=False))[0] is not None

    run(check())


def test_positions_are_the_order_of_service(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape([Queue("first", priorities=2)], "priority"), look) as bench:
            running = [await bench.create({}), await bench.create({}, priority=2)]
            await bench.claim("first")
            low = [await bench.create({}, priority=2) for _ in range(2)]
            high = [await bench.create({}) for _ in range(3)]
            late, soon = await bench.create({}, delay=900), await bench.create({}, priority=2, delay=600)
            apart = await bench.create({})
            look.lrem(bench.queue("first", "waiting"), 1, apart)
            look.rpush(bench.queue("first", "suspects"), apart)
            result = await bench.engine.positions("first", 10)
            assert [(each.job_id, each.priority, each.state, each.position) for each in result] == [
                *((job, 1, "waiting", place) for place, job in enumerate(high, 1)),
                *((job, 2, "waiting", place) for place, job in enumerate(low, 4)),
                (apart, 1, "waiting", 6),
                *((job, rank, "processing", rank) for rank, job in enumerate(running, 1)),
                (soon, 2, "delayed", 1),
                (late, 1, "delayed", 2),
            ]
            ready = [each.ready_at - time.time() for each in result if each.ready_at is not None]
            assert [round(seconds, -2) for seconds in ready] == [600, 900]
            few = await bench.engine.positions("first", 1)
            assert [(each.state, each.job_id) for each in few] == [
                ("waiting", high[0]), ("processing", running[0]), ("delayed", soon)
            ]  # fmt: skip
            (more,) = {each.position for each in await bench.engine.positions("first", 4) if each.job_id == low[0]}
            assert more == 4

    run(check())


def test_a_read_over_a_broken_connection_is_repeated(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with RedisProxy(redis_url) as proxy, flow_bench(proxy.url, shape(FAMILY, lookup=("k",)), look) as bench:
            job = await bench.create({"k": "needle"})
            proxy.cut("reply", b"needle")
            assert await bench.engine.ids("k", "needle") == [job]
            proxy.cut("middle", job.encode())
            assert (await bench.engine.read([job], resolve_children=False))[0] is not None
            proxy.cut("request", b"ZRANGEBYLEX")
            assert await bench.engine.failed(None, after=None, limit=1) == []
            proxy.cut("reply", b"queue:first")
            assert (await bench.engine.counts())[0].waiting == 1
            assert proxy.broken == 4

    run(check())


def test_a_flow_in_a_cluster(run: Run, redis_cluster: RedisCluster) -> None:
    async def check() -> None:
        node = next(node for node in redis_cluster.servers if owns_slot(node, "{demo}:"))
        with node.client() as look:
            async with flow_bench(redis_cluster.url, shape(FAMILY, "tagged", lookup=("k",)), look) as bench:
                failed = await fail_some(bench, 3)
                (page,) = [await bench.engine.failed(None, after=None, limit=2)]
                assert page == failed[:2]
                (answer,) = await bench.engine.retry(page[:1])
                assert answer.result == "done"
                assert (await bench.engine.counts())[0].waiting == 2
                assert len(await bench.engine.positions("first", 10)) == 2
                (read,) = await bench.engine.read(page[1:], resolve_children=True)
                assert read is not None
                assert read["failedErrorMsg"].endswith("is bad")
                assert [await bench.engine.delete(job) for job in failed] == [True] * 3
                assert await bench.engine.sweep() == 0

    run(check())


def owns_slot(node: LiveRedis, key: str) -> bool:
    """Would the key lie there?"""
    with node.client() as client:
        try:
            client.get(key)
        except redis.RedisError:
            return False
        return True
