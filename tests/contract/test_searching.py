"""Searching: the filters, the order (live jobs, then the history), and where a search that ended goes on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from stowhand.errors import InvalidJob
from stowhand.jobs.job import Job, NewJob, State
from stowhand.protocols.counts import BoundedCount
from stowhand.protocols.search import HISTORY_STATES, Search, SearchResult
from stowhand.protocols.store import Verdict
from tests.contract.needs import needs
from tests.contract.store_harness import FAILED, STATES, StoreHarness

pytestmark = needs("inspect")


async def search(harness: StoreHarness, **query: Any) -> SearchResult:
    """With time enough."""
    return await harness.store.inspect.search(Search(**{"budget": 30.0} | query))


async def walk(harness: StoreHarness, **query: Any) -> tuple[list[Job], list[SearchResult]]:
    """To the end, answer by answer."""
    answers = [await search(harness, **query)]
    while answers[-1].next_position is not None:
        answers.append(await search(harness, **query, position=answers[-1].next_position))
    return [job for one in answers for job in one.jobs], answers


def ids(jobs: Sequence[Job]) -> list[int]:
    return [job.id for job in jobs]


def in_order(jobs: Sequence[Job]) -> list[int]:
    """The ids in the order of a search: live jobs, then the history, each with the newest first."""
    return ids(sorted(jobs, key=lambda job: (job.state in HISTORY_STATES, -job.id)))


async def test_live_jobs_come_before_the_history_the_newest_first(harness: StoreHarness) -> None:
    jobs = [await harness.in_state(state) for state in (*STATES, *STATES)]
    result = await search(harness)
    assert ids(result.jobs) == in_order(jobs)
    assert (result.examined_rows, result.total_rows, result.next_position) == (len(jobs), BoundedCount(len(jobs)), None)
    assert result.matches == len(jobs)


async def test_waiting_jobs_of_a_queue_are_found_at_once_whatever_is_newer(harness: StoreHarness) -> None:
    waiting = await harness.store.jobs.enqueue_many(NewJob(task="t", serial="stuck") for _ in range(3))
    others = await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(2500))
    await harness.store.admin.complete_jobs(others[:1200])
    assert ids((await search(harness, serial="stuck", budget=0.0)).jobs) == sorted(waiting, reverse=True)
    found, answers = await walk(harness, serial="stuck", budget=0.0, limit=2)
    assert ids(found) == sorted(waiting, reverse=True)
    assert answers[-1].matches == 3


async def test_the_last_answer_counts_the_matches_of_all(harness: StoreHarness) -> None:
    jobs = [await harness.in_state(state) for state in (*STATES, *STATES)]
    _, answers = await walk(harness, limit=5)
    assert [one.matches for one in answers] == [5, 10, len(jobs)]


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_answers_follow_on_each_other_without_gap_or_repeat(harness: StoreHarness, limit: int) -> None:
    jobs = [await harness.in_state(state) for state in (*STATES, *STATES)]
    found, answers = await walk(harness, limit=limit)
    assert ids(found) == in_order(jobs)
    assert all(len(one.jobs) <= limit for one in answers)
    assert answers[-1].examined_rows == len(jobs)
    assert all(one.total_rows.number >= one.examined_rows for one in answers)


@pytest.mark.parametrize("state", STATES)
async def test_a_search_for_one_state_finds_that_state(harness: StoreHarness, state: State) -> None:
    jobs = [(await harness.in_state(each)).id for each in (*STATES, *STATES) if each is state]
    for _ in range(2):
        await harness.in_state(next(each for each in STATES if each is not state))
    assert ids((await search(harness, states=(state,))).jobs) == jobs[::-1]
    assert ids((await walk(harness, states=(state,), limit=1))[0]) == jobs[::-1]


async def test_failed_jobs_come_in_the_order_in_which_they_failed(harness: StoreHarness) -> None:
    jobs = [await harness.add("t", max_attempts=1) for _ in range(5)]
    claims = {claim.record.id: claim for claim in await harness.claim(limit=5, tasks=("t",))}
    order = [jobs[place].id for place in (3, 0, 4, 1, 2)]
    for job_id in order:
        await harness.pass_time(1.0)
        assert await harness.settle(claims[job_id].lease, FAILED) is Verdict.SETTLED
    assert ids((await search(harness, states=(State.FAILED,))).jobs) == order[::-1]
    for limit in (1, 2):
        assert ids((await walk(harness, states=(State.FAILED,), limit=limit))[0]) == order[::-1]
    mixed = await search(harness, states=(State.FAILED, State.QUEUED))
    assert ids(mixed.jobs) == sorted(order, reverse=True), "with others: by id"


async def test_many_that_failed_at_one_moment_are_each_found_once(harness: StoreHarness) -> None:
    job = await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(30))
    await harness.store.admin.permanently_fail_jobs(job)
    for limit in (7, 30, 100):
        found, _ = await walk(harness, states=(State.FAILED,), limit=limit)
        assert ids(found) == sorted(job, reverse=True)


async def test_a_search_is_narrowed_by_each_detail(harness: StoreHarness) -> None:
    await harness.add("b", serial="r", key="l", flags=("g",))
    (claim,) = await harness.claim(tasks=("b",), worker="w2")
    wanted = await harness.add("a", serial="q", key="k", flags=("e", "f"))
    (claim,) = await harness.claim(tasks=("a",), worker="w1")
    for details in ({"task": "a"}, {"serial": "q"}, {"key": "k"}, {"flag": "f"}, {"worker": "w1"}):
        assert ids((await search(harness, **details)).jobs) == [wanted.id], details
        assert ids((await search(harness, **details, states=(State.PROCESSING,))).jobs) == [wanted.id], details
    assert ids((await search(harness, task="a", serial="r")).jobs) == []
    assert await harness.settle(claim.lease) is Verdict.SETTLED
    for details in ({"task": "a"}, {"serial": "q"}, {"key": "k"}, {"flag": "f"}, {"worker": "w1"}):
        assert ids((await search(harness, **details)).jobs) == [wanted.id], "in the history, and who held it last"


@pytest.mark.parametrize("text", ["100%", "a_b", "\\", "'; --", '"', "[x]*", "É"])
async def test_the_text_of_an_error_is_taken_literally(harness: StoreHarness, text: str) -> None:
    other = {"100%": "1000", "a_b": "axb", "\\": "/", "'; --": ";", '"': "'", "[x]*": "xxx", "É": "E"}[text]
    jobs = [await harness.in_state(State.PROCESSING, task=f"t{number}", max_attempts=1) for number in range(2)]
    for job, said in zip(jobs, (text, other), strict=True):
        await harness.store.admin.force_unlock_workers(["w1"])
        await harness.store.admin.permanently_fail_jobs([job.id], f"ValueError: before {said} after\nand below")
    result = await search(harness, error=text)
    assert ids(result.jobs) == [jobs[0].id]
    assert result.jobs[0].last_error == f"ValueError: before {text} after", "of an error its first line"
    assert ids((await search(harness, error="BEFORE")).jobs) == ids(jobs)[::-1], "in upper or lower case"
    assert ids((await search(harness, error="and below", states=(State.FAILED,))).jobs) == ids(jobs)[::-1]
    assert ids((await search(harness, error="")).jobs) == ids(jobs)[::-1], "an empty text asks for nothing"


async def test_a_search_keeps_to_its_span_of_time(harness: StoreHarness) -> None:
    begin = harness.now
    early = await harness.in_state(State.QUEUED)
    done = await harness.in_state(State.PROCESSING)
    await harness.pass_time(60.0)
    late = await harness.in_state(State.QUEUED)
    await harness.store.admin.force_unlock_workers(["w1"])
    await harness.store.admin.complete_jobs([done.id])
    minute = begin + timedelta(seconds=60)
    assert ids((await search(harness, until=minute)).jobs) == [early.id]
    assert ids((await search(harness, since=minute)).jobs) == [late.id, done.id], "what ended: by its end"
    assert ids((await search(harness, since=begin, until=minute + timedelta(seconds=1))).jobs) == [
        late.id,
        early.id,
        done.id,
    ]


async def test_a_list_shows_neither_payload_nor_result(harness: StoreHarness) -> None:
    await harness.add(payload='{"secret": 1}')
    (claim,) = await harness.claim()
    assert await harness.settle(claim.lease) is Verdict.SETTLED
    whole = await harness.job(claim.record.id)
    (found,) = (await search(harness)).jobs
    assert (found.payload_text, found.payload, found.result_text) == ("", None, None)
    assert found == msgspec.structs.replace(whole, payload_text="", result_text=None)


async def test_a_search_without_time_looks_at_a_piece_and_says_where_to_go_on(harness: StoreHarness) -> None:
    job = await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(2500))
    rare = await harness.add("rare")
    await harness.store.admin.complete_jobs(job[1200:1300])
    await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(1500))
    result = await search(harness, task="rare", budget=0.0)
    assert list(result.jobs) == []
    assert 1000 <= result.examined_rows < 4001
    assert result.total_rows.number >= 1000
    assert result.next_position is not None
    jobs, answers = await walk(harness, task="rare", budget=0.0)
    assert ids(jobs) == [rare.id]
    looked_at = [one.examined_rows for one in answers]
    assert looked_at[-1] == 4001
    assert all(later - earlier >= 1000 for earlier, later in pairwise(looked_at[:-1]))
    assert answers[-1].total_rows == BoundedCount(4001)


async def test_the_live_job_of_a_key_is_found_at_once(harness: StoreHarness) -> None:
    first = await harness.add("early", key="k")
    await harness.store.admin.complete_jobs([first.id])
    wanted = await harness.add("t", key="k")
    await harness.store.jobs.enqueue_many(NewJob(task="t") for _ in range(3000))
    assert ids((await search(harness, key="k", budget=0.0, limit=1)).jobs) == [wanted.id]
    for limit in (1, 5):
        found, _ = await walk(harness, key="k", budget=0.0, limit=limit)
        assert ids(found) == [wanted.id, first.id]
        assert ids((await walk(harness, key="k", limit=limit, states=(State.QUEUED, State.ERRORED)))[0]) == [wanted.id]
        assert ids((await walk(harness, key="k", limit=limit, states=(State.COMPLETED,)))[0]) == [first.id]
    assert ids((await walk(harness, key="k", task="other"))[0]) == []


async def test_what_is_enqueued_between_two_answers_repeats_nothing(harness: StoreHarness) -> None:
    jobs = [(await harness.add()).id for _ in range(6)]
    first = await search(harness, limit=3)
    await harness.add()
    await harness.store.admin.complete_jobs([jobs[1]])
    rest = await search(harness, limit=3, position=first.next_position)
    assert ids(first.jobs) + ids(rest.jobs) == [*jobs[:1:-1], jobs[0], jobs[1]]


async def test_nothing_is_found_where_nothing_is_or_no_name_can_be_like_that(harness: StoreHarness) -> None:
    empty = await search(harness)
    assert (list(empty.jobs), empty.examined_rows, empty.total_rows, empty.next_position) == (
        [],
        0,
        BoundedCount(0),
        None,
    )
    await harness.add(serial="q", key="k")
    for name in ("", "a\x00", "a\udcff"):
        for field in ("task", "serial", "key", "flag", "worker"):
            assert ids((await search(harness, **{field: name})).jobs) == []
    assert ids((await search(harness, error="\x00")).jobs) == []


@pytest.mark.parametrize(
    "wanted",
    [
        {"limit": 0},
        {"limit": 1001},
        {"position": "x"},
        {"position": "0.1.2"},
        {"position": "0.1.2.3.4"},
        {"position": "2.1.2.3"},
        {"position": "0.-1.2.3"},
        {"position": "٠.٣.٣.٣"},
        {"position": f"0.{2**63}.1.1"},
        {"position": "0." + "9" * 5000 + ".1.1"},
        {"position": "0.1.2.3", "states": (State.FAILED,)},
        {"position": f"0.1.2.3.{2**62}", "states": (State.FAILED,)},
        {"error": "x" * 1001},
        {"task": "x" * 129},
        {"flag": "x" * 129},
    ],
)
async def test_an_invalid_search_is_refused(harness: StoreHarness, wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=next(field for field in ("position", *wanted) if field in wanted)):
        await search(harness, **wanted)


async def test_a_moment_without_a_zone_is_refused(harness: StoreHarness) -> None:
    with pytest.raises(InvalidJob, match="time zone"):
        await search(harness, since=harness.now.replace(tzinfo=None))


async def test_a_history_that_is_not_kept_is_not_searched(forgetful_harness: StoreHarness) -> None:
    jobs = [await forgetful_harness.in_state(state) for state in (State.QUEUED, State.FAILED)]
    await forgetful_harness.start("done")
    await forgetful_harness.store.admin.force_unlock_workers(["w1"])
    result = await search(forgetful_harness)
    assert set(ids(jobs)) < set(ids(result.jobs))
