"""How one record is run, and what an error of its attempt comes to under that. Pure.

Policies and backoffs are the application's code. Where one of them fails, the record waits by the natural table, and
its error says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stowhand.errors import ConfigurationError, PayloadMismatch
from stowhand.jobs.durations import seconds
from stowhand.jobs.lifecycle import Fail, Outcome, Retry
from stowhand.jobs.outcomes import describe, from_error
from stowhand.jobs.text import clean
from stowhand.protocols.store import Claim
from stowhand.retry import AnyBackoff, natural, takes_error, wait


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How one record is run."""

    timeout: float | None = None
    """Seconds an attempt may take, a timedelta or a phrase; ``None``: no limit."""
    backoff: AnyBackoff | None = None
    """How long to wait after a failure; ``None``: the store's or the worker's own."""
    gives_up: Callable[[BaseException], str | None] | None = None
    """Why this error, which the handler has raised, fails the record at once; ``None``: it does not."""

    def __post_init__(self) -> None:
        if self.timeout is not None and type(self.timeout) is not float:
            try:
                msgspec.structs.force_setattr(self, "timeout", seconds(self.timeout))
            except ValueError as error:
                raise ConfigurationError(f"Policy: timeout: {error}") from None


def outcome_of(error: BaseException, claim: Claim[Any], policy: Callable[[Claim[Any]], Policy]) -> Outcome:
    """What an attempt that raised this comes to. Arguments that this version of a task cannot take are no error of the
    task's own: its policy is not asked whether it gives up."""
    outcome = from_error(error)
    if not isinstance(outcome, Retry) or claim.attempts >= claim.max_attempts:
        return outcome
    try:
        chosen = policy(claim)
        gives_up = None if isinstance(error, PayloadMismatch) else chosen.gives_up
        why = None if gives_up is None else gives_up(error)
    except BaseException as trouble:  # noqa: BLE001 - boundary: reported in the job's error text
        return _undecided(outcome, claim, trouble)
    if why is None:
        return with_wait(outcome, error, claim, chosen)
    title, _, trace = outcome.error.partition("\n")
    return Fail(clean(f"{title}\n(not tried again: {why})\n{trace}"), error_class=outcome.error_class)


def with_wait(outcome: Retry, error: BaseException | None, claim: Claim[Any], policy: Policy) -> Retry:
    """The retry, with its wait where the backoff is to see the error: later it is known no more."""
    backoff = policy.backoff
    if backoff is None or outcome.after is not None or claim.attempts >= claim.max_attempts:
        return outcome
    try:
        if not takes_error(backoff):
            return outcome
        return msgspec.structs.replace(outcome, after=wait(backoff, claim.attempts, error))
    except BaseException as trouble:  # noqa: BLE001 - boundary: as above
        return _undecided(outcome, claim, trouble)


def undecided(words: str | None, trouble: BaseException) -> str:
    """The error's text where a policy or a backoff has failed. ``words``: what it would have been."""
    said = f"(how long to wait could not be decided: {describe(trouble)})"
    return clean(said if words is None else f"{words}\n{said}")


def _undecided(outcome: Retry, claim: Claim[Any], trouble: BaseException) -> Retry:
    text = undecided(outcome.error, trouble)
    return msgspec.structs.replace(outcome, error=text, after=natural(claim.attempts))
