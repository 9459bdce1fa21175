"""Limiters: jobs beyond the reservoir are delayed to later windows, and wrong counters recover."""

from __future__ import annotations

from collections import Counter

from stowhand.protocols.store import Verdict
from tests.flows.redis.step_harness import WINDOW, Harness, ended

LENGTH = WINDOW * 1000


def fill(harness: Harness, jobs: int, groups: int) -> list[str]:
    return [harness.add("limited", group=f"g{number % groups}") for number in range(jobs)]


def windows(harness: Harness) -> Counter[int]:
    """How many of the delayed ones are ready in which window from this one."""
    now = harness.now_ms() // LENGTH
    scores = harness.client.zrange(harness.keys.delayed("limited"), 0, -1, withscores=True)
    return Counter(int(score) // LENGTH - now for _, score in scores)


def test_ten_jobs_in_two_groups_leave_four_for_later(harness: Harness) -> None:
    fill(harness, 10, 2)
    assert len(harness.claim("limited", 20)) == 6
    assert windows(harness) == {1: 4}
    counted = [harness.client.get(f"{harness.keys.enqueued('limited')}g{group}") for group in (0, 1)]
    assert counted == ["2", "2"]


def test_sixty_jobs_in_four_groups_leave_forty_eight_spread_over_the_next_windows(harness: Harness) -> None:
    fill(harness, 60, 4)
    assert len(harness.claim("limited", 100)) == 12
    assert windows(harness) == {1: 12, 2: 12, 3: 12, 4: 12}
    assert (len(harness.ids("limited", "processing")), harness.ids("limited")) == (12, [])


def test_a_delayed_job_counts_for_its_limiter_until_its_start(harness: Harness) -> None:
    *_, late = fill(harness, 5, 1)
    harness.claim("limited", 20)
    values = harness.values(late, "limited")
    ready = harness.client.zscore(harness.keys.delayed("limited"), late)
    assert (values["delay"], values["delayReason"]) == (True, f"limiter: 3 jobs in {WINDOW} s")
    assert values["delayReadyTimestamp"] == ready
    assert harness.lock("limited", late) is None
    counter = f"{harness.keys.enqueued('limited')}g0"
    assert harness.client.get(counter) == "2"
    harness.client.delete(*harness.client.keys(f"{harness.keys.calls('limited')}*"))  # the next window
    harness.client.zincrby(harness.keys.delayed("limited"), -LENGTH, late)
    (claim,) = harness.claim("limited", 20)
    assert claim.lease.job_id == late
    assert harness.client.get(counter) == "1"
    assert "delay" not in harness.values(late, "limited")
    assert harness.settle(claim.lease, ended(), "limited") is Verdict.SETTLED


def next_window(harness: Harness, windows: int = 1) -> None:
    """Delete the counters, as if their windows had passed."""
    delayed, tickets = harness.keys.delayed("limited"), harness.client.keys(f"{harness.keys.tickets('limited')}*")
    harness.client.delete(*harness.client.keys(f"{harness.keys.calls('limited')}*"))
    for job_id in harness.client.zrange(delayed, 0, -1):
        harness.client.zincrby(delayed, -windows * LENGTH, job_id)
    for name in tickets:
        window, given = harness.client.get(name).split(":")
        harness.client.set(name, f"{int(window) - windows}:{given}")


def test_after_a_pause_of_the_workers_each_window_is_filled_and_no_more(harness: Harness) -> None:
    fill(harness, 18, 1)
    assert len(harness.claim("limited", 50)) == 3
    next_window(harness, 10)
    late = harness.add("limited", group="g0")
    taken = list(harness.claim("limited", 50))
    assert len(taken) == 3
    assert windows(harness) == {1: 3, 2: 3, 3: 3, 4: 3, 5: 1}, "and not all of them behind the last"
    for _ in range(4):
        next_window(harness)
        taken += harness.claim("limited", 50)
    assert len(taken) == 15
    assert harness.where(late) == ["limited delayed"], "who is new does not pass while others wait"


def test_the_counters_end_by_themselves(harness: Harness) -> None:
    fill(harness, 10, 1)
    harness.claim("limited", 20)
    names = harness.client.keys(f"{harness.keys.calls('limited')}*") + harness.client.keys(
        f"{harness.keys.enqueued('limited')}*"
    )
    assert len(names) == 2
    assert all(0 < harness.client.pttl(name) <= 6 * LENGTH for name in names)


def test_a_lost_counter_does_not_become_negative(harness: Harness) -> None:
    late = fill(harness, 4, 1)[3]
    harness.claim("limited", 20)
    harness.client.delete(*harness.client.keys(f"{harness.keys.prefix}counter:*"))
    harness.client.zincrby(harness.keys.delayed("limited"), -LENGTH, late)
    assert len(harness.claim("limited", 20)) == 1
    assert harness.client.get(f"{harness.keys.enqueued('limited')}g0") is None


def test_jobs_without_a_group_share_one_and_numbers_are_groups(harness: Harness) -> None:
    for group in (None, None, None, None, 7, "7"):
        harness.add("limited", group=group)
    assert len(harness.claim("limited", 20)) == 5
    assert len(harness.client.keys(f"{harness.keys.calls('limited')}default:*")) == 1
    assert len(harness.client.keys(f"{harness.keys.calls('limited')}7:*")) == 1


def test_a_claim_skips_thousands_of_jobs_that_must_wait(plain_harness: Harness) -> None:
    plain_harness.add_many(2500, "limited", group="g0")
    plain_harness.add("limited", group="other")
    assert len(plain_harness.claim("limited", 10)) == 4
    assert plain_harness.client.zcard(plain_harness.keys.delayed("limited")) == 2497
