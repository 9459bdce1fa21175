"""What is reported of a settlement is what was recorded: wherever that differs from what the worker asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec

from stowhand.events import Event, Events, JobEnded, JobLost, ResultDropped
from stowhand.jobs import strict_json
from stowhand.jobs.job import Job, NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import AttemptOutcome, Complete, Fail, Retry
from stowhand.jobs.outcomes import from_returned
from stowhand.protocols.attempt import Attempt
from stowhand.protocols.operator import PURGE_TASK
from stowhand.protocols.options import WorkerOptions
from stowhand.worker.worker import Worker
from tests.contract.lent_backend import LentBackend
from tests.contract.needs import needs
from tests.contract.store_harness import FAILED, StoreHarness

pytestmark = needs("keys", "tries")

STORES = ("memory", "sqlite", "postgres", "http", "lent_postgres")
ENDED = {
    "completed": AttemptOutcome.OK,
    "errored": AttemptOutcome.RETRY,
    "failed": AttemptOutcome.FAILED,
    "canceled": AttemptOutcome.CANCELED,
}

Act = Callable[[StoreHarness, Attempt[Job]], Awaitable[object]]


class Handling:
    """A handler that acts once and then lets its worker stop."""

    def __init__(self, harness: StoreHarness, act: Act) -> None:
        self._harness, self._act = harness, act
        self.worker: Worker

    async def handle(self, attempt: Attempt[Job], record: Job) -> object:
        self.worker.stop()
        return from_returned(await self._act(self._harness, attempt))

    def encode(self, result: object) -> str | None:
        return strict_json.encode(result, what="result")


class Report:
    """One attempt: the events about it, and what the store keeps."""

    def __init__(self, events: list[Event], job: Job, following: int, counts: dict[str, int], audit: list[str]) -> None:
        self.ended = [event for event in events if isinstance(event, JobEnded)]
        self.lost = [event for event in events if isinstance(event, JobLost)]
        self.dropped = [event for event in events if isinstance(event, ResultDropped)]
        self.job, self.following, self.counts, self.audit = job, following, counts, audit

    def check(self, state: State, error: str = "") -> None:
        """The row, the event, the figures and the audit agree."""
        assert self.job.state is state
        (event,) = self.ended
        assert (event.outcome, event.error or "") == (ENDED[state], self.job.last_error or "")
        assert error in (event.error or "")
        assert self.counts == {ENDED[state].value: 1}
        assert not self.lost
        assert not self.audit or self.audit[-1].startswith(f"{state.value}: ")

    def check_nothing(self, state: State) -> None:
        """Nothing of it was recorded, and nothing is reported as if it were."""
        assert self.job.state is state
        assert (self.ended, len(self.lost)) == ([], 1)
        assert self.counts.keys() <= {"resets"}
        assert not self.audit or self.audit[-1].startswith("unchanged: ")


async def report(harness: StoreHarness, act: Act, **details: Any) -> Report:
    """Run one attempt in a worker on this store."""
    job = await harness.add("acting", **details)
    heard: list[Event] = []
    events = Events()
    for kind in (JobEnded, JobLost, ResultDropped):
        events.on(kind, heard.append)
    handling = Handling(harness, act)
    handling.worker = Worker(harness.store, handling, WorkerOptions(tasks=("acting",)), events=events)
    await handling.worker.run()
    lent = harness.backend if isinstance(harness.backend, LentBackend) else None
    audit = [] if lent is None else lent.audit("settle")
    jobs = await harness.everything()
    counts: dict[str, int] = {}
    for one in await harness.store.inspect.throughput(*(harness.now + timedelta(hours=at) for at in (-1, 1))):
        counts |= {
            name: n for name in ("ok", "retry", "failed", "canceled", "resets") if (n := getattr(one.tally, name))
        }
    return Report(heard, await harness.job(job.id), sum(one.task == "next" for one in jobs), counts, audit)


async def test_a_cancellation_was_requested(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        await harness.store.admin.cancel(attempt.claim.record.id)
        return Retry("it failed")

    result = await report(harness, act)
    # The worker may learn of the cancellation before the handler has returned.
    error = "canceled while running" if result.ended[0].error == "canceled while running" else "it failed"
    result.check(State.CANCELED, error)


async def test_its_key_was_given_to_a_newer_job(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        await harness.add("newer", key="k")
        return Retry("it failed")

    (await report(harness, act, key="k")).check(State.FAILED, "it failed")


async def test_its_key_was_removed(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        await harness.store.admin.remove_key("k")
        return Retry("it failed")

    (await report(harness, act, key="k")).check(State.CANCELED, "it failed")


async def test_its_attempts_are_used_up(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        return Retry("it failed")

    (await report(harness, act, max_attempts=1)).check(State.FAILED, "it failed")


async def test_the_jobs_that_are_to_follow_are_refused(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        attempt.then += [NewJob(task="next"), NewJob(task=PURGE_TASK)]
        return None

    result = await report(harness, act)
    result.check(State.ERRORED, "its settlement could not be written")
    assert result.following == 0


async def test_the_jobs_that_follow_are_counted_in_the_audit(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        attempt.then += [NewJob(task="next"), NewJob(task="next")]
        return None

    result = await report(harness, act)
    result.check(State.COMPLETED)
    assert result.following == 2
    assert result.audit[-1:] in ([], ["completed: settled, 2 enqueued"])


async def test_the_store_refuses_the_settlement(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        harness.backend.refuse(attempt.claim.record.id, State.COMPLETED)
        return None

    result = await report(harness, act)
    result.check(State.ERRORED, "its settlement could not be written")
    assert not result.audit or result.audit[-2] == "unchanged: unwritten"


async def test_the_store_refuses_the_error_of_the_attempt_too(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        harness.backend.refuse(attempt.claim.record.id, State.COMPLETED, State.ERRORED)
        return None

    (await report(harness, act)).check(State.FAILED, "its settlement could not be written")


async def test_the_store_refuses_every_settlement(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        harness.backend.refuse(attempt.claim.record.id)
        return None

    (await report(harness, act)).check_nothing(State.PROCESSING)


async def test_it_was_settled_otherwise_under_the_same_lease(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        store = await harness.another()  # whose settlements no worker reports
        await store.settle([(attempt.claim.lease, msgspec.structs.replace(FAILED, error=None))])
        attempt.then += [NewJob(task="next")]
        return Complete("done")

    result = await report(harness, act)
    (event,) = result.ended
    assert (result.job.state, result.following, event.outcome) == (State.FAILED, 0, AttemptOutcome.FAILED)
    assert not result.audit or result.audit[-1] == "failed: settled"


async def test_its_lease_was_lost(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        lease: Lease = attempt.claim.lease
        await harness.lose(lease)
        return Fail("it is broken")

    (await report(harness, act)).check_nothing(State.QUEUED)


async def test_its_result_cannot_be_encoded(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        return object()

    result = await report(harness, act)
    result.check(State.COMPLETED)
    assert (result.job.result, len(result.dropped)) == (None, 1)


async def test_its_result_is_too_large(harness: StoreHarness) -> None:
    async def act(harness: StoreHarness, attempt: Attempt[Job]) -> object:
        return "x" * (1024 * 1024 + 1)

    result = await report(harness, act)
    result.check(State.COMPLETED)
    assert (result.job.result, len(result.dropped)) == (None, 1)
