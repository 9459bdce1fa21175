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
from stowhand.remote.wire import Difference, Settlements, Verdicts

ENDINGS = {
    State.COMPLETED: (AttemptOutcome.OK,),
    State.ERRORED: (AttemptOutcome.RETRY,),
    State.FAILED: (AttemptOutcome.FAILED, AttemptOutcome.POISON),
    State.QUEUED: (AttemptOutcome.SNOOZED,),
    State.CANCELED: (AttemptOutcome.CANCELED,),
}
"""The states in which a job can end an attempt, with the matching ``ended``."""
WAITING = (State.ERRORED, State.QUEUED)
MOST_FOLLOWING = 1000


def checked(grant: Grant, place: int, settlement: Settlement) -> Settlement | RefusedSettlement:
    """Return the settlement as it may be recorded. ``place`` in the batch, for the message. Raises Refused."""
    if settlement == COMPLETED:  # the commonest by far: nothing in it can be wrong
        return COMPLETED
    where = f"batch[{place}].settlement"
    if settlement.ended not in ENDINGS.get(settlement.state, ()):
        raise malformed(f"{where}: no job ends as {settlement.state} and {settlement.ended} at once")
    if not math.isfinite(settlement.delay) or not 0 <= settlement.delay <= MAX_DURATION_SECONDS:
        raise malformed(f"{where}.delay: {settlement.delay:g} s; 0 to {MAX_DURATION_SECONDS:g}")
    if settlement.delay and settlement.state not in WAITING:
        raise malformed(f"{where}.delay: a job that is {settlement.state} waits for nothing")
    if settlement.refund is not (settlement.state is State.QUEUED):
        raise malformed(f"{where}.refund: the attempt is given back if, and only if, the job is queued again")
    settlement = _fitting(settlement)
    try:
        _check_content(grant, settlement)
    except (InvalidJob, UndecodablePayload) as trouble:
        return RefusedSettlement(str(trouble))
    except Refused as refusal:
        return RefusedSettlement(f"{refusal.message}; {refusal.fix}")
    return settlement


def _fitting(settlement: Settlement) -> Settlement:
    """Without the fields that the state does not use, as every store does; with an error text that can be stored."""
    error = None if settlement.error is None else clean(settlement.error)
    result = settlement.result if settlement.state is State.COMPLETED else None
    payload = settlement.payload if settlement.state in (State.ERRORED, State.FAILED) else None
    error_class = None if settlement.error_class is None else clean(settlement.error_class)[:CLASS_LIMIT]
    return msgspec.structs.replace(settlement, error=error, result=result, payload=payload, error_class=error_class)


def _check_content(grant: Grant, settlement: Settlement) -> None:
    for text in (settlement.result, settlement.payload):
        if text is not None:
            strict_json.validate(text)
    if len(settlement.then) > MOST_FOLLOWING:
        raise InvalidJob(f"then: {len(settlement.then)} jobs, the limit is {MOST_FOLLOWING}")
    for job in settlement.then:
        limits.check(job)
        grant.check_enqueue(job)


def reply_of(sent: Settlements, found: Sequence[RecordedSettlement]) -> Verdicts:
    """Return the reply to a batch: a verdict for each, and the settlements that differ from those sent."""
    differences = []
    for place, (asked, one) in enumerate(zip(sent.batch, found, strict=True)):
        if one.why:
            differences.append(Difference(place=place, unwritten=one.why))
        elif one.settlement is not None and one.settlement is not asked.settlement:
            recorded = _bare(one.settlement)
            if recorded != _bare(asked.settlement):
                differences.append(Difference(place=place, recorded=recorded))
    return Verdicts(verdicts=tuple(one.verdict.value for one in found), differences=tuple(differences))


def _bare(settlement: Settlement) -> Settlement:
    return msgspec.structs.replace(settlement, result=None, payload=None, then=())


def audited(found: RecordedSettlement) -> str:
    """Return the entry of the audit for one settlement, without data of the handler."""
    if found.settlement is None:
        return f"nothing: {found.verdict.value}"
    following = len(found.settlement.then)
    enqueued = f", {following} enqueued" if following else ""
    return f"{found.settlement.state.value}: {found.verdict.value}{enqueued}"
