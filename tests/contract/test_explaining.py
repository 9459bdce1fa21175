"""Why does a job not run? Every reason, the most important first."""

from __future__ import annotations

import pytest

from stowhand import explaining
from stowhand.job import State
from stowhand.operating import Reason, Roll, WorkerCard
from tests.contract.bench import ERRORED, Bench, in_thread

CARD = WorkerCard(name="w1", host="h", pid=7, version="1.2", tasks=("t",), concurrency=4)


async def reasons(bench: Bench, job_id: int) -> dict[str, Reason]:
    found = await bench.store.explain(job_id)
    assert found is not None
    assert found.job == await bench.job(job_id)
    assert found.reasons, "there is always a reason"
    codes = [reason.code for reason in found.reasons]
    assert len(set(codes)) == len(codes)
    assert set(codes) <= set(explaining.CODES)
    return {reason.code: reason for reason in found.reasons}


async def seen(bench: Bench, card: WorkerCard = CARD) -> None:
    assert isinstance(bench.heart, Roll)
    await in_thread(bench.heart.worker_seen, card)


async def test_there_is_nothing_to_say_of_an_unknown_job(bench: Bench) -> None:
    assert await bench.store.explain(12345) is None
    assert await bench.store.explain(-1) is None


async def test_a_due_job_says_how_many_are_ahead_of_it(bench: Bench) -> None:
    await seen(bench)
    await bench.add(priority=-1)
    await bench.add(priority=-1, delay=60.0)
    await bench.add(priority=-1, queue="q")
    job = await bench.add()
    found = await reasons(bench, job.id)
    assert list(found) == ["due"]
    assert found["due"].what == "it is due; ahead of it among those without a queue: 1"
    await bench.take()
    alone = (await reasons(bench, job.id))["due"].what
    assert alone == "it is due, and no job is ahead of it among those without a queue"


async def test_one_that_is_not_due_says_when(bench: Bench) -> None:
    await seen(bench)
    job = await bench.add(delay=60.0)
    found = await reasons(bench, job.id)
    assert list(found) == ["not_due"]
    assert f"{job.run_at:%H:%M:%S}Z" in found["not_due"].what
    assert str(job.id) in found["not_due"].todo


async def test_one_that_waits_for_its_retry_says_which(bench: Bench) -> None:
    await seen(bench)
    lease = await bench.start()
    await bench.settle(lease, ERRORED)
    found = await reasons(bench, lease.job_id)
    assert list(found) == ["waits_for_retry"]
    assert "attempt 1 of 25 failed" in found["waits_for_retry"].what


async def test_a_paused_queue_comes_before_its_holder(bench: Bench) -> None:
    await seen(bench)
    holder = await bench.start(queue="my queue")
    job = await bench.add(queue="my queue")
    await bench.add(queue="my queue", priority=5)
    await bench.store.pause_queue("my queue")
    found = await reasons(bench, job.id)
    assert list(found) == ["queue_paused", "queue_held", "due"]
    assert found["queue_paused"].todo == "stowhand queues resume 'my queue'"
    assert f"job {holder.job_id}" in found["queue_held"].what
    assert "w1" in found["queue_held"].what
    assert "no job is ahead of it in its queue" in found["due"].what
    assert list(await reasons(bench, holder.job_id)) == ["running"]


async def test_a_queue_that_a_dead_workers_job_holds_says_so(bench: Bench) -> None:
    await seen(bench)
    holder = await bench.start(queue="q")
    job = await bench.add(queue="q")
    assert "lease" not in (await reasons(bench, job.id))["queue_held"].what
    await bench.pass_time(31)
    held = (await reasons(bench, job.id))["queue_held"].what
    assert f"job {holder.job_id}" in held
    assert "under a lease which has ended: if its worker is dead, another one takes the job back" in held


async def test_a_pause_without_a_holder_is_a_pause_alone(bench: Bench) -> None:
    await seen(bench)
    job = await bench.add(queue="q")
    await bench.store.pause_queue("q")
    assert list(await reasons(bench, job.id)) == ["queue_paused", "due"]


async def test_no_worker_and_no_worker_with_the_task(bench: Bench) -> None:
    job = await bench.add("other")
    assert list(await reasons(bench, job.id)) == ["no_worker", "due"]
    await seen(bench)
    assert list(await reasons(bench, job.id)) == ["unknown_task", "due"]
    await seen(bench, WorkerCard(name="w2", host="h", pid=8, version="1", tasks=None, concurrency=1))
    assert list(await reasons(bench, job.id)) == ["due"]
    await bench.pass_time(3600)
    assert list(await reasons(bench, job.id)) == ["no_worker", "due"], "they have died meanwhile"
    stopping = WorkerCard(name="w1", host="h", pid=7, version="1", tasks=None, concurrency=4, stopping=True)
    await seen(bench, stopping)
    assert "every worker that is alive is stopping" in (await reasons(bench, job.id))["no_worker"].what
    assert list(await reasons(bench, job.id)) == ["no_worker", "due"]


async def test_a_suspect_and_flags_are_told(bench: Bench) -> None:
    await seen(bench, WorkerCard(name="w1", host="h", pid=7, version="1", tasks=None, concurrency=4))
    job = await bench.make_suspect(flags=("gpu", "big"))
    found = await reasons(bench, job.id)
    assert list(found) == ["suspect", "flags", "due"]
    assert "died 2 times" in found["suspect"].what
    assert "gpu, big" in found["flags"].what


async def test_a_running_job_says_where_and_until_when(bench: Bench) -> None:
    lease = await bench.start()
    found = await reasons(bench, lease.job_id)
    assert list(found) == ["running"]
    assert "on w1" in found["running"].what
    assert "has ended" not in found["running"].what
    await bench.store.cancel(lease.job_id)
    await bench.pass_time(3600)
    found = await reasons(bench, lease.job_id)
    assert list(found) == ["running", "cancel_asked"]
    assert "which has ended" in found["running"].what


@pytest.mark.parametrize("state", [State.COMPLETED, State.CANCELED, State.FAILED])
async def test_one_that_is_over_says_so(bench: Bench, state: State) -> None:
    job = await bench.in_state(state)
    found = await reasons(bench, job.id)
    assert list(found) == [state.value]
    assert ("stowhand jobs retry" in found[state.value].todo) == (state is not State.COMPLETED)


async def test_one_whose_attempts_are_used_up_says_so(bench: Bench) -> None:
    job = await bench.in_state(State.FAILED, max_attempts=1)
    found = await reasons(bench, job.id)
    assert list(found) == ["attempts_used_up"]
    assert "1 of 1" in found["attempts_used_up"].what
