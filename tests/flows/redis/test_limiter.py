"""A limiter: so many jobs in a window, the others spread over the next ones, and counters that heal."""

from __future__ import annotations

from collections import Counter

from stowhand.protocols.store import Verdict
from tests.flows.redis.step_desk import WINDOW, Desk, ended

LENGTH = WINDOW * 1000


def fill(desk: Desk, jobs: int, groups: int) -> list[str]:
    return [desk.add("limited", group=f"g{number % groups}") for number in range(jobs)]


def windows(desk: Desk) -> Counter[int]:
    """How many of the delayed ones are ready in which window from this one."""
    now = desk.now_ms() // LENGTH
    scores = desk.client.zrange(desk.keys.delayed("limited"), 0, -1, withscores=True)
    return Counter(int(score) // LENGTH - now for _, score in scores)


def test_ten_jobs_in_two_groups_leave_four_for_later(desk: Desk) -> None:
    fill(desk, 10, 2)
    assert len(desk.claim("limited", 20)) == 6
    assert windows(desk) == {1: 4}
    counted = [desk.client.get(f"{desk.keys.enqueued('limited')}g{group}") for group in (0, 1)]
    assert counted == ["2", "2"]


def test_sixty_jobs_in_four_groups_leave_forty_eight_spread_over_the_next_windows(desk: Desk) -> None:
    fill(desk, 60, 4)
    assert len(desk.claim("limited", 100)) == 12
    assert windows(desk) == {1: 12, 2: 12, 3: 12, 4: 12}
    assert (len(desk.ids("limited", "processing")), desk.ids("limited")) == (12, [])


def test_who_is_delayed_says_so_and_a_start_takes_its_place_back_once(desk: Desk) -> None:
    *_, late = fill(desk, 5, 1)
    desk.claim("limited", 20)
    values = desk.values(late, "limited")
    ready = desk.client.zscore(desk.keys.delayed("limited"), late)
    assert (values["delay"], values["delayReason"]) == (True, f"limiter: 3 jobs in {WINDOW} s")
    assert values["delayReadyTimestamp"] == ready
    assert desk.lock("limited", late) is None
    counter = f"{desk.keys.enqueued('limited')}g0"
    assert desk.client.get(counter) == "2"
    desk.client.delete(*desk.client.keys(f"{desk.keys.calls('limited')}*"))  # the next window
    desk.client.zincrby(desk.keys.delayed("limited"), -LENGTH, late)
    (claim,) = desk.claim("limited", 20)
    assert claim.lease.job_id == late
    assert desk.client.get(counter) == "1"
    assert "delay" not in desk.values(late, "limited")
    assert desk.settle(claim.lease, ended(), "limited") is Verdict.SETTLED


def next_window(desk: Desk, windows: int = 1) -> None:
    """As if so many had passed: what was counted is of the past."""
    delayed, tickets = desk.keys.delayed("limited"), desk.client.keys(f"{desk.keys.tickets('limited')}*")
    desk.client.delete(*desk.client.keys(f"{desk.keys.calls('limited')}*"))
    for job_id in desk.client.zrange(delayed, 0, -1):
        desk.client.zincrby(delayed, -windows * LENGTH, job_id)
    for name in tickets:
        window, given = desk.client.get(name).split(":")
        desk.client.set(name, f"{int(window) - windows}:{given}")


def test_after_a_pause_of_the_workers_each_window_is_filled_and_no_more(desk: Desk) -> None:
    fill(desk, 18, 1)
    assert len(desk.claim("limited", 50)) == 3
    next_window(desk, 10)
    late = desk.add("limited", group="g0")
    taken = list(desk.claim("limited", 50))
    assert len(taken) == 3
    assert windows(desk) == {1: 3, 2: 3, 3: 3, 4: 3, 5: 1}, "and not all of them behind the last"
    for _ in range(4):
        next_window(desk)
        taken += desk.claim("limited", 50)
    assert len(taken) == 15
    assert desk.where(late) == ["limited delayed"], "who is new does not pass while others wait"


def test_the_counters_end_by_themselves(desk: Desk) -> None:
    fill(desk, 10, 1)
    desk.claim("limited", 20)
    names = desk.client.keys(f"{desk.keys.calls('limited')}*") + desk.client.keys(f"{desk.keys.enqueued('limited')}*")
    assert len(names) == 2
    assert all(0 < desk.client.pttl(name) <= 6 * LENGTH for name in names)


def test_a_counter_that_was_lost_does_not_fall_below_nought(desk: Desk) -> None:
    late = fill(desk, 4, 1)[3]
    desk.claim("limited", 20)
    desk.client.delete(*desk.client.keys(f"{desk.keys.prefix}counter:*"))
    desk.client.zincrby(desk.keys.delayed("limited"), -LENGTH, late)
    assert len(desk.claim("limited", 20)) == 1
    assert desk.client.get(f"{desk.keys.enqueued('limited')}g0") is None


def test_jobs_without_a_group_share_one_and_numbers_are_groups(desk: Desk) -> None:
    for group in (None, None, None, None, 7, "7"):
        desk.add("limited", group=group)
    assert len(desk.claim("limited", 20)) == 5
    assert len(desk.client.keys(f"{desk.keys.calls('limited')}default:*")) == 1
    assert len(desk.client.keys(f"{desk.keys.calls('limited')}7:*")) == 1


def test_a_claim_looks_past_thousands_that_must_wait(plain_desk: Desk) -> None:
    plain_desk.add_many(2500, "limited", group="g0")
    plain_desk.add("limited", group="other")
    assert len(plain_desk.claim("limited", 10)) == 4
    assert plain_desk.client.zcard(plain_desk.keys.delayed("limited")) == 2497
