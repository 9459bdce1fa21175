"""What travels with a job of the one who enqueued it: through every store, and every way into it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from stowhand.jobs.job import KeyMode, NewJob
from stowhand.jobs.lifecycle import COMPLETED
from stowhand.observe.propagation import bound_correlation_id, read_carried, with_carried
from tests.contract.needs import needs
from tests.contract.store_harness import ERRORED, StoreHarness
from tests.support.spans import Spans, facts_of, traceparent_of

pytestmark = needs("jobs")

NEW = NewJob(task="t", flags=("mine",))


async def test_an_enqueued_job_carries_the_span_and_the_correlation_id(harness: StoreHarness) -> None:
    spans = Spans()
    with bound_correlation_id("order 7"):
        job = await spans.traces().store(harness.store).jobs.enqueue(NEW)
    (claim,) = await harness.claim()
    span = spans.one("enqueue t")
    assert read_carried(claim.record.flags) == {"traceparent": traceparent_of(span), "correlation_id": "order 7"}
    assert "mine" in claim.record.flags
    assert facts_of(span)["messaging.message.id"] == str(job.id) == str(claim.record.id)


async def test_many_jobs_carry_the_one_span_that_enqueued_them(harness: StoreHarness) -> None:
    async def stream() -> AsyncIterator[NewJob]:
        yield NEW

    spans = Spans()
    store = spans.traces().store(harness.store)
    await store.jobs.enqueue_many([NEW, NEW])
    await store.jobs.enqueue_many(stream())
    await store.jobs.add_jobs([NEW, NewJob(task="u")])
    claims = await harness.claim(limit=5)
    carried = [
        read_carried(claim.record.flags)["traceparent"] for claim in sorted(claims, key=lambda one: one.record.id)
    ]
    first, second, both = *spans.named("enqueue t"), spans.one("enqueue")
    assert carried == [traceparent_of(span) for span in (first, first, second, both, both)]
    counts = [facts_of(span)["messaging.batch.message_count"] for span in (first, second, both)]
    assert counts == [2, 1, 2]


async def test_it_stays_through_a_retry(harness: StoreHarness) -> None:
    spans = Spans()
    await spans.traces().store(harness.store).jobs.enqueue(NEW)
    (first,) = await harness.claim()
    await harness.settle(first.lease, ERRORED)
    await harness.pass_time(61)
    (second,) = await harness.claim()
    assert second.record.flags == first.record.flags
    assert second.record.attempts == 2


async def test_a_job_that_takes_anothers_place_carries_its_own(harness: StoreHarness) -> None:
    spans = Spans()
    store = spans.traces().store(harness.store)
    for mode in (KeyMode.REPLACE, KeyMode.REPLACE, KeyMode.PRESERVE_RUN_AT, KeyMode.UNSAFE_DEDUPE):
        await store.jobs.enqueue(msgspec.structs.replace(NEW, key="k", key_mode=mode))
    (claim,) = await harness.claim()
    assert read_carried(claim.record.flags)["traceparent"] == traceparent_of(spans.named("enqueue t")[2])


async def test_a_job_enqueued_with_an_attempts_end_carries_it(harness: StoreHarness) -> None:
    lease = await harness.start()
    follower = with_carried(NewJob(task="next"), {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    await harness.settle(lease, msgspec.structs.replace(COMPLETED, then=(follower,)))
    (claim,) = await harness.claim(tasks=("next",))
    assert claim.record.flags == follower.flags
