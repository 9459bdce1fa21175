"""Jobs in Redis: what creating one leaves there, what deleting one takes away, and what a broken connection leaves."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from stowhand.errors import InvalidJob, OutcomeUnknown, QueueFull, StoreUnreachable
from stowhand.flows.new_job import new_job
from stowhand.flows.redis import RedisEngine
from tests.conftest import Run
from tests.support.flow_bench import SHAPES, Limiter, Queue, flow_bench, shape
from tests.support.redis_proxy import Cut, RedisProxy
from tests.support.valkey import LiveRedis

PLAIN = [Queue("first", next_queue="second"), Queue("second")]
FAMILY = [
    Queue("parent", next_queue="last", children=(Queue("kid", limiter=Limiter(reservoir=1, interval=60)),)),
    Queue("last"),
]
UUID7 = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
every_layout = pytest.mark.parametrize("layout", SHAPES)


@pytest.fixture
def look(redis_server: LiveRedis, redis_url: str) -> Iterator[redis.Redis]:
    """How the test looks."""
    with redis_server.client() as client:
        yield client


def test_a_classic_job_has_the_fields_of_the_original(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN, lookup=("userId", "roleIds")), look) as bench:
            job = await bench.create({"userId": 1, "roleIds": [4, 5], "n": 3, "text": 'a "b"', "nothing": None})
            assert re.fullmatch(UUID7, job)
            assert bench.all_keys() == {
                f"job:demo:{job}", "queue:first:waiting",
                "job:demo:userId:1", "job:demo:roleIds:4", "job:demo:roleIds:5",
            }  # fmt: skip
            assert look.hgetall(f"job:demo:{job}") == {
                "userId": "1", "roleIds": "[4,5]", "n": "3", "text": '"a \\"b\\""', "correlationId": '"corr-1"',
                "flow:state": '"waiting:first"',
            }  # fmt: skip
            for key in bench.all_keys() - {"queue:first:waiting"}:
                assert 86_390 < look.ttl(key) <= 86_400
            for key in ("job:demo:userId:1", "job:demo:roleIds:4", "job:demo:roleIds:5", "queue:first:waiting"):
                assert look.lrange(key, 0, -1) == [job]
            assert look.ttl("queue:first:waiting") == -1

    run(check())


def test_a_job_of_the_priority_layout_contains_its_flow(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        flow = shape([Queue("first", priorities=2)], "tagged", lookup=("userId",))
        async with flow_bench(redis_url, flow, look) as bench:
            job = await bench.create({"userId": "x:y"}, priority=2)
            assert re.fullmatch(f"demo:{UUID7}", job)
            assert bench.all_keys() == {
                f"{{demo}}:job:{job}",
                "{demo}:job:demo:userId:x:y",
                "{demo}:open:demo:userId:x:y",
                "{demo}:queue:first:2:waiting",
            }
            instance = bench.value(job, "createdAtTimestamp")
            assert abs(instance - time.time() * 1000) < 60_000
            assert bench.hash(job) == {
                "userId": '"x:y"', "correlationId": '"corr-1"', "flowName": '"demo"', "priority": "2",
                "createdAtTimestamp": str(instance), "lookups:lists": '["{demo}:job:demo:userId:x:y"]',
                "flow:state": '"waiting:first"',
            }  # fmt: skip
            with pytest.raises(InvalidJob, match="has 1 to 2"):
                await bench.create({}, priority=3)

    run(check())


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (["a", "b", "a"], ["a", "b"]),
        (7, ["7"]),
        (1.5, ["1.5"]),
        ("7", ["7"]),
        (None, []),
        (True, []),
        ({"a": 1}, []),
        ("", []),
        ([None, [1], 2], ["2"]),
    ],
    ids=str,
)
def test_lookups_are_texts_and_numbers(
    run: Run, redis_url: str, look: redis.Redis, value: object, found: list[str]
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN, lookup=("k",)), look) as bench:
            job = await bench.create({"k": value})
            assert {key for key in bench.all_keys() if ":k:" in key} == {f"job:demo:k:{text}" for text in found}
            for text in found:
                assert await bench.engine.ids("k", text) == [job]
            assert await bench.engine.delete(job) is True
            assert bench.all_keys() == set()

    run(check())


@every_layout
def test_ids_grow_with_time_and_jobs_wait_in_the_order_of_creation(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN, layout), look) as bench:
            jobs = [await bench.create() for _ in range(3)]
            jobs += await bench.engine.create_many([bench.new({"n": n}) for n in range(450)])
            assert len(set(jobs)) == 453
            assert bench.members("first", "waiting") == jobs
            moments = [job[:18] if bench.ranked else job[:13] for job in jobs]
            assert moments == sorted(moments)

    run(check())


@every_layout
def test_a_job_may_be_created_with_a_delay(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN, layout), look) as bench:
            job = await bench.create({"n": 1}, delay=60)
            assert bench.members("first", "delayed") == [job]
            assert bench.members("first", "waiting") == []
            ready = bench.value(job, "delayReadyTimestamp")
            assert abs(ready - (time.time() + 60) * 1000) < 10_000
            assert look.zscore(bench.queue("first", "delayed"), job) == ready
            assert (bench.value(job, "delay"), bench.value(job, "delayReason")) == (True, "created with a delay")
            assert await bench.claim("first") == []
            assert await bench.engine.delete(job)
            assert bench.all_keys() == set()

    run(check())


def test_a_job_without_attributes_is_a_job(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN), look) as bench:
            job = await bench.create({}, correlation_id=None)
            (claim,) = await bench.claim("first")
            assert claim.lease.job_id == job

    run(check())


def test_a_job_with_many_attributes_passes_a_script(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        values = {f"a{number}": number for number in range(5000)}
        async with flow_bench(redis_url, shape(PLAIN, lookup=("k",)), look) as bench:
            job = await bench.create({**values, "k": list(range(3000))})
            assert look.hlen(f"job:demo:{job}") == 5003
            assert await bench.engine.ids("k", "2999") == [job]
            assert await bench.engine.delete(job)
            assert bench.all_keys() == set()

    run(check())


def test_a_used_lookup_list_drops_expired_jobs(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN, lookup=("k",)), look) as bench:
            old = await bench.engine.create_many([bench.new({"k": 1}) for _ in range(100)])
            look.delete(*(f"job:demo:{job}" for job in old[:90]))
            new = await bench.engine.create_many([bench.new({"k": 1}) for _ in range(100)])
            assert await bench.engine.ids("k", "1") == [*old[90:], *new]

    run(check())


# -- broken connections


@pytest.mark.parametrize("what", ["reply", "request", "middle"])
def test_a_broken_connection_neither_loses_nor_doubles_a_job(
    run: Run, redis_url: str, look: redis.Redis, what: Cut
) -> None:
    async def check() -> None:
        async with RedisProxy(redis_url) as proxy, flow_bench(proxy.url, shape(PLAIN, lookup=("k",)), look) as bench:
            before = await bench.create({"k": 1})
            proxy.cut(what, b"needle")
            job = await bench.create({"k": 1, "word": "needle"})
            assert proxy.broken == 1
            assert bench.members("first", "waiting") == [before, job]
            assert await bench.engine.ids("k", "1") == [before, job]

    run(check())


@pytest.mark.parametrize("what", ["reply", "middle"])
def test_without_any_reply_the_outcome_is_unknown(run: Run, redis_url: str, look: redis.Redis, what: Cut) -> None:
    async def check() -> None:
        async with RedisProxy(redis_url) as proxy, flow_bench(proxy.url, shape(PLAIN, lookup=("k",)), look) as bench:
            await bench.create({"k": 1})
            look.delete(*bench.all_keys())
            proxy.cut(what, b"needle", times=9)
            with pytest.raises(OutcomeUnknown, match="not known whether"):
                await bench.create({"k": 1, "word": "needle"})
            kinds = sorted(key.split(":")[-1] for key in bench.all_keys() if not re.search(UUID7, key))
            assert (len(bench.all_keys()), kinds) == ((3, ["1", "waiting"]) if what == "reply" else (0, []))

    run(check())


def test_many_that_stop_half_way_say_how_many_are_there(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with RedisProxy(redis_url) as proxy, flow_bench(proxy.url, shape(PLAIN), look) as bench:
            await bench.create()
            proxy.cut("middle", b"needle", times=9)
            jobs = [bench.new({"word": "needle" if number == 250 else "straw"}) for number in range(400)]
            with pytest.raises(OutcomeUnknown, match="the first 200 of 400 jobs were created"):
                await bench.engine.create_many(jobs)
            assert len(bench.members("first", "waiting")) == 201
            assert len([key for key in bench.all_keys() if re.search(UUID7, key)]) == 201

    run(check())


def test_an_unreachable_server_has_created_nothing(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        engine = RedisEngine(f"unix://{tmp_path}/redis.sock", shape(PLAIN))
        with pytest.raises(StoreUnreachable, match="is it running"):
            await engine.create_many([new_job(engine.shape, {})])
        await engine.close()

    run(check())


# -- delete


@every_layout
def test_deleting_takes_everything_of_a_job_and_nothing_of_another(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout, lookup=("userId", "roleIds")), look) as bench:
            kids = [{"childName": "kid", "n": n} for n in range(3)]
            other = await bench.create({"userId": 1, "children:parent:params": kids})
            job = await bench.create({"userId": 1, "roleIds": [4, 5], "children:parent:params": kids})
            assert await bench.work("parent") == 2
            assert sorted(bench.members("parent", "parked")) == sorted([other, job])
            kept = {key for key in bench.all_keys() if job not in key and ":roleIds:" not in key}
            children = set(bench.value(job, "children:parent:jobs"))
            assert len(children) == 3

            assert await bench.engine.delete(job) is True
            assert bench.all_keys() == kept - children
            assert bench.members("parent", "parked") == [other]
            assert await bench.engine.ids("userId", "1") == [other]
            assert await bench.engine.delete(job) is False

    run(check())


@every_layout
def test_a_deleted_job_is_neither_counted_nor_listed(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        flow = shape([Queue("first", max_length=3)], layout)
        async with flow_bench(redis_url, flow, look) as bench:
            jobs = [await bench.create({"n": n}) for n in range(3)]
            assert await bench.engine.delete(jobs[1])
            assert (await bench.engine.counts())[0].waiting == 2
            assert [each.job_id for each in await bench.engine.positions("first", 9)] == [jobs[0], jobs[2]]
            new = await bench.create({"n": 3})
            with pytest.raises(QueueFull):
                await bench.create({"n": 4})
            assert [claim.lease.job_id for claim in await bench.claim("first")] == [jobs[0], jobs[2], new]

    run(check())


@every_layout
def test_the_many_children_of_a_deleted_parent_leave_their_queue_and_the_others_keep_their_order(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        flow = shape([Queue("parent", children=(Queue("kid"),))], layout)
        async with flow_bench(redis_url, flow, look) as bench:
            gone, kept = [
                await bench.create({"children:parent:params": [{"childName": "kid"}] * number}) for number in (1200, 3)
            ]
            await bench.work("parent")
            before = bench.members("parent:kid", "waiting")
            assert await bench.engine.delete(gone)
            left = [key.removeprefix(bench.key("job:")) for key in bench.value(kept, "children:parent:jobs")]
            listed = [child if bench.ranked else child.rpartition(":")[2] for child in left]
            assert bench.members("parent:kid", "waiting") == listed
            assert before[-3:] == listed

    run(check())


@every_layout
def test_a_running_job_that_is_deleted_leaves_nothing_behind(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN, layout), look) as bench:
            job = await bench.create({"n": 1})
            (claim,) = await bench.claim("first")
            assert await bench.engine.delete(job) is True
            assert bench.members("first", "processing") == [job]
            assert await bench.end("first", claim, lambda _: {"x": 1}) == "lost"
            assert bench.all_keys() == set()

    run(check())


@every_layout
def test_a_limiter_does_not_count_a_deleted_job(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        limiter = Limiter(reservoir=1, interval=60, group_by="g")
        async with flow_bench(redis_url, shape([Queue("first", limiter=limiter)], layout), look) as bench:
            jobs = [await bench.create({"g": "a"}) for _ in range(3)]
            late = await bench.create({"g": "a"}, delay=60)
            assert len(await bench.claim("first")) == 1
            counter = bench.key("counter:delay:enqueued:first:a")
            assert look.get(counter) == "2"
            await bench.engine.delete(jobs[2])
            assert look.get(counter) == "1"
            await bench.engine.delete(late)  # delayed, and not by the limiter
            assert look.get(counter) == "1"
            assert bench.members("first", "delayed") == [jobs[1]]

    run(check())


@every_layout
def test_children_that_wait_for_a_limiter_are_forgotten_with_their_parent(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout), look) as bench:
            job = await bench.create({"children:parent:params": [{"childName": "kid"}] * 3})
            await bench.work("parent")
            assert len(await bench.claim("parent:kid")) == 1
            counter = bench.key("counter:delay:enqueued:parent:kid:default")
            assert (look.get(counter), len(bench.members("parent:kid", "delayed"))) == ("2", 2)
            await bench.engine.delete(job)
            assert (look.get(counter), bench.members("parent:kid", "delayed")) == ("0", [])

    run(check())


@every_layout
def test_a_suspect_without_a_hash_is_dropped(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(PLAIN, layout), look) as bench:
            job = await bench.create({"n": 1})
            look.hset(bench.hash_key(job), "resets:first", "2")
            assert await bench.claim("first") == []
            assert look.lrange(bench.queue("first", "suspects"), 0, -1) == [job]
            await bench.engine.delete(job)
            assert bench.all_keys() == set()

    run(check())


@pytest.mark.parametrize("job", ["no-such", "other:no-such", "userId:1", "parent:kid:none", "parent:kid:a:b", "demo:"])
@every_layout
def test_a_key_that_is_no_job_is_not_deleted(
    run: Run, redis_url: str, look: redis.Redis, layout: str, job: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout, lookup=("userId",)), look) as bench:
            await bench.create({"userId": 1})
            before = bench.all_keys()
            assert await bench.engine.delete(job) is False
            assert await bench.engine.read([job], resolve_children=True) == [None]
            assert bench.all_keys() == before

    run(check())


@every_layout
def test_keys_that_are_no_children_are_neither_read_nor_deleted(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout), look) as bench:
            other = await bench.create({"n": 1})
            names = [bench.hash_key(other), "precious", bench.key("job:parent:kid:x"), 7, None]
            look.set("precious", "1")
            look.set(bench.key("job:parent:kid:x"), "1")
            job = await bench.create({"children:parent:jobs": names})
            ((read,), kept) = await bench.engine.read([job], resolve_children=True), bench.all_keys()
            assert read is not None
            assert read["children:parent:jobs"] == []
            assert await bench.engine.delete(job)
            assert bench.all_keys() == kept - {bench.hash_key(job)}

    run(check())
