"""What needs attention, judged from what a store says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from stowhand.protocols.counts import BoundedCount
from stowhand.protocols.operator import BacklogRow, SerialRow
from stowhand.protocols.throughput import OutcomeCounts, Period
from stowhand.web.attention import StoreState, attention_items, failing_tasks, outlook

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
FAILS, WORKS = OutcomeCounts(retry=5), OutcomeCounts(ok=5)


def minutes(*tallies: OutcomeCounts, task: str = "charge") -> list[Period]:
    """The last of them is of this minute."""
    first = len(tallies) - 1
    return [Period(NOON - timedelta(minutes=first - at), 60, task, tally) for at, tally in enumerate(tallies)]


def told(by_task: Sequence[Period]) -> tuple[str, datetime | None]:
    (line,) = attention_items(StoreState(now=NOON + timedelta(seconds=30), by_task=by_task))
    assert line.query == {"task": "charge", "state": "errored"}
    assert line.advice.endswith("stowhand serials pause --task charge")
    return line.text, line.first_at


def test_a_failing_task_is_reported_while_its_jobs_have_attempts_left() -> None:
    text, since = told(minutes(WORKS, WORKS, FAILS, FAILS, FAILS))
    assert text == "\u2068charge\u2069: 15 of 25 attempts of the last 10 minutes failed, the first"
    assert since == NOON - timedelta(minutes=2)


def test_a_task_has_been_failing_since_most_attempts_failed() -> None:
    nearly_well = OutcomeCounts(ok=9, retry=1)
    by_task = minutes(
        FAILS, nearly_well, OutcomeCounts(), FAILS, OutcomeCounts(), OutcomeCounts(ok=2, retry=3), FAILS, WORKS
    )
    assert told([*by_task, *minutes(*[WORKS] * 9, task="other")])[1] == NOON - timedelta(minutes=4)


def test_a_task_that_failed_for_the_whole_period_began_before_it() -> None:
    text, since = told(minutes(*[FAILS] * 60))
    assert text.endswith("50 of 50 attempts of the last 10 minutes failed, the first before")
    assert since == NOON - timedelta(minutes=59)


@pytest.mark.parametrize(
    "by_task",
    [
        minutes(OutcomeCounts(retry=4)),
        minutes(OutcomeCounts(ok=6, retry=5)),
        minutes(FAILS, *[OutcomeCounts()] * 10),
        minutes(OutcomeCounts(failed=9)),
        minutes(FAILS, task=""),
    ],
    ids=["few", "most are well", "long ago", "for good, which is told as failures", "of others"],
)
def test_tasks_without_recent_retries_are_not_reported(by_task: list[Period]) -> None:
    assert failing_tasks(by_task, NOON + timedelta(seconds=30)) == {}


def row(name: str, due: int, *, serving: int = 1, paused: bool = False) -> BacklogRow:
    none, number = BoundedCount(), BoundedCount(due)
    since = NOON if paused else None
    return BacklogRow(
        name=name,
        paused_since=since,
        waiting=number,
        due=number,
        running=none,
        failed=none,
        serving=serving,
        workers=(),
    )


def serial(due: int) -> SerialRow:
    return SerialRow("mail", NOON, None, waiting=due, due=due, running=0, failed=0)


RATE = minutes(OutcomeCounts(ok=50))
BLOCKED = [row("paused", 4, paused=True), row("nobodys", 5, serving=0)]
MAY, NOTHING = "jobs are due that may run now", "No due job can run now."


@pytest.mark.parametrize(
    ("tasks", "serials", "said"),
    [
        ([row("a", 60)], [], "60 jobs are due; at this rate that is 6m of work."),
        ([row("a", 60), *BLOCKED], [], "60 jobs are due; at this rate that is 6m of work."),
        ([row("a", 60)], [serial(50)], "10 jobs are due; at this rate that is 1m of work."),
        ([row("a", 60)], [serial(60)], NOTHING),
        (BLOCKED, [], NOTHING),
        ([row("a", 2), *BLOCKED], [serial(11)], NOTHING),
        ([row("a", 60), *BLOCKED], [serial(3)], f"At most 60 {MAY}; at this rate that is 6m of work."),
        ([row("a", 60), *BLOCKED], [serial(39)], f"At most 30 {MAY}; at this rate that is 3m of work."),
        ([], [], "Nothing is due."),
    ],
)
def test_the_outlook_counts_only_jobs_that_may_run(
    tasks: list[BacklogRow], serials: list[SerialRow], said: str
) -> None:
    assert outlook(StoreState(now=NOON, tasks=tasks, serials=serials, last_hour=RATE)) == said


def test_the_outlook_marks_lower_bounds() -> None:
    more = msgspec.structs.replace(row("a", 0), due=BoundedCount(10_000, is_lower_bound=True))
    assert outlook(StoreState(now=NOON, tasks=[more], last_hour=())).startswith("more than 10,000 jobs are due")


@pytest.mark.parametrize("seconds", [0, 30, 59])
def test_a_steady_rate_does_not_depend_on_the_second_of_the_minute(seconds: int) -> None:
    last_hour = minutes(*[OutcomeCounts(ok=60)] * 20, OutcomeCounts(ok=seconds))
    facts = StoreState(now=NOON + timedelta(seconds=seconds), tasks=[row("a", 600)], last_hour=last_hour)
    assert outlook(facts) == "600 jobs are due; at this rate that is 10m of work."


def test_lost_workers_link_to_the_task_with_most_of_them() -> None:
    once, often = minutes(OutcomeCounts(resets=5), task="once"), minutes(*[OutcomeCounts(resets=3)] * 4, task="often")
    (line,) = attention_items(
        StoreState(now=NOON, last_hour=minutes(OutcomeCounts(resets=17)), by_task=[*once, *often])
    )
    assert (line.text.split()[0], line.query) == ("17", {"task": "often"})


def test_a_task_without_a_known_worker_may_have_workers_over_http() -> None:
    (line,) = attention_items(StoreState(now=NOON, tasks=[row("a", 1, serving=0)]))
    assert (line.query, "over HTTP" in line.advice) == ({"task": "a", "state": ["queued", "errored"]}, True)
