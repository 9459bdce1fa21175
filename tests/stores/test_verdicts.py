"""What a store replies to settlements, as rules: every store follows them."""

from __future__ import annotations

import pytest

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lease import Lease
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.protocols.store import RefusedSettlement, Verdict
from stowhand.stores.verdicts import Replies, pair, recorded, recorded_before, untraced

RETRY = Settlement(State.ERRORED, AttemptOutcome.RETRY, delay=5.0, error="no")
SNOOZE = Settlement(State.QUEUED, AttemptOutcome.SNOOZED, delay=5.0, refund=True)
FAIL = Settlement(State.FAILED, AttemptOutcome.FAILED, error="no")
ONE, TWO, THREE = (Lease(job_id, f"token {job_id}", 1) for job_id in (1, 2, 3))


@pytest.mark.parametrize("asked", [COMPLETED, RETRY, SNOOZE, FAIL])
def test_an_outcome_recorded_as_requested_is_settled(asked: Settlement) -> None:
    assert recorded(asked, asked.state) is Verdict.SETTLED


def test_a_changed_outcome_is_the_reply_and_has_no_delay() -> None:
    assert recorded(RETRY, State.CANCELED) == Settlement(State.CANCELED, AttemptOutcome.CANCELED, error="no")
    assert recorded(RETRY, State.FAILED) == Settlement(State.FAILED, AttemptOutcome.FAILED, error="no")


@pytest.mark.parametrize("state", [State.QUEUED, State.ERRORED, State.PROCESSING])
def test_a_repeated_retry_is_recognized_in_any_state_of_the_job(state: State) -> None:
    assert recorded_before(RETRY, state) is Verdict.ALREADY_SETTLED


@pytest.mark.parametrize("state", [State.QUEUED, State.ERRORED, State.FAILED, State.CANCELED])
def test_a_completion_of_a_settled_job_reports_the_recorded_outcome(state: State) -> None:
    following = Settlement(State.COMPLETED, AttemptOutcome.OK, result="1", then=(NewJob(task="next"),))
    reply = recorded_before(following, state)
    assert isinstance(reply, Settlement)
    assert (reply.state, reply.result, reply.then) == (state, None, ())
    assert recorded_before(following, State.COMPLETED) is Verdict.ALREADY_SETTLED


@pytest.mark.parametrize("asked", [RETRY, SNOOZE])
@pytest.mark.parametrize("state", [State.CANCELED, State.FAILED])
def test_a_repeated_retry_reports_that_the_job_has_ended(asked: Settlement, state: State) -> None:
    reply = recorded_before(asked, state)
    assert isinstance(reply, Settlement)
    assert (reply.state, reply.delay) == (state, 0.0)


def test_a_repeated_failure_is_recognized() -> None:
    assert recorded_before(FAIL, State.FAILED) is Verdict.ALREADY_SETTLED


def test_a_missing_job_is_lost_or_unknown_after_a_call_without_a_reply() -> None:
    assert untraced(repeat=False) is Verdict.LOST
    assert untraced(repeat=True) is Verdict.UNKNOWN


def test_rows_are_written_in_id_order_and_answered_in_the_order_of_the_batch() -> None:
    replies = Replies([(THREE, COMPLETED), (ONE, RETRY), (TWO, FAIL)])
    assert [lease for lease, _ in replies.entries] == [ONE, TWO, THREE]
    replies.known = {pair((ONE, RETRY)): Verdict.SETTLED, pair((TWO, FAIL)): RefusedSettlement("no")}
    assert replies.in_order(repeat=False) == [Verdict.LOST, Verdict.SETTLED, RefusedSettlement("no")]
    assert replies.in_order(repeat=True) == [Verdict.UNKNOWN, Verdict.SETTLED, RefusedSettlement("no")]


def test_a_duplicate_lease_is_settled_by_its_first_entry_and_answered_twice() -> None:
    replies = Replies([(ONE, FAIL), (ONE, COMPLETED)])
    assert replies.entries == [(ONE, FAIL)]
    replies.known = {pair((ONE, FAIL)): Verdict.SETTLED}
    first, second = replies.in_order(repeat=False)
    assert first is Verdict.SETTLED
    assert isinstance(second, Settlement)
    assert second.state is State.FAILED, "what was recorded, and not what was asked for"


def test_one_job_under_two_tokens_is_two_leases() -> None:
    zombie = Lease(1, "an older token", 0)
    assert len(Replies([(ONE, COMPLETED), (zombie, COMPLETED)]).entries) == 2


def test_a_busy_row_that_is_deleted_before_the_retry_is_not_busy() -> None:
    replies = Replies([(ONE, COMPLETED), (TWO, COMPLETED)])
    replies.known = {pair((ONE, COMPLETED)): Verdict.BUSY, pair((TWO, COMPLETED)): Verdict.SETTLED}
    again = replies.busy()
    assert again == [(ONE, COMPLETED)]
    assert replies.missed(again) == again
    assert replies.busy() == []
    assert replies.in_order(repeat=False) == [Verdict.LOST, Verdict.SETTLED]
