"""Settlements that claim: how many in a row, when not, and what happens when the reply is late or lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from stowhand.events import JobEnded, JobLost, JobsReturned, JobStarted
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import Retry, Settlement
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.store import Claim, ClaimRequest, Reply
from stowhand.testing import FakeClock, MemoryStore
from tests.support.chaining import settle_and_claim
from tests.support.memory_rows import Row
from tests.worker.worker_harness import FaultyStore, WorkerHarness, at_work, nothing, taking


class ChainingStore(FaultyStore):
    """Settles and claims in one call, which may wait at the gate "reply", be down or mute as "chain"."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.capabilities = msgspec.structs.replace(self.capabilities, settle_and_claim=self.settle_and_claim)
        self.refusing = False
        """Something more urgent is due, as it seems to the store."""

    async def settle_and_claim(
        self, batch: Sequence[tuple[Lease, Settlement]], request: ClaimRequest
    ) -> tuple[Sequence[Reply], Sequence[Claim[Job]]]:
        self.before("chain", request)
        replies: Sequence[Reply]
        claims: Sequence[Claim[Job]] = []
        if self.refusing:
            replies = await MemoryStore.settle(self, batch)
        else:
            replies, claims = settle_and_claim(self, batch, request)
        if "reply" in self.gates:
            await self.gates["reply"].wait()
        self.after("chain")
        return replies, claims


def chained(harness: WorkerHarness) -> list[ClaimRequest]:
    return harness.store.called("chain")


def rows_in(harness: WorkerHarness, state: State) -> list[Row]:
    return [row for row in harness.store.rows() if row.state is state]


def queued(count: int, **details: Any) -> list[NewJob]:
    return [NewJob(task="act", serial="q", **details) for _ in range(count)]


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_serial_key_continues_without_claims_until_an_ordinary_claim_is_due(concurrency: int) -> None:
    clock = FakeClock()
    order: list[int] = []

    async def act(attempt: Attempt[Job]) -> None:
        order.append(attempt.record.id)

    async with at_work(
        act, clock=clock, store=ChainingStore(clock), jobs=queued(120), concurrency=concurrency
    ) as harness:
        await clock.settle()
        assert order == list(range(1, 121))
        assert len(harness.events(JobEnded)) == 120
        letters = {"chain": "+", "settle": "s", "claim": "c"}
        calls = "".join(letters.get(name, "") for name, _, _ in harness.store.calls)
        assert max(map(len, re.findall(r"\++", calls))) == 50
        assert len(re.findall(r"\+{50}sc", calls)) == 2
        assert {request.limit for request in chained(harness)} == {1}
        assert len({request.token for request in chained(harness)}) == 118, "a fresh one for each call"
        assert len([request for request in harness.store.called("claim") if not request.suspects]) < 12


async def test_a_claim_has_its_turn_after_a_tenth_of_a_second_too() -> None:
    clock = FakeClock()
    async with at_work(
        taking(clock, 0.03), clock=clock, store=ChainingStore(clock), jobs=queued(24), concurrency=4
    ) as harness:
        await clock.advance(1)
        assert len(harness.events(JobEnded)) == 24
        turns = [ids[0] for ids, _ in harness.store.called("settle")]
        assert turns == [7, 13, 19], "rechecks are claims too, and put the next turn off"


async def test_one_slot_never_holds_two_jobs() -> None:
    clock = FakeClock()
    most = 0

    async def act(attempt: Attempt[Job]) -> None:
        nonlocal most
        await clock.sleep(0.01)
        most = max(most, len(rows_in(harness, State.PROCESSING)))

    jobs = [NewJob(task="act", serial=f"q{number % 3}") for number in range(60)] + [NewJob(task="act")] * 30
    async with at_work(act, clock=clock, store=ChainingStore(clock), jobs=jobs, concurrency=1, look_ahead=0) as harness:
        await clock.advance(2)
        assert len(harness.events(JobEnded)) == 90
        assert most == 1
        assert chained(harness)


async def test_a_worker_runs_no_more_than_max_jobs() -> None:
    clock = FakeClock()
    store = ChainingStore(clock)
    async with at_work(nothing, clock=clock, store=store, jobs=queued(9), concurrency=4, max_jobs=5) as harness:
        await harness.ended()
        assert len(harness.events(JobEnded)) == 5
        assert [row.attempts for row in rows_in(harness, State.QUEUED)] == [0] * 4


async def test_once_ends_when_the_last_of_a_queue_has_run() -> None:
    clock = FakeClock()
    async with at_work(nothing, clock=clock, store=ChainingStore(clock), jobs=queued(70), once=True) as harness:
        await harness.ended()
        assert len(harness.events(JobEnded)) == 70


async def test_a_queue_that_does_not_go_on_is_claimed_as_ever() -> None:
    clock = FakeClock()
    store = ChainingStore(clock)
    store.refusing = True
    async with at_work(nothing, clock=clock, store=store, jobs=queued(5), concurrency=1) as harness:
        await clock.settle()
        assert len(harness.events(JobEnded)) == 5
        assert len(chained(harness)) == 5


