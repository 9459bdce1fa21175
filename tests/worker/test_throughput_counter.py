"""What a worker counts between two writes: by the store's minutes, whole, and nothing twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stowhand.jobs.histogram import bucket_of
from stowhand.jobs.job import Job, State
from stowhand.jobs.lease import Lease, ResetJob
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import Claim
from stowhand.protocols.throughput import MAX_TASKS_PER_MINUTE, OTHER_TASKS, OutcomeCounts
from stowhand.worker.leases import HeldJob
from stowhand.worker.reports import MAX_KEPT_MINUTES, ThroughputCounter

START = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)
MINUTE = int(START.timestamp()) // 60
FAILED = Settlement(State.FAILED, AttemptOutcome.FAILED)
WITH_RESULT = Settlement(State.COMPLETED, AttemptOutcome.OK, result="1")


class Paper:
    """A book, and the monotonic clock beside it; the store's clock is what the claims say."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.book = ThroughputCounter(lambda: self.monotonic)

    def ended(
        self,
        task: str = "t",
        settlement: Settlement = COMPLETED,
        *,
        waited: float = 0.5,
        ran: float = 0.01,
        at: float = 0,
    ) -> HeldJob:
        """An attempt whose claim was answered just now, ``at`` seconds after START by the store's clock."""
        claimed = START + timedelta(seconds=at)
        due = claimed - timedelta(seconds=waited)
        job = Job(1, task, "{}", State.PROCESSING, None, 0, due, 1, 25, due, started_at=claimed)
        held = HeldJob(Claim(Lease(1, "x", 1), job, task, 1, 25), 0.0, self.monotonic, 0.0, is_suspect=False)
        held.seconds = ran
        held.settlement = settlement
        return held

    def take(self) -> dict[tuple[int, str], OutcomeCounts]:
        """Taken, and written."""
        taken = self.book.take()
        self.book.mark_written(taken, [])
        return {(one.minute, one.task): one.tally for one in taken}


@pytest.fixture
def paper() -> Paper:
    return Paper()


def test_a_batch_is_counted_by_task_and_outcome(paper: Paper) -> None:
    one = paper.ended(ran=0.001)
    paper.book.count([
        one, one, paper.ended("b", FAILED, ran=3.0), paper.ended(settlement=WITH_RESULT, waited=60), one,
        paper.ended("b", waited=-5.0),
    ])  # fmt: skip
    result = paper.take()
    assert result.keys() == {(MINUTE, "t"), (MINUTE, "b")}
    mine, other = result[MINUTE, "t"], result[MINUTE, "b"]
    assert (mine.ok, mine.ended, other.ok, other.failed) == (4, 4, 1, 1)
    assert mine.runs == {bucket_of(0.001): 3, bucket_of(0.01): 1}
    assert mine.waits == {bucket_of(0.5): 3, bucket_of(60): 1}
    assert other.waits == {bucket_of(0.5): 1, 0: 1}
    assert other.runs == {bucket_of(0.01): 1, bucket_of(3.0): 1}
    assert paper.take() == {}, "nothing has ended since"


def test_no_batch_is_nothing(paper: Paper) -> None:
    paper.book.count([])
    assert paper.take() == {}


def test_a_row_is_taken_whole_again_when_it_grows_or_its_reply_is_lost(paper: Paper) -> None:
    paper.book.count([paper.ended()])
    paper.book.mark_unwritten(paper.book.take())
    paper.book.count([paper.ended()])
    assert paper.take()[MINUTE, "t"].ok == 2
    paper.book.count([paper.ended()])
    assert paper.take()[MINUTE, "t"].ok == 3


def test_the_minute_is_the_stores_and_advances_by_the_monotonic_clock(paper: Paper) -> None:
    early = paper.ended(at=30)
    paper.book.count([early])
    paper.monotonic += 40
    paper.book.count([early])
    assert {minute for minute, _ in paper.take()} == {MINUTE, MINUTE + 1}
    paper.book.count([paper.ended(at=-3600)])  # the store's clock was set back
    assert {minute for minute, _ in paper.take()} == {MINUTE - 60}


def test_an_older_reply_does_not_set_the_time(paper: Paper) -> None:
    first = paper.ended(at=-600)
    paper.monotonic += 1
    paper.book.count([paper.ended()])
    paper.book.count([first])
    assert {minute for minute, _ in paper.take()} == {MINUTE}


def test_what_was_refused_counts_as_late_once(paper: Paper) -> None:
    paper.book.count([paper.ended(), paper.ended()])
    paper.take()
    paper.book.count([paper.ended()])
    paper.monotonic += 700
    taken = paper.book.take()
    paper.book.mark_written(taken, [(MINUTE, "t")])
    paper.book.mark_written(taken, [(MINUTE, "t")])
    result = paper.take()
    assert result[MINUTE + 11, "t"].late == 1, "two of the three had been written"
    assert result[MINUTE + 11, "t"].ended == 0


def test_a_long_outage_is_counted_as_late_and_takes_no_room(paper: Paper) -> None:
    for _ in range(3 * MAX_KEPT_MINUTES):
        paper.book.count([paper.ended(at=paper.monotonic - 1000)])
        paper.book.mark_unwritten(paper.book.take())
        paper.monotonic += 60
    result = paper.take()
    assert len(result) <= MAX_KEPT_MINUTES + 2
    assert sum(tally.late for tally in result.values()) >= 3 * MAX_KEPT_MINUTES - len(result)
    assert sum(tally.ended + tally.late for tally in result.values()) == 3 * MAX_KEPT_MINUTES


def test_tasks_beyond_the_maximum_share_a_row(paper: Paper) -> None:
    paper.book.count([paper.ended(f"t{number}") for number in range(MAX_TASKS_PER_MINUTE + 7)])
    result = paper.take()
    assert result[MINUTE, OTHER_TASKS].ok == 7
    assert len(result[MINUTE, OTHER_TASKS].runs) == 1
    assert len(result) == MAX_TASKS_PER_MINUTE + 1


def test_resets_are_counted_also_those_before_the_first_reply(paper: Paper) -> None:
    gone = [ResetJob(number, "t", state) for number, state in enumerate((State.QUEUED, State.FAILED, State.CANCELED))]
    paper.book.count_resets(gone)
    assert paper.take() == {}, "which minute is it?"
    paper.book.count([paper.ended()])
    paper.book.count_resets(gone[:1])
    tally = paper.take()[MINUTE, "t"]
    assert (tally.resets, tally.failed, tally.canceled, tally.ok) == (4, 1, 1, 1)
