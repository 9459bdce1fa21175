"""Checks the settlements that remote workers send, and reports what was recorded for them.

An impossible state is a mistake of the client, and the whole call is refused. What a handler made (a result, a payload,
following jobs) may be invalid although the client is correct: then that settlement alone is not written, and the reply
says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from stowhand.errors import InvalidJob, UndecodablePayload
from stowhand.jobs import limits, strict_json
from stowhand.jobs.durations import MAX_DURATION_SECONDS
from stowhand.jobs.failed_attempts import CLASS_LIMIT
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import COMPLETED, AttemptOutcome, Settlement
from stowhand.jobs.text import clean
from stowhand.protocols.store import RecordedSettlement, RefusedSettlement
from stowhand.remote.server.refusals import Refused, malformed
from stowhand.remote.server.tokens import Grant
from stowhand.remote.wire import Difference, SettleReply, SettleRequest

OUTCOMES_BY_STATE = {
    State.COMPLETED: (AttemptOutcome.OK,),
    State.ERRORED: (AttemptOutcome.RETRY,),
    State.FAILED: (AttemptOutcome.FAILED, AttemptOutcome.POISON),
    State.QUEUED: (AttemptOutcome.SNOOZED,),
    State.CANCELED: (AttemptOutcome.CANCELED,),
}
"""The states in which a job can end an attempt, with the matching ``ended``."""
WAITING_STATES = (State.ERRORED, State.QUEUED)
MAX_FOLLOWING_JOBS = 1000


def check_settlement(grant: Grant, place: int, settlement: Settlement) -> Settlement | RefusedSettlement:
    """Return the settlement as it may be recorded. ``place`` in the batch, for the message. Raises Refused."""
    if settlement == COMPLETED:  # the commonest by far: nothing in it can be wrong
        return COMPLETED
    location = f"batch[{place}].settlement"
    if settlement.ended not in OUTCOMES_BY_STATE.get(settlement.state, ()):
        raise malformed(f"{location}: no job ends as {settlement.state} and {settlement.ended} at once")
    if not math.isfinite(settlement.delay) or not 0 <= settlement.delay <= MAX_DURATION_SECONDS:
        raise malformed(f"{location}.delay: {settlement.delay:g} s; 0 to {MAX_DURATION_SECONDS:g}")
    if settlement.delay and settlement.state not in WAITING_STATES:
        raise malformed(f"{location}.delay: a job that is {settlement.state} waits for nothing")
    if settlement.refund is not (settlement.state is State.QUEUED):
        raise malformed(f"{location}.refund: the attempt is given back if, and only if, the job is queued again")
    settlement = _cleaned(settlement)
    try:
        _check_content(grant, settlement)
    except (InvalidJob, UndecodablePayload) as trouble:
        return RefusedSettlement(str(trouble))
    except Refused as refusal:
        return RefusedSettlement(f"{refusal.message}; {refusal.fix}")
    return settlement


def _cleaned(settlement: Settlement) -> Settlement:
    """Return the settlement without fields that its state does not use, and with an error text that can be stored."""
    error = None if settlement.error is None else clean(settlement.error)
    result = settlement.result if settlement.state is State.COMPLETED else None
    payload = settlement.payload if settlement.state in (State.ERRORED, State.FAILED) else None
    error_class = None if settlement.error_class is None else clean(settlement.error_class)[:CLASS_LIMIT]
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


def reply_of(sent: SettleRequest, found: Sequence[RecordedSettlement]) -> SettleReply:
    """Return the reply to a batch: a verdict for each, and the settlements that differ from those sent."""
    differences = []
    for place, (proved, recorded_settlement) in enumerate(zip(sent.batch, found, strict=True)):
        if recorded_settlement.reason:
            differences.append(Difference(place=place, unwritten=recorded_settlement.reason))
        elif recorded_settlement.settlement is not None and recorded_settlement.settlement is not proved.settlement:
            recorded = _bare(recorded_settlement.settlement)
            if recorded != _bare(proved.settlement):
                differences.append(Difference(place=place, recorded=recorded))
    return SettleReply(
        verdicts=tuple(recorded_settlement.verdict.value for recorded_settlement in found),
        differences=tuple(differences),
    )


def _bare(settlement: Settlement) -> Settlement:
    return msgspec.structs.replace(settlement, result=None, payload=None, then=())


def audited(found: RecordedSettlement) -> str:
    """Return the entry of the audit for one settlement, without data of the handler."""
    if found.settlement is None:
        return f"nothing: {found.verdict.value}"
    following = len(found.settlement.then)
    enqueued = f", {following} enqueued" if following else ""
    return f"{found.settlement.state.value}: {found.verdict.value}{enqueued}"
