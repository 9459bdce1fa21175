"""The settlement that follows an attempt: how its end is judged under the handler's policy.

``jobs/lifecycle.py`` decides the settlement. Policy, backoff and encoding are application code: if a policy or a
backoff fails, the job is retried by the natural table, and its error text reports the failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from stowhand.errors import ConfigurationError, LeaseLost, PayloadMismatch
from stowhand.events import Events, ResultDropped
from stowhand.jobs.durations import seconds
from stowhand.jobs.failed_attempts import TIMED_OUT
from stowhand.jobs.job import DROPPED_RESULT, State
from stowhand.jobs.lifecycle import (
    COMPLETED,
    Cancel,
    Complete,
    Fail,
    Outcome,
    RaisableOutcome,
    Retry,
    Settlement,
    settle,
)
from stowhand.jobs.outcomes import COMPLETED_WITHOUT_RESULT, describe, from_error, from_raised
from stowhand.jobs.text import clean
from stowhand.protocols.attempt import Attempt, Stop, control_of
from stowhand.protocols.handler import ChildCrashed, ChildUnable, Handler
from stowhand.protocols.store import Claim
from stowhand.retry import AnyBackoff, natural, takes_error, wait

if TYPE_CHECKING:
    from stowhand.worker.leases import HeldJob

HandlerEnd = Outcome | Stop
"""How a handler ended. After a ``Stop`` nothing is recorded."""
UNWRITTEN_MESSAGE = "its settlement could not be written"
"""Start of the error text of an attempt whose settlement the store refused."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for running a record."""

    timeout: float | None = None
    """Time limit of an attempt: seconds, a timedelta or a phrase; ``None``: no limit."""
    backoff: AnyBackoff | None = None
    """Delay after a failure; ``None``: that of the store or the worker."""
    gives_up: Callable[[BaseException], str | None] | None = None
    """Returns why an error of the handler permanently fails the record; ``None`` to retry it."""

    def __post_init__(self) -> None:
        if self.timeout is not None and type(self.timeout) is not float:
            try:
                msgspec.structs.force_setattr(self, "timeout", seconds(self.timeout))
            except ValueError as error:
                raise ConfigurationError(f"Policy: timeout: {error}") from None


