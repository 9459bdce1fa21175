"""Checks of the settlements that remote workers send, and replies with the recorded ones.

An impossible state is a mistake of the client, and the whole call is refused. The values of a handler (result, payload,
following jobs) may be invalid although the client is correct: then only that settlement is not written, and the reply
contains the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from stowhand.errors import InvalidJob, UndecodablePayload
from stowhand.jobs import limits, strict_json
from stowhand.jobs.durations import MAX_DURATION_SECONDS
from stowhand.jobs.failed_attempts import MAX_ERROR_CLASS_CHARACTERS
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.jobs.text import clean
from stowhand.protocols.store import RecordedSettlement, RefusedSettlement
from stowhand.remote.server.refusals import Refused, malformed
from stowhand.remote.server.tokens import Grant
from stowhand.remote.server.waits import check_wait, check_wait_content
from stowhand.remote.wire import Difference, SettleReply, SettleRequest

OUTCOMES_BY_STATE = {
    State.COMPLETED: (AttemptOutcome.OK,),
    State.ERRORED: (AttemptOutcome.RETRY,),
    State.FAILED: (AttemptOutcome.FAILED, AttemptOutcome.POISON),
    State.QUEUED: (AttemptOutcome.SNOOZED, AttemptOutcome.WAITING),
    State.CANCELED: (AttemptOutcome.CANCELED,),
}
"""Outcomes of an attempt, by the state of the job after it."""
WAITING_STATES = (State.ERRORED, State.QUEUED)
MAX_FOLLOWING_JOBS = 1000


def check_settlement(grant: Grant, place: int, settlement: Settlement) -> Settlement | RefusedSettlement:
    """Return the settlement in the form to record. ``place``: its position in the batch. Raises Refused."""
    if settlement == COMPLETED:  # by far the most common settlement: nothing in it can be wrong
        return COMPLETED
    location = f"batch[{place}].settlement"
    if settlement.ended not in OUTCOMES_BY_STATE.get(settlement.state, ()):
        raise malformed(f"{location}: the state {settlement.state} contradicts the outcome {settlement.ended}")
    if not math.isfinite(settlement.delay) or not 0 <= settlement.delay <= MAX_DURATION_SECONDS:
        raise malformed(f"{location}.delay: got {settlement.delay:g} s; use 0 to {MAX_DURATION_SECONDS:g}")
    if settlement.delay and settlement.state not in WAITING_STATES:
        raise malformed(f"{location}.delay: a job with the state {settlement.state} has no delay")
    if settlement.refund is not (settlement.state is State.QUEUED):
        raise malformed(f"{location}.refund: it is true if, and only if, the job is queued again")
    if settlement.holds_limits and settlement.state is not State.QUEUED:
        raise malformed(f"{location}.holds_limits: only a job that is queued again holds the limits of its task")
    check_wait(location, settlement)
    settlement = _cleaned(settlement)
    try:
        _check_content(grant, settlement)
    except (InvalidJob, UndecodablePayload) as error:
        return RefusedSettlement(str(error))
    except Refused as refusal:
        return RefusedSettlement(f"{refusal.message}; {refusal.fix}")
    return settlement


def _cleaned(settlement: Settlement) -> Settlement:
    """Return the settlement without fields that its state does not use, and with error texts that can be stored."""
    error = None if settlement.error is None else clean(settlement.error)
    result = settlement.result if settlement.state is State.COMPLETED else None
    payload = settlement.payload if settlement.state in (State.ERRORED, State.FAILED) else None
    error_class = None if settlement.error_class is None else clean(settlement.error_class)[:MAX_ERROR_CLASS_CHARACTERS]
    return msgspec.structs.replace(settlement, error=error, result=result, payload=payload, error_class=error_class)


def _check_content(grant: Grant, settlement: Settlement) -> None:
    for text in (settlement.result, settlement.payload):
        if text is not None:
            strict_json.validate(text)
    if len(settlement.then) > MAX_FOLLOWING_JOBS:
        raise InvalidJob(f"then: {len(settlement.then)} jobs, the limit is {MAX_FOLLOWING_JOBS}")
    for job in settlement.then:
        limits.check(job)
        grant.check_enqueue(job)
    if settlement.wait is not None:
        check_wait_content(grant, settlement.wait)


def reply_of(request: SettleRequest, results: Sequence[RecordedSettlement]) -> SettleReply:
    """Return the reply to a batch: all verdicts, and the recorded settlements that differ from the request."""
    differences = []
    for place, (proved, result) in enumerate(zip(request.batch, results, strict=True)):
        if result.reason:
            differences.append(Difference(place=place, unwritten=result.reason))
        elif result.settlement is not None and result.settlement is not proved.settlement:
            recorded = _bare(result.settlement)
            if recorded != _bare(proved.settlement):
                differences.append(Difference(place=place, recorded=recorded))
    return SettleReply(verdicts=tuple(result.verdict.value for result in results), differences=tuple(differences))


def _bare(settlement: Settlement) -> Settlement:
    return msgspec.structs.replace(settlement, result=None, payload=None, then=(), wait=None)


def audit_text(result: RecordedSettlement) -> str:
    """Return the audit's text for one settlement. It contains no data of the handler."""
    if result.settlement is None:
        return f"unchanged: {result.verdict.value}"
    wait = result.settlement.wait
    following = len(result.settlement.then) + (0 if wait is None else len(wait.children))
    enqueued = f", {following} enqueued" if following else ""
    return f"{result.settlement.state.value}: {result.verdict.value}{enqueued}"
