"""The engine of flows on Redis: what a worker function is given, what its end leaves, and what parents do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from stowhand.errors import UndecodablePayload
from stowhand.flows.job import FlowJob
from stowhand.flows.step_handler import DelayError
from stowhand.jobs.lifecycle import Complete
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import Verdict
from tests.conftest import Run
from tests.support.flow_bench import SHAPES, FlowBench, Queue, flow_bench, shape
from tests.support.valkey import LiveRedis

STEPS = [
    Queue("first", ("userId", "n", "missing"), next_queue="second", delayable=True),
    Queue("second", next_queue="third"),
    Queue("third"),
]
FAMILY = [
    Queue("parent", ("whatever",), next_queue="last", children=(Queue("kid"), Queue("other"))),
    Queue("last"),
]
every_layout = pytest.mark.parametrize("layout", SHAPES)


@pytest.fixture
def look(redis_server: LiveRedis, redis_url: str) -> Iterator[redis.Redis]:
    """How the test looks."""
    with redis_server.client() as client:
        yield client


def nothing(job: FlowJob) -> object:
    """A worker function."""
    return None


def refuse(job: FlowJob) -> object:
    """A worker function."""
    raise ValueError("ten is bad")


def nested(levels: int) -> list[Any]:
    """Lists in a list."""
    return [nested(levels - 1)] if levels > 1 else []


def params(*names: str) -> dict[str, Any]:
    """Attributes of a job that fans out."""
    return {"children:parent:params": [{"childName": name, "n": n} for n, name in enumerate(names)]}


def children_of(bench: FlowBench, job: str) -> list[str]:
    """Ids, as people see them."""
    return [key.removeprefix(bench.key("job:")) for key in bench.value(job, "children:parent:jobs")]


# -- steps


@every_layout
def test_a_worker_function_receives_the_attributes_of_its_queue(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(STEPS, layout), look) as bench:
            seen: list[FlowJob] = []
            job = await bench.create({"userId": 1, "n": 3.5, "other": "x"})
            await bench.work("first", seen.append)
            await bench.work("second", seen.append)
            facts = {} if layout == "classic" else {"flowName": "demo", "priority": 1, "correlationId": "corr-1"}
            first, second = seen
            assert dict(first) == {"id": job, "userId": 1, "n": 3.5, "missing": None} | facts
            assert (first.id, first.queue, first.flow, first.priority) == (job, "first", "demo", 1)
            assert (first.correlation_id, first.retries) == ("corr-1", 0)
            everything = {"id": job, "userId": 1, "n": 3.5, "other": "x", "correlationId": "corr-1"}
            assert dict(second) | everything | facts == dict(second)
            assert second["completed-queue"] == "first"

    run(check())


@every_layout
def test_a_result_goes_along_to_the_next_queue(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(STEPS, layout), look) as bench:
            ahead = await bench.create({"n": 1})
            await bench.work("first", nothing)
            job = await bench.create({"n": 1})
            (claim,) = await bench.claim("first")
            assert look.get(bench.key(f"lock:first:{job}")) == f"bench{'' if bench.ranked else '+'}:{claim.lease.token}"
            assert await bench.end("first", claim, lambda _: {"x": 1, "n": [2], "gone": None}) is Verdict.SETTLED
            assert {name: bench.value(job, name) for name in ("x", "n", "completed-queue")} == {
                "x": 1, "n": [2], "completed-queue": "first"
            }  # fmt: skip
            assert look.hexists(bench.hash_key(job), "gone") is False
            assert bench.members("second", "waiting") == [ahead, job]
            assert bench.members("first", "processing") == []
            assert look.exists(bench.key(f"lock:first:{job}")) == 0

            await bench.work("second", nothing)
            await bench.work("third", lambda _: {"done": True})
            assert bench.all_keys() == {bench.hash_key(ahead), bench.hash_key(job)}
            assert (bench.value(job, "completed-queue"), bench.value(job, "done")) == ("third", True)
            assert look.ttl(bench.hash_key(job)) > 86_000

    run(check())


def test_the_result_may_choose_the_next_queue(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(STEPS), look) as bench:
            job, lost = await bench.create({}), await bench.create({})
            await bench.work("first", lambda _: {"next_queue": "third"}, limit=1)
            assert bench.members("third", "waiting") == [job]
            await bench.work("first", lambda _: {"next_queue": "nowhere"})
            assert bench.value(lost, "failed") is True
            assert "'nowhere'" in bench.value(lost, "failedErrorMsg")

    run(check())


@pytest.mark.parametrize("end", ["a result", "an error"])
@every_layout
def test_a_hash_that_is_gone_is_not_made_again(
    run: Run, redis_url: str, look: redis.Redis, layout: str, end: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(STEPS, layout), look) as bench:
            job = await bench.create({"n": 1})
            (claim,) = await bench.claim("first")
            look.delete(bench.hash_key(job))  # as when it expires
            assert await bench.end("first", claim, nothing if end == "a result" else refuse) is Verdict.LOST
            assert bench.all_keys() == set()

    run(check())


@every_layout
def test_a_job_whose_value_is_no_json_fails_alone(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(STEPS, layout), look) as bench:
            bad, good = await bench.create({"n": 1}), await bench.create({"n": 2})
            look.hset(bench.hash_key(bad), mapping={"n": "{no", "other": "{nor this"})
            assert await bench.work("first", nothing) == 2
            assert bench.value(bad, "failedErrorMsg").startswith("attribute 'n': ")
            assert bench.members("second", "waiting") == [good]
            look.hset(bench.hash_key(good), "correlationId", "nor this")
            (claim,) = await bench.claim("second")
            with pytest.raises(UndecodablePayload, match="attribute 'correlationId'"):
                bench.engine.job(bench.engine.shape.find_queue("second"), Attempt(claim, 0.0), claim.record)

    run(check())


@every_layout
def test_a_failure_says_where_and_why(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(STEPS, layout), look) as bench:
            job = await bench.create({"n": 10})
            await bench.work("first", refuse)
            failed = {"done": "true", "failed": "true", "failedQueue": '"first"', "failedErrorMsg": '"ten is bad"'}
            assert bench.hash(job) | failed == bench.hash(job)
            assert bench.all_keys() == {bench.hash_key(job), bench.queue("first", "failed")}

    run(check())


@every_layout
def test_a_delay_is_kept_with_its_reason(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        def wait(job: FlowJob) -> object:
            raise DelayError("the night is young", 60)

        async with flow_bench(redis_url, shape(STEPS, layout), look) as bench:
            job = await bench.create({"n": 1})
            await bench.work("first", wait)
            assert bench.members("first", "delayed") == [job]
            assert bench.value(job, "delayReason") == "the night is young"
            assert bench.engine._reasons == {}

    run(check())


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"\ud800": 1}, "cannot be written"),
        ({"deep": nested(62)}, None),
        ({"deep": nested(64)}, "nested deeper"),
    ],
    ids=["a name that is not Unicode", "deep", "too deep"],
)
def test_a_result_that_cannot_be_written_fails_its_job(
    run: Run, redis_url: str, look: redis.Redis, result: dict[str, Any], why: str | None
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(STEPS), look) as bench:
            job = await bench.create({"n": 1})
            await bench.work("first", lambda _: result)
            assert (bench.value(job, "failed") is True) == (why is not None)
            assert bench.members("second", "waiting") == ([] if why else [job])
            if why:
                assert why in bench.value(job, "failedErrorMsg")

    run(check())


# -- parents


@every_layout
def test_children_are_created_once_with_their_parameters(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout), look) as bench:
            job = await bench.create(params("kid", "other", "stranger", "kid"))
            value = look.hget(bench.hash_key(job), "children:parent:params")
            look.hset(bench.hash_key(job), "children:parent:params", f"[7,null,{str(value)[1:]}")
            (claim,) = await bench.claim("parent")
            attempt = Attempt(claim, 0.0)
            warned: list[str] = []
            attempt._logger = lambda _: type("Said", (), {"warning": lambda self, words: warned.append(words)})()
            flow_job = bench.engine.job(bench.engine.shape.find_queue("parent"), attempt, claim.record)
            assert isinstance(await bench.engine.parent(bench.engine.shape.find_queue("parent"), flow_job), Complete)
            assert [words.partition(" ")[0] for words in warned] == [f"children:parent:params[{n}]" for n in (0, 1, 4)]

            assert await bench.end("parent", claim) is Verdict.SETTLED
            children = children_of(bench, job)
            assert [child.rpartition(":")[0] for child in children] == ["parent:kid", "parent:other", "parent:kid"]
            listed = [child if bench.ranked else child.rpartition(":")[2] for child in children]
            assert bench.members("parent:kid", "waiting") == [listed[0], listed[2]]
            assert bench.members("parent:other", "waiting") == [listed[1]]
            facts = {} if layout == "classic" else {"flowName": '"parent:kid"', "priority": "1"}
            assert bench.hash(children[2]) == {
                "n": "3", "parent": f'"{job}"', "correlationId": '"corr-1"', "flow:state": '"waiting:parent:kid"'
            } | facts  # fmt: skip
            assert bench.lives(bench.hash_key(children[2]))
            assert bench.members("parent", "parked") == [job]
            assert bench.all_keys() == {
                bench.hash_key(job), *map(bench.hash_key, children), bench.queue("parent", "parked"),
                bench.queue("parent:kid", "waiting"), bench.queue("parent:other", "waiting"),
            }  # fmt: skip

            # Run again, for whatever reason: it waits on.
            look.zrem(bench.queue("parent", "parked"), job)
            look.rpush(bench.queue("parent", "waiting"), job)
            await bench.work("parent")
            assert children_of(bench, job) == children
            assert bench.members("parent:kid", "waiting") == [listed[0], listed[2]]
            assert bench.members("parent", "parked") == [job]

    run(check())


@every_layout
def test_a_parent_continues_with_the_results_in_order_when_all_children_have_ended(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout), look) as bench:
            job = await bench.create(params("kid", "other", "kid"))
            await bench.work("parent")
            children = children_of(bench, job)
            seen: list[str] = []

            def note(job: FlowJob) -> object:
                assert (job.queue, job.flow) == ("parent:kid", "demo")
                seen.append(job.id)
                return {"square": job["n"] ** 2}

            await bench.work("parent:kid", note)
            assert seen == [children[0], children[2]]
            assert await bench.work("parent") == 0
            await bench.work("parent:other", refuse)
            assert bench.members("parent", "waiting") == [job]
            assert await bench.work("parent") == 1
            assert bench.members("last", "waiting") == [job]
            results = bench.value(job, "children:parent:results")
            assert [child["id"] for child in results] == children
            assert [child.get("square") for child in results] == [0, None, 4]
            assert [child.get("completed-queue") for child in results] == ["parent:kid", None, "parent:kid"]
            assert [child["done"] for child in results] == [True] * 3
            failed = {"failed": True, "failedQueue": "parent:other", "failedErrorMsg": "ten is bad"}
            assert results[1] | failed == results[1]
            assert bench.value(job, "completed-queue") == "parent"

    run(check())


@pytest.mark.parametrize("given", [params(), params("stranger"), {}], ids=["none", "only unknown ones", "no list"])
@every_layout
def test_a_parent_without_children_completes_at_once(
    run: Run, redis_url: str, look: redis.Redis, layout: str, given: dict[str, Any]
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout), look) as bench:
            job = await bench.create(given)
            assert await bench.work("parent") == 1
            assert bench.value(job, "children:parent:results") == []
            assert bench.members("last", "waiting") == [job]

    run(check())


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ("children:parent:params", '"kid"', "is not a list of objects"),
        ("children:parent:params", "[", "attribute 'children:parent:params': "),
        ("children:parent:jobs", '["precious"]', "is not a list of children"),
        ("children:parent:jobs", "7", "is not a list of children"),
    ],
    ids=["no list", "no JSON", "a stranger's key", "a number"],
)
def test_a_parent_with_broken_attributes_fails(
    run: Run, redis_url: str, look: redis.Redis, field: str, text: str, why: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY), look) as bench:
            job = await bench.create({"unrelated": 1})
            look.hset(f"job:demo:{job}", mapping={field: text, "unrelated": "{broken, and not asked for"})
            await bench.work("parent")
            assert why in bench.value(job, "failedErrorMsg")

    run(check())


@every_layout
def test_a_parent_without_a_hash_ends(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout), look) as bench:
            job = await bench.create(params("kid"))
            await bench.work("parent")
            (child,) = children_of(bench, job)
            look.delete(bench.hash_key(job))
            await bench.work("parent:kid", nothing)
            look.zadd(bench.queue("parent", "parked"), {job: 1}, xx=True)  # ten seconds later
            assert await bench.engine.sweep() == 0
            assert bench.all_keys() == {bench.hash_key(child)}

    run(check())


@every_layout
def test_a_child_whose_hash_has_expired_has_failed(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout), look) as bench:
            job = await bench.create(params("kid", "other"))
            await bench.work("parent")
            kid, _ = children_of(bench, job)
            look.delete(bench.hash_key(kid))
            await bench.work("parent:other", lambda _: {"x": 1})
            look.zadd(bench.queue("parent", "parked"), {job: 1}, xx=True)
            await bench.engine.sweep()
            await bench.work("parent")
            lost, other = bench.value(job, "children:parent:results")
            assert lost == {"id": kid, "done": True, "failed": True, "failedErrorMsg": "its hash expired"}
            assert other["x"] == 1

    run(check())


@every_layout
def test_a_child_that_the_sweep_has_failed_lets_its_parent_finish(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(FAMILY, layout), look) as bench:
            job = await bench.create(params("kid"))
            await bench.work("parent")
            (child,) = children_of(bench, job)
            (claim,) = await bench.claim("parent:kid")
            look.delete(bench.key(f"lock:parent:kid:{claim.lease.job_id}"))
            assert await bench.engine.sweep() == 0
            look.zadd(bench.queue("parent:kid", "unlocked"), {claim.lease.job_id: 1}, xx=True)  # a second later
            assert await bench.engine.sweep() == 1
            assert bench.value(child, "failedErrorMsg") == "parent:kid lock time exceeded"
            await bench.work("parent")
            assert bench.members("last", "waiting") == [job]
            assert bench.value(job, "children:parent:results")[0]["failed"] is True

    run(check())


@every_layout
def test_results_that_the_original_left_before_it_died_are_written_over(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    """It writes results first, and moves the job in a second step."""

    async def check() -> None:
        queues = [Queue("first", next_queue="second", max_retries=1), Queue("second")]
        async with flow_bench(redis_url, shape(queues, layout), look) as bench:
            job = await bench.create({"n": 1})
            await bench.claim("first")
            look.hset(bench.hash_key(job), mapping={"x": "1", "completed-queue": '"first"'})
            look.delete(bench.key(f"lock:first:{job}"))
            await bench.engine.sweep()
            look.zadd(bench.queue("first", "unlocked"), {job: 1}, xx=True)
            assert await bench.engine.sweep() == 1
            assert bench.members("first", "waiting") == [job]
            assert await bench.work("first", lambda _: {"x": 2}) == 1
            assert bench.value(job, "x") == 2
            assert bench.members("second", "waiting") == [job]
            assert bench.all_keys() == {bench.hash_key(job), bench.queue("second", "waiting")}

    run(check())


@every_layout
def test_the_sweep_drops_an_id_whose_hash_has_expired(run: Run, redis_url: str, look: redis.Redis, layout: str) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(STEPS, layout), look) as bench:
            job = await bench.create({"n": 1})
            await bench.claim("first")
            look.delete(bench.hash_key(job), bench.key(f"lock:first:{job}"))
            await bench.engine.sweep()
            look.zadd(bench.queue("first", "unlocked"), {job: 1}, xx=True)
            assert await bench.engine.sweep() == 0
            assert bench.all_keys() == set()

    run(check())


@every_layout
def test_a_settlement_without_its_lock_changes_nothing(
    run: Run, redis_url: str, look: redis.Redis, layout: str
) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape(STEPS, layout), look) as bench:
            job = await bench.create({"n": 1})
            (claim,) = await bench.claim("first")
            look.delete(bench.key(f"lock:first:{job}"))
            before = bench.hash(job)
            assert await bench.end("first", claim, lambda _: {"next_queue": "third", "x": 1}) is Verdict.LOST
            assert bench.hash(job) == before
            assert bench.members("third", "waiting") == []

    run(check())


def test_an_id_missing_in_processing_is_reported(run: Run, redis_url: str, look: redis.Redis) -> None:
    async def check() -> None:
        async with flow_bench(redis_url, shape([Queue("first")]), look) as bench:
            missing, present = await bench.create({"n": 1}), await bench.create({"n": 2})
            claims = await bench.claim("first")
            look.lrem("queue:first:processing", 1, missing)
            ends = [await bench.end("first", claim, lambda _: {"x": 1}) for claim in claims]
            assert ends == [Verdict.LOST, Verdict.SETTLED]
            assert (bench.value(missing, "x"), bench.value(present, "x")) == (None, 1)

    run(check())