class HandlerPolicies:
    """Policies of a handler, and the default for fields that they leave out."""

    def __init__(self, handler: Handler, default: Policy, events: Events) -> None:
        self._policy: Callable[[Claim[Any]], Policy] = getattr(handler, "policy", lambda claim: default)
        self._encode: Callable[[object], str] | None = getattr(handler, "encode", None)
        self._default = default
        self._events = events

    def timeout(self, claim: Claim[Any]) -> float | None:
        """Return the time limit of this attempt in seconds. Raises what the handler's policy raises."""
        timeout = self._policy(claim).timeout
        return timeout if timeout is not None else self._default.timeout

    def end_of(self, error: BaseException, job: HeldJob) -> HandlerEnd:
        """Return how a handler ended that raised this error. A raised outcome counts as returned, even after a stop."""
        if isinstance(error, RaisableOutcome):
            return from_raised(error)
        reason = job.stop_reason
        if reason is Stop.CANCELED and job.stopped_at is None:
            reason = None  # the thread ended by itself, so the error is its own
        match reason:
            case None if isinstance(error, ChildCrashed):
                return Stop.CRASHED
            case None if isinstance(error, ChildUnable):
                return Stop.UNABLE
            case None if isinstance(error, LeaseLost):
                return Stop.LOST
            case None:
                return outcome_of(error, job.claim, self._policy_of)
            case Stop.TIMEOUT:
                runs_on = job.attempt is not None and control_of(job.attempt).abandoned_thread is not None
                thread = "; its thread cannot be stopped and its result will be ignored" if runs_on else ""
                message = f"timed out: the attempt took longer than {job.timeout:g} s{thread}"
                return Retry(message, error_class=TIMED_OUT)
            case Stop.CANCELED:
                return Cancel("canceled while running")
            case stopped:
                return stopped

    def settle(self, attempt: Attempt[Any], outcome: Outcome) -> Settlement:
        """Return the settlement of an attempt with this outcome."""
        if outcome is COMPLETED_WITHOUT_RESULT and not attempt.then:
            return COMPLETED  # the most common case, which no policy can change
        result = None
        if isinstance(outcome, Complete):
            if outcome.result is not None:
                result = self._encoded(attempt.claim, outcome.result)
            elif not attempt.then:
                return COMPLETED
        try:
            return self._settle(attempt, outcome, result)
        except BaseException as policy_error:  # noqa: BLE001 - boundary: reported in the job's error text
            retry = outcome if isinstance(outcome, Retry) else None
            text = undecided(None if retry is None else retry.error, policy_error)
            payload, kind = (None, None) if retry is None else (retry.payload, retry.error_class)
            return self._settle(attempt, Retry(text, payload=payload, error_class=kind), None, natural)

    def fallback_settlement(
        self, attempt: Attempt[Any], refused: Settlement, refusal: str, refusals: int
    ) -> Settlement | None:
        """Return the settlement to try after the store has refused one; ``None`` if it has refused all.

        The first is a retry with the refusal as error, the second a permanent failure.

        Args:
            attempt: The attempt to settle.
            refused: The settlement that the store has refused.
            refusal: The store's reason.
            refusals: Number of refusals of this attempt, this one included.

        """
        reason = clean(f"{UNWRITTEN_MESSAGE}: {refusal}")
        match refusals:
            case 1:
                original = (refused.error or "").partition("\n")[0]
                message = clean(f"{original}\n({reason})") if original else reason
                return self.settle(attempt, Retry(message, error_class=refused.error_class))
            case 2 if refused.state is not State.FAILED:
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
        return settle(
            outcome,
            attempts=claim.attempts,
            max_attempts=claim.max_attempts,
            backoff=backoff or (lambda attempts: self._wait(claim, attempts)),
            result=result,
            then=tuple(attempt.then),
        )

    def _wait(self, claim: Claim[Any], attempts: int) -> float:
        """Return the delay of a retry in seconds. Other settlements do not call this, so a failing policy cannot
        change them. The backoff gets no error: nothing was raised, or it does not use the error."""
        return wait(self._policy_of(claim).backoff or natural, attempts, None)

    def _policy_of(self, claim: Claim[Any]) -> Policy:
        """Return the policy of a record. Raises what the handler's policy raises."""
        policy = self._policy(claim)
        if policy.backoff is None and self._default.backoff is not None:
            return msgspec.structs.replace(policy, backoff=self._default.backoff)
        return policy

    def _encoded(self, claim: Claim[Any], result: object) -> str | None:
        """Return the result as JSON text. One that cannot be encoded is dropped with an event; the job completes."""
        if self._encode is None:
            return None
        try:
            return self._encode(result)
        except BaseException as error:  # noqa: BLE001 - boundary: a result may raise anything; the event reports it
            self._events.emit(ResultDropped(claim.lease.job_id, claim.task, describe(error).partition("\n")[0]))
            return DROPPED_RESULT


def outcome_of(error: BaseException, claim: Claim[Any], policy: Callable[[Claim[Any]], Policy]) -> Outcome:
    """Return the outcome of an attempt that raised this error.

    The policy decides only about errors of the task itself: not about raised outcomes, and not about arguments that
    this version of the task does not accept.
    """
    outcome = from_error(error)
    if isinstance(error, RaisableOutcome) or not isinstance(outcome, Retry) or claim.attempts >= claim.max_attempts:
        return outcome
    try:
        chosen = policy(claim)
        gives_up = None if isinstance(error, PayloadMismatch) else chosen.gives_up
        give_up_reason = None if gives_up is None else gives_up(error)
    except BaseException as policy_error:  # noqa: BLE001 - boundary: reported in the job's error text
        return _undecided(outcome, claim, policy_error)
    if give_up_reason is None:
        return with_wait(outcome, error, claim, chosen)
    title, _, trace = outcome.error.partition("\n")
    return Fail(clean(f"{title}\n(not retried: {give_up_reason})\n{trace}"), error_class=outcome.error_class)


def with_wait(outcome: Retry, error: BaseException | None, claim: Claim[Any], policy: Policy) -> Retry:
    """Return the retry, with its delay if the backoff uses the error, which is not kept for later."""
    backoff = policy.backoff
    if backoff is None or outcome.delay is not None or claim.attempts >= claim.max_attempts:
        return outcome
    try:
        if not takes_error(backoff):
            return outcome
        return outcome.__replace__(delay=wait(backoff, claim.attempts, error))
    except BaseException as policy_error:  # noqa: BLE001 - boundary: as above
        return _undecided(outcome, claim, policy_error)


def undecided(text: str | None, policy_error: BaseException) -> str:
    """Return the error text if a policy or a backoff has failed. ``text``: the original error, if any."""
    message = f"(its policy could not determine the delay: {describe(policy_error)})"
    return clean(message if text is None else f"{text}\n{message}")


def _undecided(outcome: Retry, claim: Claim[Any], policy_error: BaseException) -> Retry:
    text = undecided(outcome.error, policy_error)
    return outcome.__replace__(error=text, delay=natural(claim.attempts))
