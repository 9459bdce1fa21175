"""Settlements of a flow's jobs: what each leaves in Redis, and that one without its lock leaves nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stowhand.flows.redis.settlements import MAX_BATCH, digest_of
from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import Reply, Verdict
from tests.flows.redis.step_harness import (
    CANCELED,
    ERRORED,
    FAILED,
    LATER,
    SETTLEMENTS,
    SNOOZED,
    Harness,
    ended,
    new_token,
)


def test_a_completed_step_keeps_its_result_and_moves_on(harness: Harness) -> None:
    waiting = harness.add("second")
    lease = harness.start(n=3)
    assert harness.settle(lease, ended("second", x=1, text='a "b"', nothing=None)) is Verdict.SETTLED
    assert harness.values(lease.job_id) == {"n": 3, "x": 1, "text": 'a "b"', "completed-queue": "first"}
    assert harness.ids("second") == [waiting, lease.job_id]
    assert harness.where(lease.job_id) == ["second waiting"]
    assert harness.lock("first", lease.job_id) is None


def test_a_completed_job_is_in_no_list(harness: Harness) -> None:
    lease = harness.start("second", a=1)
    assert harness.settle(lease, ended(b=2), "second") is Verdict.SETTLED
    assert harness.where(lease.job_id) == []
    assert harness.values(lease.job_id, "second") == {"a": 1, "b": 2, "completed-queue": "second"}


def test_the_result_may_choose_any_queue_and_a_missing_one_fails_that_job(harness: Harness) -> None:
    leases = [harness.start() for _ in range(3)]
    ends = [ended("once"), ended("nowhere"), ended("parent:kid")]
    verdicts = harness.run(harness.store().settle(list(zip(leases, ends, strict=True))))
    assert [getattr(reply, "state", reply) for reply in verdicts] == [Verdict.SETTLED, State.FAILED, State.FAILED]
    assert [harness.where(lease.job_id) for lease in leases] == [["once waiting"], [], []]
    for lease, said in zip(leases[1:], ("no queue 'nowhere'", "a child of queue 'parent'"), strict=True):
        values = harness.values(lease.job_id)
        assert (values["failed"], values["failedQueue"]) == (True, "first")
        assert said in values["failedErrorMsg"]


@pytest.mark.parametrize("harness", ["priority", "tagged"], indirect=True)
@pytest.mark.parametrize(
    ("before", "change", "after"), [(1, 1, 2), (3, 1, 3), (2, -5, 1), (2, 0, 2), (1, {"demo": 2}, 3), (1, {"x": 2}, 1)]
)
def test_the_priority_changes_on_the_way_and_stays_within_the_next_queues(
    harness: Harness, before: int, change: object, after: int
) -> None:
    first, *others = harness.shape.queues
    changed = msgspec.structs.replace(first, priority_change=change)
    harness.shape = msgspec.structs.replace(harness.shape, queues=(changed, *others))
    job_id = harness.add(priority=before)
    assert harness.settle(harness.take(), ended("second")) is Verdict.SETTLED
    assert harness.ids("second", priority=after) == [job_id]
    assert harness.client.hget(harness.keys.job(job_id), "priority") == str(after)


def test_an_error_with_retries_left_goes_to_the_front(harness: Harness) -> None:
    lease, other = harness.start(), harness.add()
    assert harness.settle(lease, ERRORED) is Verdict.SETTLED
    assert harness.ids() == [lease.job_id, other]
    assert harness.values(lease.job_id) == {"retries:first": 1}
    assert harness.lock("first", lease.job_id) is None
    claim, _ = harness.claim()
    assert (claim.attempts, claim.record.retries, claim.max_attempts) == (2, 1, 3)


def test_a_job_that_returns_to_a_queue_has_all_retries_again(harness: Harness) -> None:
    lease = harness.start()
    assert harness.settle(lease, ERRORED) is Verdict.SETTLED
    assert harness.settle(harness.take(), ended("second")) is Verdict.SETTLED
    assert harness.values(lease.job_id)["retries:first"] == 1  # that they were needed is still seen
    assert harness.settle(harness.take("second"), ended("first"), "second") is Verdict.SETTLED
    (claim,) = harness.claim()
    assert (claim.lease.job_id, claim.attempts, claim.record.retries) == (lease.job_id, 1, 0)


def test_an_error_with_a_delay_waits_for_it(harness: Harness) -> None:
    lease, before = harness.start(), harness.now_ms()
    assert harness.settle(lease, LATER) is Verdict.SETTLED
    score = harness.client.zscore(harness.keys.delayed("first"), lease.job_id)
    assert before + 60_000 <= score <= harness.now_ms() + 60_000
    assert harness.values(lease.job_id) == {"retries:first": 1}


def test_a_failure_has_the_text_of_the_founding_document(harness: Harness) -> None:
    lease = harness.start(n=1)
    assert harness.settle(lease, FAILED) is Verdict.SETTLED
    assert harness.values(lease.job_id) == {
        "n": 1, "done": True, "failed": True, "failedQueue": "first", "failedErrorMsg": "it is broken"
    }  # fmt: skip
    assert harness.client.hget(harness.keys.job(lease.job_id), "done") == "true"
    assert (harness.where(lease.job_id), harness.lock("first", lease.job_id)) == ([], None)


def test_a_canceled_job_is_reported_as_a_failure(harness: Harness) -> None:
    lease = harness.start()
    assert harness.settle(lease, CANCELED) is Verdict.SETTLED
    values = harness.values(lease.job_id)
    assert (values["canceled"], values["failed"], values["failedErrorMsg"]) == (True, True, "not wanted")
    assert harness.where(lease.job_id) == []


def test_a_snooze_uses_no_attempt_and_shows_its_reason(harness: Harness) -> None:
    lease, before = harness.start(), harness.now_ms()
    reasons = {(lease.job_id, lease.token): "the door is shut"}
    store = harness.new_store("first", reasons=reasons)
    assert harness.run(store.settle([(lease, SNOOZED)])) == [Verdict.SETTLED]
    assert reasons == {}
    values = harness.values(lease.job_id)
    assert (values["delay"], values["delayReason"]) == (True, "the door is shut")
    assert before + 60_000 <= values["delayReadyTimestamp"] <= harness.now_ms() + 60_000
    assert harness.where(lease.job_id) == ["first delayed"]
    harness.client.zincrby(harness.keys.delayed("first"), -60_000, lease.job_id)
    (claim,) = harness.claim()
    assert (claim.attempts, harness.values(lease.job_id)) == (1, {})


def test_a_snooze_without_a_delay_goes_behind_the_others(harness: Harness) -> None:
    lease, other = harness.start(), harness.add()
    assert harness.settle(lease, msgspec.structs.replace(SNOOZED, delay=0.0)) is Verdict.SETTLED
    assert harness.ids() == [other, lease.job_id]


@pytest.mark.parametrize("how", SETTLEMENTS)
def test_resets_are_forgotten_once_an_attempt_settles(harness: Harness, how: str) -> None:
    lease = harness.start(values={"resets:first": 1})
    assert harness.settle(lease, SETTLEMENTS[how]) is Verdict.SETTLED
    assert "resets:first" not in harness.values(lease.job_id)


# -- the fence -----------------------------------------------------------------------------------


def lost_lock(harness: Harness, lease: Lease) -> None:
    harness.client.delete(harness.keys.lock("first", lease.job_id))


def somebody_elses(harness: Harness, lease: Lease) -> None:
    harness.client.set(harness.keys.lock("first", lease.job_id), f"w:{new_token()}")


def an_originals(harness: Harness, lease: Lease) -> None:
    harness.client.set(harness.keys.lock("first", lease.job_id), new_token())


def not_in_processing(harness: Harness, lease: Lease) -> None:
    harness.client.lrem(harness.keys.processing("first"), 1, lease.job_id)


@pytest.mark.parametrize("how", SETTLEMENTS)
@pytest.mark.parametrize(
    "trouble", [lost_lock, somebody_elses, an_originals, not_in_processing], ids=lambda one: one.__name__
)
def test_without_lock_and_place_nothing_is_written(plain_harness: Harness, trouble: object, how: str) -> None:
    lease, other = plain_harness.start(), plain_harness.start()
    assert callable(trouble)
    trouble(plain_harness, lease)
    before = plain_harness.snapshot()
    assert plain_harness.settle(lease, SETTLEMENTS[how]) is Verdict.LOST
    assert plain_harness.heartbeats().release([lease]) == []
    assert list(plain_harness.heartbeats().reset_lease(lease)) == []
    assert plain_harness.snapshot() == before
    assert plain_harness.settle(other, ERRORED) is Verdict.SETTLED


@pytest.mark.parametrize("how", SETTLEMENTS)
def test_a_hash_that_is_gone_is_not_made_again(harness: Harness, how: str) -> None:
    lease = harness.start()
    harness.client.delete(harness.keys.job(lease.job_id))
    assert harness.heartbeats().beat([lease], 30).lost == {(lease.job_id, lease.token)}
    assert harness.settle(lease, SETTLEMENTS[how]) is Verdict.LOST
    assert harness.snapshot() == {}


def test_a_release_does_not_recreate_a_deleted_hash(harness: Harness) -> None:
    released, reset, abandoned = (harness.start() for _ in range(3))
    for lease in (released, reset, abandoned):
        harness.client.delete(harness.keys.job(lease.job_id))
    harness.heartbeats().release([released])
    assert list(harness.heartbeats().reset_lease(reset)) == []
    harness.heartbeats().abandon(abandoned.token)
    assert list(harness.snapshot()) == ([] if harness.variant == "classic" else [harness.keys.dead(abandoned.token)])


def test_a_heartbeat_renews_only_our_own_leases(harness: Harness) -> None:
    ours, theirs = harness.start(), harness.start()
    for lease in (ours, theirs):
        harness.client.pexpire(harness.keys.lock("first", lease.job_id), 25_000)
    stale = Lease(theirs.job_id, new_token(), 1)
    assert harness.heartbeats().beat([ours, stale], 600).lost == {(stale.job_id, stale.token)}
    renewed = (
        harness.keys.lease(ours.token) if harness.variant == "classic" else harness.keys.lock("first", ours.job_id)
    )
    assert harness.client.pttl(renewed) > 500_000
    assert harness.client.pttl(harness.keys.lock("first", ours.job_id)) > 180_000
    assert harness.client.pttl(harness.keys.lock("first", theirs.job_id)) <= 25_000


# -- repeats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", SETTLEMENTS)
def test_a_repeated_settlement_changes_nothing(harness: Harness, how: str) -> None:
    lease = harness.start()
    assert harness.settle(lease, SETTLEMENTS[how]) is Verdict.SETTLED
    before = harness.snapshot()
    assert harness.settle(lease, SETTLEMENTS[how], repeat=True) is Verdict.ALREADY_SETTLED
    assert harness.snapshot() == before


def test_a_repeated_batch_reports_each_settlement_again(plain_harness: Harness) -> None:
    good, bad = plain_harness.start(), plain_harness.start()
    plain_harness.client.delete(plain_harness.keys.lock("first", bad.job_id))
    batch = [(bad, ERRORED), (good, ended("second"))]
    store = plain_harness.store()
    assert list(plain_harness.run(store.settle(batch))) == [Verdict.LOST, Verdict.SETTLED]
    assert list(plain_harness.run(store.settle(batch, repeat=True))) == [Verdict.LOST, Verdict.ALREADY_SETTLED]


def test_a_repeated_settlement_of_a_deleted_job_is_unknown(plain_harness: Harness) -> None:
    lease = plain_harness.start()
    plain_harness.client.flushdb()
    assert plain_harness.settle(lease, ERRORED) is Verdict.LOST
    assert plain_harness.settle(lease, ERRORED, repeat=True) is Verdict.UNKNOWN


def test_a_repeat_whose_mark_may_have_expired_is_unknown(plain_harness: Harness) -> None:
    lease = plain_harness.start()
    settlements = plain_harness.store()._settlements
    plain_harness.settle(lease, ERRORED)
    plain_harness.client.delete(*plain_harness.client.keys("settled:*"))
    assert plain_harness.settle(lease, ERRORED, repeat=True) is Verdict.LOST
    settlements._unanswered[digest_of([(lease.job_id, lease.token)])] = float("-inf")
    assert plain_harness.settle(lease, ERRORED, repeat=True) is Verdict.UNKNOWN


# -- none sinks another --------------------------------------------------------------------------

UNWRITABLE = {
    "no step's end": COMPLETED,
    "no object": Settlement(State.COMPLETED, AttemptOutcome.OK, result="[1]"),
    "no JSON": Settlement(State.COMPLETED, AttemptOutcome.OK, result='{"fields": {"x": nan}}'),
    "a lone surrogate": Settlement(State.COMPLETED, AttemptOutcome.OK, result='{"fields": {"x": "\ud800"}}'),
    "a lone surrogate in a name": Settlement(State.COMPLETED, AttemptOutcome.OK, result='{"fields": {"\\ud800": 1}}'),
    "jobs that follow": Settlement(State.COMPLETED, AttemptOutcome.OK, result="{}", then=(NewJob(task="t"),)),
    "the rest of a batch": Settlement(State.ERRORED, AttemptOutcome.RETRY, payload="[]"),
    "a stranger as child": Settlement(
        State.COMPLETED, AttemptOutcome.OK, result='{"children": [{"queue": "parent:kid", "id": "x", "fields": {}}]}'
    ),
}


@pytest.mark.parametrize("why", UNWRITABLE)
def test_an_unwritable_settlement_fails_only_its_job(plain_harness: Harness, why: str) -> None:
    leases = [plain_harness.start() for _ in range(3)]
    ends = [ended("second"), UNWRITABLE[why], ERRORED]
    verdicts = plain_harness.run(plain_harness.store().settle(list(zip(leases, ends, strict=True))))
    assert [getattr(reply, "state", reply) for reply in verdicts] == [Verdict.SETTLED, State.FAILED, Verdict.SETTLED]
    assert [plain_harness.where(lease.job_id) for lease in leases] == [["second waiting"], [], ["first waiting"]]
    assert "its end could not be written: " in plain_harness.values(leases[1].job_id)["failedErrorMsg"]


def test_a_message_with_anything_in_it_is_kept(plain_harness: Harness) -> None:
    lease = plain_harness.start()
    output = 'line\n"quoted" \\ ü €'
    plain_harness.settle(lease, Settlement(State.FAILED, AttemptOutcome.FAILED, error=output))
    assert plain_harness.values(lease.job_id)["failedErrorMsg"] == output


def test_a_batch_of_any_size_is_settled_in_parts(plain_harness: Harness) -> None:
    ids = plain_harness.add_many(700)
    leases = [claim.lease for claim in plain_harness.claim(limit=700)]
    large = "x" * 400_000
    batch = [(lease, ended("second", text=large) if n < 5 else ended("second")) for n, lease in enumerate(leases)]
    assert set(plain_harness.run(plain_harness.store().settle(batch))) == {Verdict.SETTLED}
    assert plain_harness.ids("second") == ids
    assert len(plain_harness.client.keys("settled:*")) == 2 + -(-696 // MAX_BATCH)
    assert set(plain_harness.run(plain_harness.store().settle(batch, repeat=True))) == {Verdict.ALREADY_SETTLED}


def test_thousands_of_attributes_are_written(plain_harness: Harness) -> None:
    lease = plain_harness.start()
    assert plain_harness.settle(lease, ended(None, **{f"a{n}": n for n in range(5000)})) is Verdict.SETTLED
    assert plain_harness.client.hlen(plain_harness.keys.job(lease.job_id)) == 5006


MOVED = ended("second", x=1)


def test_a_cut_connection_is_unreachable_and_the_repeat_is_known(plain_harness: Harness) -> None:
    lease = plain_harness.start()

    async def twice() -> list[Reply]:
        store = plain_harness.store()
        first = asyncio.create_task(store.settle([(lease, MOVED)]))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        return list(await store.settle([(lease, MOVED)], repeat=True))

    (verdict,) = plain_harness.run(twice())
    assert verdict in (Verdict.SETTLED, Verdict.ALREADY_SETTLED)
    assert plain_harness.where(lease.job_id) == ["second waiting"]


ALL = 40
COUNTED = (
    "hmget",
    "set",
    "hset",
    "hdel",
    "lrem",
    "pexpire",
    "time",
    "lpop",
    "lrange",
    "mget",
    "del",
    "rpush",
    "exists",
)


@pytest.mark.parametrize(("queue", "following"), [("first", "second"), ("second", None)])
def test_an_execution_costs_few_commands(harness: Harness, queue: str, following: str | None) -> None:
    """Those in scripts too. What a batch has in common (lists, locks, its mark) is one command for all of it."""

    def counted() -> int:
        result = harness.client.info("commandstats")
        return sum(result[f"cmdstat_{name}"]["calls"] for name in COUNTED if f"cmdstat_{name}" in result)

    harness.add_many(ALL, queue, n=1, createdAtTimestamp=1)
    before = counted()
    claims = harness.claim(queue, ALL)
    batch = [(claim.lease, ended(following)) for claim in claims]
    assert harness.run(harness.store(queue).settle(batch)) == [Verdict.SETTLED] * ALL
    keeps = int(harness.keys.is_lasting and following is None)  # what has ended lasts so long
    # Claimed: its fields, its lock, its state. Settled: its fields, what is left behind.
    assert counted() - before <= ALL * (5 + keeps) + 30


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (0, 1, 3, 2), (2, 3), (0, 3, 1)])
def test_a_settled_job_leaves_processing_from_any_position(harness: Harness, order: tuple[int, ...]) -> None:
    leases = [harness.start() for _ in range(5)]
    batch = [(leases[place], ended("second")) for place in order]
    assert harness.run(harness.store().settle(batch)) == [Verdict.SETTLED] * len(order)
    assert harness.ids("second") == [leases[place].job_id for place in order]
    assert harness.ids(kind="processing") == [lease.job_id for at, lease in enumerate(leases) if at not in order]
