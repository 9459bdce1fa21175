"""Why does a job not run? Every reason, the most important first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stowhand.jobs.job import State
from stowhand.protocols.operating import Reason, Roll, WorkerCard
from stowhand.stores import explaining
from tests.contract.bench import ERRORED, FAILED, Bench, in_thread

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
    assert found["flags"].what == "it bears flags (gpu, big): no worker alive is known to forbid one"


async def test_workers_that_forbid_a_flag_are_named_and_take_nothing_before_the_job(bench: Bench) -> None:
    await bench.add()
    job = await bench.add(flags=("gpu",))
    await seen(bench, _card("careful", forbidden_flags=("gpu", "big")))
    found = await reasons(bench, job.id)
    assert found["flags"].what == (
        "it bears flags (gpu): every worker alive that has its task forbids one of them (careful: gpu)"
    )
    assert found["due"].what == "it is due", "nobody could take it, so nothing is taken before it"
    await seen(bench, _card("asking", forbidden_flags=None))
    found = await reasons(bench, job.id)
    assert "careful: gpu leaves it alone; 1 of them asks a function each time" in found["flags"].what
    assert found["due"].what == "it is due; ahead of it among those without a queue: 1"


async def test_only_what_workers_take_that_could_take_the_job_is_ahead_of_it(bench: Bench) -> None:
    for queue in (None, "q"):
        await bench.add("nobodys", queue=queue)
        await bench.add(queue=queue)
        await bench.add("another", queue=queue)
        await bench.add(queue=queue, flags=("big",))
    jobs = [await bench.add(queue=queue) for queue in (None, "q")]
    await seen(bench, _card("both", tasks=("t", "another"), forbidden_flags=("big",)))
    await seen(bench, _card("other", tasks=("nobodys",)))
    assert [(await reasons(bench, job.id))["due"].what[-3:] for job in jobs] == [": 2", ": 2"]


async def test_when_every_slot_is_busy_the_oldest_job_is_named(bench: Bench) -> None:
    first = await bench.start()
    await bench.pass_time(20.0)
    await seen(bench, _card("w1", concurrency=1))
    job = await bench.add()
    busy = (await reasons(bench, job.id))["slots_busy"].what
    assert busy == (
        f"the one slot of the one worker that could take it is busy, the oldest for 20s with job {first.job_id} (t)"
    )
    await seen(bench, _card("w2", tasks=("another",)))
    assert "slots_busy" in await reasons(bench, job.id), "its slots are no use to this job"
    await seen(bench, _card("w3"))
    assert "slots_busy" not in await reasons(bench, job.id)


async def test_the_error_of_a_job_is_told(bench: Bench) -> None:
    await seen(bench)
    error = "LookupError: no such order\nTraceback"
    lease = await bench.start()
    await bench.settle(lease, msgspec.structs.replace(ERRORED, error=error))
    found = await reasons(bench, lease.job_id)
    assert "failed: LookupError: no such order; the next one" in found["waits_for_retry"].what
    lease = await bench.start(max_attempts=1)
    await bench.settle(lease, msgspec.structs.replace(FAILED, error=error))
    found = await reasons(bench, lease.job_id)
    assert found["attempts_used_up"].what.endswith("(1 of 1): LookupError: no such order")


def _card(name: str, **said: Any) -> WorkerCard:
    made: dict[str, Any] = {"tasks": ("t",), "concurrency": 4} | said
    return WorkerCard(name=name, host="h", pid=7, version="1", **made)


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