async def test_other_ends_and_jobs_without_a_queue_are_settled_alone() -> None:
    async def act(attempt: Attempt[Job]) -> object:
        return Retry("again", delay=60.0) if attempt.record.serial else None

    clock = FakeClock()
    jobs = [*queued(2), NewJob(task="act")]
    async with at_work(act, clock=clock, store=ChainingStore(clock), jobs=jobs) as harness:
        await clock.settle()
        assert len(harness.events(JobEnded)) == 3
        assert chained(harness) == []


class Hooked:
    """A handler with code of the application's around each claim, or each job."""

    async def handle(self, attempt: Attempt[Job], record: Job) -> None: ...


class Asked(Hooked):
    async def pre_claim(self, asking: object) -> bool:
        return True


class Prepared(Hooked):
    async def pre_handle(self, attempt: Attempt[Job], record: Job) -> None: ...


@pytest.mark.parametrize(
    ("act", "options"),
    [
        (Asked(), {}),
        (Prepared(), {}),
        (nothing, {"forbidden_flags": lambda: ()}),
        (nothing, {"fair": True, "tasks": ("act", "other")}),
    ],
)
async def test_where_the_application_decides_on_claims_settlements_make_none(act: Any, options: dict[str, Any]) -> None:
    clock = FakeClock()
    async with at_work(act, clock=clock, store=ChainingStore(clock), jobs=queued(4), **options) as harness:
        await clock.advance(1)
        assert len(harness.events(JobEnded)) == 4
        assert chained(harness) == []


async def test_successor_claims_request_the_workers_tasks_and_flags() -> None:
    clock = FakeClock()
    async with at_work(
        nothing, clock=clock, store=ChainingStore(clock), jobs=queued(2), tasks=("act",), forbidden_flags=("heavy",)
    ) as harness:
        await clock.settle()
        (first, *_) = chained(harness)
        assert (first.tasks, first.forbidden_flags, first.worker) == (("act",), ("heavy",), "w")
        assert not first.suspects


# -- the reply is late or lost -------------------------------------------------------------------


def stop(harness: WorkerHarness) -> None:
    harness.worker.stop()


def quiet(harness: WorkerHarness) -> None:
    harness.worker.controls.pause_claims(True)


def set_tasks(harness: WorkerHarness) -> None:
    harness.worker.controls.set_tasks(("other",))


@pytest.mark.parametrize("change", [stop, quiet, set_tasks])
async def test_a_successor_that_the_worker_no_longer_claims_is_returned_without_using_an_attempt(change: Any) -> None:
    clock = FakeClock()
    store = ChainingStore(clock)
    store.gates["reply"] = asyncio.Event()
    async with at_work(nothing, clock=clock, store=store, jobs=queued(2)) as harness:
        await clock.settle()
        assert [row.id for row in rows_in(harness, State.PROCESSING)] == [2]
        change(harness)
        await clock.advance(0.5)
        store.gates.pop("reply").set()
        await clock.advance(1)
        assert [event.job_id for event in harness.events(JobEnded)] == [1]
        assert [(row.id, row.attempts) for row in rows_in(harness, State.QUEUED)] == [(2, 0)]
        assert [event.job_ids for event in harness.events(JobsReturned)] == [(2,)]


async def test_a_lost_reply_is_abandoned_before_the_settlement_is_repeated() -> None:
    clock = FakeClock()
    store = ChainingStore(clock)
    store.mute.append("chain")
    async with at_work(nothing, clock=clock, store=store, jobs=queued(3), lease=60.0) as harness:
        await clock.advance(5)
        names = [name for name, _, _ in store.calls if name in ("chain", "abandon", "settle")]
        assert names[:3] == ["chain", "abandon", "settle"]
        assert store.called("abandon") == [chained(harness)[0].token]
        settled, is_repeat = store.called("settle")[0]
        assert (1 in settled, is_repeat) == (True, True), "with what has ended meanwhile"
        assert [event.job_id for event in harness.events(JobEnded)] == [1, 2, 3]
        assert [(row.attempts, row.resets) for row in harness.store.rows()] == [(1, 0)] * 3
        assert harness.events(JobLost) == []


async def test_while_tokens_cannot_be_abandoned_the_settlement_waits_a_lease_at_most() -> None:
    clock = FakeClock()
    store = ChainingStore(clock)
    store.mute.append("chain")
    store.down.add("abandon")
    async with at_work(nothing, clock=clock, store=store, jobs=queued(1), lease=20.0) as harness:
        await clock.advance(15)
        assert store.called("settle") == []
        await clock.advance(6)
        assert store.called("settle") == [([1], True)]
        assert [event.job_id for event in harness.events(JobEnded)] == [1]


async def test_a_lease_counts_from_before_the_settlement_was_sent() -> None:
    clock = FakeClock()
    store = ChainingStore(clock)
    store.gates["reply"] = asyncio.Event()

    async def act(attempt: Attempt[Job]) -> None:
        if attempt.record.id == 2:
            store.down.add("beat")
            await clock.sleep(60)

    async with at_work(act, clock=clock, store=store, jobs=queued(2), lease=6.0, heartbeat_interval=2.0) as harness:
        await clock.advance(4)
        store.gates.pop("reply").set()
        await clock.settle()
        assert [event.job_id for event in harness.events(JobStarted)] == [1, 2]
        await clock.advance(1.6)  # 5.6 after the call: a margin before its end
        assert [event.job_id for event in harness.events(JobLost)] == [2]
