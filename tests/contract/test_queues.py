"""Queues: every job is in one, claims choose between them, and they can be paused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import KeyMode, NewJob, State
from stowhand.jobs.queues import Queues
from stowhand.jobs.task_limits import NO_DECLARATIONS, TaskDeclarations
from stowhand.protocols.counts import Pauses
from stowhand.protocols.operator import LOST_WORKER_RETENTION_SECONDS, QueueChange, WorkerDescription, WorkerList
from stowhand.protocols.queue_store import JobFilter, Reschedule
from stowhand.protocols.search import Search
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, SNOOZED, StoreHarness
from tests.contract.test_wake import asleep, woken

pytestmark = needs("jobs")

MAIL, DEFAULT = Queues(("mail",)), Queues(("default",))
CARD = WorkerDescription(name="w1", host="h", pid=7, version="1", tasks=("t",), concurrency=4)


async def ids(harness: StoreHarness, queues: Queues, limit: int = 10, **request: Any) -> list[int]:
    return [claim.lease.job_id for claim in await harness.claim(limit, queues=queues, **request)]


async def test_a_job_is_in_the_queue_default_unless_the_call_names_another(harness: StoreHarness) -> None:
    plain, mail = await harness.add(), await harness.add(queue="mail")
    assert (plain.queue, mail.queue) == ("default", "mail")
    assert [claim.record.queue for claim in await harness.claim(10)] == ["default", "mail"]
    await harness.add(queue="default")
    assert (await harness.claim())[0].record.queue == "default"


@pytest.mark.parametrize("name", ["a,b", " a", "a "])
async def test_a_queue_that_no_worker_option_could_name_is_refused(harness: StoreHarness, name: str) -> None:
    jobs = harness.store.jobs
    for job in (
        NewJob(task="t", queue=name),
        NewJob(task="t", queue=name, key="k"),
        NewJob(task="t", queue=name, expires=9.0),
    ):
        with pytest.raises(InvalidJob, match="queue"):
            await jobs.enqueue(job)
        with pytest.raises(InvalidJob, match="queue"):
            await jobs.enqueue_many([NewJob(task="t"), job])
    assert await harness.claim() == []


async def test_a_claim_of_all_queues_takes_jobs_in_one_order(harness: StoreHarness) -> None:
    jobs = [
        (await harness.add(task, queue=queue, priority=priority)).id
        for priority in (2, 1)
        for queue in ("mail", None, "bulk")
        for task in ("a", "b")
    ]
    expected = jobs[6:] + jobs[:6]
    for tasks in (None, ("a", "b"), ("a", "b", "c")):
        claims = await harness.claim(20, tasks=tasks)
        assert [claim.lease.job_id for claim in claims] == expected
        await harness.heartbeats.release([claim.lease for claim in claims])


@pytest.mark.parametrize("tasks", [None, ("a",), ("b", "a"), ("a", "b", "c")], ids=["any", "one", "two", "three"])
async def test_a_claim_takes_jobs_of_its_queues_alone(harness: StoreHarness, tasks: tuple[str, ...] | None) -> None:
    instance = {
        queue: [(await harness.add("a", queue=queue, priority=priority)).id for priority in (0, 1, 0)]
        for queue in ("mail", "default", "bulk")
    }
    in_order = {queue: [first, third, second] for queue, (first, second, third) in instance.items()}
    assert await ids(harness, Queues(("nothing",)), tasks=tasks) == []
    assert await ids(harness, Queues(("mail", "bulk"), ("bulk",)), 2, tasks=tasks) == in_order["mail"][:2]
    assert await ids(harness, Queues(None, ("bulk", "default")), tasks=tasks) == in_order["mail"][2:]
    assert await ids(harness, DEFAULT, tasks=tasks) == in_order["default"]
    assert await ids(harness, Queues(None, ("default",)), tasks=tasks) == in_order["bulk"]


async def test_a_claim_of_some_queues_obeys_flags_and_due_times(harness: StoreHarness) -> None:
    await harness.add(queue="mail", flags=("f",))
    await harness.add(queue="mail", delay=60.0)
    allowed = await harness.add(queue="mail")
    assert await ids(harness, MAIL, forbidden_flags=("f",)) == [allowed.id]


@needs("serials")
async def test_a_serial_key_gives_the_first_job_of_the_claims_queues(harness: StoreHarness) -> None:
    bulk = await harness.add(queue="bulk", serial="s")
    mail = await harness.add(queue="mail", serial="s")
    plain = await harness.add(serial="s")
    for queues, job in ((MAIL, mail), (DEFAULT, plain), (Queues(), bulk)):
        (claim,) = await harness.claim(10, queues=queues)
        assert claim.lease.job_id == job.id
        assert await ids(harness, Queues()) == [], "one job of a serial key runs at a time, whatever its queue"
        await harness.heartbeats.release([claim.lease])


async def test_a_suspect_is_claimed_from_its_queue(harness: StoreHarness) -> None:
    suspect = await harness.make_suspect(queue="mail")
    assert await ids(harness, DEFAULT, suspects=True) == []
    assert await ids(harness, MAIL, suspects=True) == [suspect.id]


@pytest.mark.parametrize("settlement", [ERRORED, SNOOZED], ids=["retry", "snooze"])
async def test_a_job_that_waits_again_stays_in_its_queue(harness: StoreHarness, settlement: object) -> None:
    job = await harness.add(queue="mail")
    assert isinstance(settlement, type(ERRORED))
    await harness.settle(await harness.take(queues=MAIL), settlement)
    await harness.pass_time(120)
    assert await ids(harness, DEFAULT) == []
    (claim,) = await harness.claim(queues=MAIL)
    await harness.lose(claim.lease)
    await harness.pass_time(120)
    assert await ids(harness, MAIL) == [job.id]


@needs("keys")
async def test_a_repeat_under_a_key_moves_a_job_to_another_queue(harness: StoreHarness) -> None:
    job = await harness.add(key="k", queue="bulk")
    await harness.add(key="k", key_mode=KeyMode.UNSAFE_DEDUPE, queue="other")
    await harness.add(key="k", key_mode=KeyMode.UNIQUE, queue="other")
    assert (await harness.job(job.id)).queue == "bulk"
    assert (await harness.add(key="k", queue="mail")).queue == "mail"
    assert await ids(harness, Queues(("bulk",))) == []
    assert await ids(harness, MAIL) == [job.id]


@needs("admin")
@pytest.mark.parametrize("serial", [None, "s"])
async def test_a_rescheduled_job_moves_to_another_queue(harness: StoreHarness, serial: str | None) -> None:
    jobs = [await harness.add(queue="bulk", serial=serial) for _ in range(2)]
    moved = Reschedule(queue="mail")
    (job,) = await harness.store.admin.reschedule_jobs([jobs[0].id], moved)
    assert (job.queue, job.run_at, job.attempts) == ("mail", jobs[0].run_at, 0)
    (claim,) = await harness.claim(10, queues=MAIL)
    assert claim.lease.job_id == job.id
    assert await harness.store.admin.reschedule_jobs([job.id], moved) == [], "a running job stays where it is"
    await harness.heartbeats.release([claim.lease])
    assert await ids(harness, Queues(("bulk",))) == [jobs[1].id]


async def test_the_next_due_job_is_one_of_the_claims_queues(harness: StoreHarness) -> None:
    await harness.add(queue="bulk", delay=5.0)
    await harness.add(queue="mail", delay=10.0)
    await harness.add(delay=20.0, serial="s")
    store = harness.store
    assert await store.next_due(("t",)) == pytest.approx(5.0)
    assert await store.next_due(("t",), MAIL) == pytest.approx(10.0)
    assert await store.next_due(None, Queues(None, ("bulk", "mail"))) == pytest.approx(20.0)
    assert await store.next_due(("t",), Queues(("other",))) is None


@needs("operate")
async def test_no_job_of_a_paused_queue_is_claimed(harness: StoreHarness) -> None:
    operate = harness.store.operate
    mail = [(await harness.add(queue="mail", serial=serial)).id for serial in (None, "s")]
    plain = await harness.add(priority=1)
    assert await operate.pause_queue("mail") == QueueChange("mail", True)
    assert await operate.pause_queue("mail") == QueueChange("mail", False)
    assert await harness.store.inspect.pauses() == Pauses(queues={"mail": harness.now})
    assert await harness.store.next_due(("t",), MAIL) is None
    assert await ids(harness, Queues()) == [plain.id]
    assert await ids(harness, MAIL) == []
    assert await operate.resume_queue("mail") == QueueChange("mail", True)
    assert await operate.resume_queue("mail") == QueueChange("mail", False)
    assert await ids(harness, Queues()) == mail


@needs("operate")
async def test_the_queue_default_can_be_paused(harness: StoreHarness) -> None:
    plain, mail = await harness.add(), await harness.add(queue="mail")
    await harness.store.operate.pause_queue("default")
    assert await ids(harness, Queues()) == [mail.id]
    await harness.store.operate.resume_queue("default")
    assert await ids(harness, Queues()) == [plain.id]


@needs("operate")
async def test_a_resumed_queue_wakes_a_worker(harness: StoreHarness) -> None:
    await harness.store.operate.pause_queue("mail")
    waiting = await asleep(harness, harness.store)
    await harness.store.operate.resume_queue("mail")
    assert await woken(waiting)


async def test_a_producer_that_names_no_queue_gets_the_one_that_a_worker_declared(harness: StoreHarness) -> None:
    roll = harness.heartbeats
    assert isinstance(roll, WorkerList)
    await roll.worker_seen(CARD, TaskDeclarations({"t": "mail", "u": "default"}))
    assert [(await harness.add(task)).queue for task in ("t", "u", "v")] == ["mail", "default", "default"]
    assert (await harness.add(queue="default")).queue == "default"
    (one, two) = await harness.store.jobs.add_jobs([NewJob(task="t"), NewJob(task="t", key="k", queue="bulk")])
    assert (one.queue, two.queue) == ("mail", "bulk")
    for given, queues in (
        ([None], ["mail"]),
        (["default", "default"], ["default", "default"]),
        (["default", None, "bulk"], ["default", "mail", "bulk"]),
    ):
        many = await harness.store.jobs.enqueue_many([NewJob(task="t", queue=queue) for queue in given])
        assert [(await harness.job(job_id)).queue for job_id in many] == queues


async def test_the_queue_of_a_task_is_what_the_worker_that_started_last_has_declared(harness: StoreHarness) -> None:
    old, new = harness.heartbeats, harness.another_heartbeats(harness.store)
    assert isinstance(old, WorkerList)
    assert isinstance(new, WorkerList)
    await old.worker_seen(CARD, TaskDeclarations({"t": "mail"}))
    await new.worker_seen(msgspec.structs.replace(CARD, name="w2"), TaskDeclarations({"t": "default"}))
    await old.worker_seen(CARD, TaskDeclarations({"t": "mail"}))
    assert (await harness.add()).queue == "default", "an older worker that still runs declares nothing more"
    await harness.pass_time(LOST_WORKER_RETENTION_SECONDS + 1)
    await harness.heartbeats.maintain()
    await old.worker_seen(CARD, TaskDeclarations({"t": "mail"}))
    assert (await harness.add()).queue == "default", "nor one that was away for so long that it is listed anew"
    again = harness.another_heartbeats(harness.store)
    assert isinstance(again, WorkerList)
    await again.worker_seen(CARD, TaskDeclarations({"t": "bulk"}))
    assert (await harness.add()).queue == "bulk", "a worker that starts under a known name declares them"


@needs("inspect")
async def test_an_explanation_names_a_queue_that_no_worker_serves(harness: StoreHarness) -> None:
    roll = harness.heartbeats
    assert isinstance(roll, WorkerList)
    await roll.worker_seen(msgspec.structs.replace(CARD, queues=Queues(None, ("bulk",))), NO_DECLARATIONS)
    job = await harness.add(queue="bulk")
    explanation = await harness.store.inspect.explain(job.id)
    assert explanation is not None
    assert "unserved_queue" in [reason.code for reason in explanation.reasons]
    served = await harness.store.inspect.explain((await harness.add(queue="mail")).id)
    assert served is not None
    assert "unserved_queue" not in [reason.code for reason in served.reasons]
    assert job.state is State.QUEUED


@needs("inspect")
async def test_figures_count_the_live_jobs_of_each_queue(harness: StoreHarness) -> None:
    await harness.start("running", queue="mail")
    await harness.in_state(State.FAILED, queue="mail")
    await harness.in_state(State.ERRORED, queue="mail")
    await harness.make_suspect(queue="mail")
    for serial in (None, "s", "s"):
        await harness.add(queue="mail", serial=serial)
    await harness.add(queue="mail", delay=60.0)
    await harness.add()
    counts = {one.name: one for one in (await harness.store.inspect.figures()).queues}
    mail, default = counts["mail"], counts["default"]
    assert [amount.number for amount in (mail.waiting, mail.errored, mail.due, mail.processing, mail.failed)] == [
        *(6, 1, 4, 1, 1)
    ]
    assert (default.waiting.number, default.due.number, default.failed.number) == (1, 1, 0)


@needs("inspect")
async def test_a_queue_is_known_from_jobs_workers_tasks_and_pauses(harness: StoreHarness) -> None:
    roll, inspect = harness.heartbeats, harness.store.inspect
    assert [row.name for row in await inspect.queues()] == ["default"]
    assert isinstance(roll, WorkerList)
    card = msgspec.structs.replace(CARD, queues=Queues(("mail", "default")))
    await roll.worker_seen(card, TaskDeclarations({"t": "bulk"}))
    await harness.store.operate.pause_queue("night")
    await harness.add(queue="other")
    rows = {row.name: row for row in await inspect.queues()}
    assert [*rows] == ["bulk", "default", "mail", "night", "other"]
    assert rows["night"].paused_since == harness.now
    assert (rows["mail"].serving, rows["mail"].workers, rows["other"].serving) == (1, ("w1",), 0)
    assert [row.name for row in rows.values() if row.is_unserved] == ["other"]
    figures = {one.name: one.waiting.number for one in (await inspect.figures()).queues}
    assert figures == {"other": 1, **dict.fromkeys(("bulk", "default", "mail", "night"), 0)}


@needs("inspect")
async def test_the_oldest_due_job_of_each_queue(harness: StoreHarness) -> None:
    await harness.add(queue="mail")
    await harness.add(queue="mail", serial="s")
    await harness.pass_time(30.0)
    await harness.add()
    await harness.add(queue="bulk", delay=60.0)
    await harness.pass_time(5.0)
    ages = {"default": pytest.approx(5.0, abs=0.1), "mail": pytest.approx(35.0, abs=0.1)}
    assert await harness.store.inspect.oldest_due() == ages
    await harness.store.operate.pause_queue("mail")
    assert list(await harness.store.inspect.oldest_due()) == ["default"]


@needs("inspect")
async def test_jobs_are_found_by_their_queue(harness: StoreHarness) -> None:
    mail = [await harness.add(queue="mail"), await harness.in_state(State.COMPLETED, queue="mail")]
    plain = await harness.add()
    inspect, states = harness.store.inspect, tuple(State)
    for queue, jobs in (("mail", mail), ("default", [plain]), ("other", [])):
        assert {job.id for job in await inspect.list(JobFilter(queue=queue, states=states))} == {job.id for job in jobs}
        assert {job.id for job in (await inspect.search(Search(queue=queue))).jobs} == {job.id for job in jobs}
