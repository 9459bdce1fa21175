"""The law applied to one attempt: what the handler says about a record, and the settlement of what became of it.

Policy, backoff and encoding are somebody else's code. When one of them fails, the job's own settlement says so; the
worker goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowhand.events import Events, ResultDropped
from stowhand.jobs.durations import seconds
from stowhand.jobs.job import State
from stowhand.jobs.lifecycle import COMPLETED, Complete, Fail, Outcome, Retry, Settlement, settle
from stowhand.jobs.outcomes import LONGEST_DELAY, describe
from stowhand.jobs.text import clean
from stowhand.protocols.handler import Attempt, Handler, Policy
from stowhand.protocols.store import Claim
from stowhand.retry import natural

UNWRITTEN = "its settlement could not be written"
"""How the error of an attempt begins whose end the store refused."""


class Judge:
    """One handler's policies. ``default`` stands where the handler does not say."""

    def __init__(self, handler: Handler, default: Policy, events: Events) -> None:
        self._policy: Callable[[Claim[Any]], Policy] = getattr(handler, "policy", lambda claim: default)
        self._encode: Callable[[object], str] | None = getattr(handler, "encode", None)
        self._default, self._events = default, events

    def timeout(self, claim: Claim[Any]) -> float | None:
        """Seconds that this attempt may take. Raises whatever the handler's policy raises."""
        timeout = self._policy(claim).timeout
        return timeout if timeout is not None else self._default.timeout

    def settle(self, attempt: Attempt[Any], outcome: Outcome) -> Settlement:
        """The settlement. A policy that fails costs its own job a wait by the natural table, and says so there."""
        result = None
        if isinstance(outcome, Complete):
            if outcome.result is not None:
                result = self._encoded(attempt.claim, outcome.result)
            elif not attempt.then:
                return COMPLETED  # the commonest, and no policy has a say in it
        try:
            return self._settle(attempt, outcome, result)
        except BaseException as trouble:  # noqa: BLE001 - boundary: told in the job's error text
            said, rest = (f"{outcome.error}\n", outcome.payload) if isinstance(outcome, Retry) else ("", None)
            words = clean(f"{said}(how long to wait could not be decided: {describe(trouble)})")
            return self._settle(attempt, Retry(words, payload=rest), None, natural)

    def instead(self, attempt: Attempt[Any], asked: Settlement, why: str, refusals: int) -> Settlement | None:
        """What is settled when the store has refused ``asked``: an error of the attempt, retried by the rules; refused
        again, a failure. ``None``: every end was refused. ``refusals``: how many there were, this one included."""
        reason = clean(f"{UNWRITTEN}: {why}")
        match refusals:
            case 1:
                first = (asked.error or "").partition("\n")[0]
                return self.settle(attempt, Retry(clean(f"{first}\n({reason})") if first else reason))
            case 2 if asked.state is not State.FAILED:
                return self.settle(attempt, Fail(reason))
        return None

    def _settle(
        self,
        attempt: Attempt[Any],
        outcome: Outcome,
        result: str | None,
        backoff: Callable[[int], float] | None = None,
    ) -> Settlement:
        claim = attempt.claim
        settlement = settle(
            outcome,
            attempts=claim.attempts,
            max_attempts=claim.max_attempts,
            backoff=backoff or (lambda attempts: self._wait(claim, attempts)),
            result=result,
            then=tuple(attempt.then),
        )
        if not settlement.delay <= LONGEST_DELAY:
            raise ValueError(f"the backoff of attempt {claim.attempts} gave {settlement.delay} s")
        return settlement

    def _wait(self, claim: Claim[Any], attempts: int) -> float:
        """Seconds before the next attempt. Asked for a retry alone: a policy that fails changes no other end.

        A plain number, whatever kind of number or duration the policy gave: no store has to know a ``Decimal``.
        """
        backoff = self._policy(claim).backoff or self._default.backoff or natural
        return seconds(backoff(attempts))

    def _encoded(self, claim: Claim[Any], result: object) -> str | None:
        """The result as JSON text; one that cannot be kept is dropped with an event, and the job stays completed."""
        if self._encode is None:
            return None
        try:
            return self._encode(result)
        except BaseException as error:  # noqa: BLE001 - boundary: a result may raise anything; the event says what
            self._events.emit(ResultDropped(claim.lease.job_id, claim.task, describe(error).partition("\n")[0]))
            return None
