"""The rules that lead from an outcome of an attempt to the next state of its job. Only this module decides it.

                enqueue
                   │
                   ▼         claim (lease)
      ┌─────── queued ───────────────────────────▶ processing ──Complete──────────────▶ completed
      │            │                                 │ │ │ │
      │            ├──Snooze, Waiting, released──────┘ │ │ ├──Retry, attempts left──▶ errored ──due──▶ (claim)
      │            └──────reset (its worker died)──────┘ │ ├──Retry, none left──────▶ failed
      │                                                  │ ├──Fail, Poison──────────▶ failed
      └──cancel before it ran──▶ canceled ◀──────────────┘ └──resets used up────────▶ failed

A store records these decisions. It applies one rule itself when it writes, because it depends on the row
(``effective_state``): a job whose cancellation was requested, or whose key was removed, becomes ``canceled`` instead of
``queued`` or ``errored``. A job whose key a newer job took becomes ``failed`` instead of ``errored``. Then the store
replies with the settlement that it wrote (``with_state``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import msgspec

from stowhand.errors import suggest
from stowhand.jobs.durations import MAX_DURATION_SECONDS, Duration, format_duration, seconds
from stowhand.jobs.failed_attempts import class_path, error_title
from stowhand.jobs.job import NewJob, State


class RaisableOutcome(Exception):
    """Base of the outcomes that may be raised. Equality, hash, repr and copies use their fields.

    Traceback, cause, context and notes are set as on any exception, and are not part of the value.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()

    if not TYPE_CHECKING:  # with this signature, a type checker would accept any argument

        def __new__(cls, *args: Any, **options: Any) -> Self:
            for name in options:
                if name not in cls.__match_args__:
                    raise TypeError(f"{cls.__name__}: no option {name!r}{suggest(name, cls.__match_args__)}")
            return super().__new__(cls, *args)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == _values_of(other)

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__match_args__)})"

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__match_args__ and name in vars(self):
            kind = type(self).__name__
            raise AttributeError(f"{kind}.{name} cannot be changed; create another {kind}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__match_args__:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be removed")
        super().__delattr__(name)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception.__reduce__ would call the constructor with the positional arguments alone.
        return _restore, (type(self), dict(vars(self)))

    def __replace__(self, **changes: Any) -> Self:
        """Return a copy with changed fields, as ``copy.replace`` of Python 3.13 does."""
        return type(self)(**{name: getattr(self, name) for name in self.__match_args__} | changes)

    def _read_error(self, error: str | BaseException, error_class: str | None) -> tuple[str, str | None]:
        """Return text and class of an error. An exception becomes the cause, as with ``raise … from``."""
        if not isinstance(error, BaseException):
            return error, error_class
        self.__cause__ = error
        return error_title(error), error_class or class_path(error)

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)


def _values_of(other: object) -> tuple[object, ...]:
    assert isinstance(other, RaisableOutcome)
    return other._values()  # noqa: SLF001 - of the same class


def _restore(kind: type[RaisableOutcome], attributes: dict[str, Any]) -> RaisableOutcome:
    outcome = kind.__new__(kind)
    vars(outcome).update(attributes)
    return outcome


def read_outcome_delay(outcome: str, delay: Duration) -> float:
    """Return the delay in seconds, at most a hundred years.

    Raises ValueError for an invalid or negative duration, not a permanent error: a delay often comes from a reply such
    as ``Retry-After``, so the attempt is retried as after any exception.
    """
    try:
        wait = seconds(delay)
        if math.isnan(wait):
            raise ValueError("got nan; use seconds, a timedelta or a phrase such as '30s'")
        if wait < 0:
            raise ValueError(f"{wait:g} seconds; it must not be negative; use 0, or max(0, …)")
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{outcome}: delay: {error}") from None
    return min(wait, MAX_DURATION_SECONDS)


Backoff = Callable[[int], float]
"""Returns the seconds to wait after attempt n (1, 2, …) has failed."""

DEFAULT_MAX_RESETS = 5
MIN_SUSPECT_RESETS = 2
"""A job with this many resets is a suspect: it runs apart from other jobs."""


MAX_SLACK_SECONDS = 1.0


def slack(lease: float) -> float:
    """Return the seconds after the end of a lease during which its job is not reset yet.

    The worker may have found the row locked when it tried to renew the lease. The row cannot show this. The slack is
    long enough for two more tries.
    """
    return min(MAX_SLACK_SECONDS, lease / 3)


class Complete(msgspec.Struct, frozen=True):
    """Success. ``result`` is kept in the history if it can be written as JSON."""

    result: object = None


class Retry(RaisableOutcome):
    """Failure of the attempt. It is retried after ``delay``, or else after the task's backoff."""

    __match_args__ = ("error", "delay", "payload", "error_class")

    error: Final[str]
    delay: Final[float | None]
    """Seconds."""
    payload: Final[str | None]
    """JSON text that replaces the payload: the remaining elements of a batch."""
    error_class: Final[str | None]
    """The dotted path of the exception's class; the worker sets it if a handler raises."""

    def __init__(
        self,
        error: str | BaseException = "retry requested",
        delay: Duration | None = None,
        payload: str | None = None,
        error_class: str | None = None,
    ) -> None:
        """Create the outcome. Raises ValueError for an invalid or negative delay.

        Args:
            error: a text, or an exception, whose text and class are kept.
            delay: seconds, a timedelta or a phrase such as "5m".
            payload: JSON text that replaces the payload.
            error_class: the dotted path of the error's class.

        """
        self.error, self.error_class = self._read_error(error, error_class)
        self.delay = None if delay is None else read_outcome_delay("Retry", delay)
        self.payload = payload

    def __str__(self) -> str:
        return str(self.error)


class Fail(RaisableOutcome):
    """Permanent failure of the job, even if attempts are left."""

    __match_args__ = ("error", "poison", "payload", "error_class")

    error: Final[str]
    poison: Final[bool]
    payload: Final[str | None]
    """As with ``Retry``."""
    error_class: Final[str | None]
    """As with ``Retry``."""

    def __init__(
        self,
        error: str | BaseException = "failed",
        poison: bool = False,
        payload: str | None = None,
        error_class: str | None = None,
    ) -> None:
        """Create the outcome. ``error`` is as with ``Retry``; ``poison`` counts the job as poison in metrics."""
        self.error, self.error_class = self._read_error(error, error_class)
        self.poison = poison
        self.payload = payload

    def __str__(self) -> str:
        return str(self.error)


class Snooze(RaisableOutcome):
    """Run the job again after ``delay``, without using an attempt."""

    __match_args__ = ("delay",)

    delay: Final[float]
    """Seconds."""

    def __init__(self, delay: Duration) -> None:
        """Create the outcome. ``delay`` is as with ``Retry``."""
        self.delay = read_outcome_delay("Snooze", delay)

    def __str__(self) -> str:
        return f"again in {format_duration(self.delay)}"


class RateLimited(Snooze):
    """The other side has refused a call (HTTP 429): start no job of this task's limits for some time.

    Raise it in a task with ``limits``: the limits in the store start nothing for ``for_``, and this job is due again
    after that. The attempt is not counted.

    Example:
        raise RateLimited(for_=float(response.headers["Retry-After"]))

    """

    __match_args__ = ("for_",)

    def __init__(self, for_: Duration) -> None:
        """Create the outcome. ``for_``: seconds, a timedelta or a phrase. Raises ValueError."""
        super().__init__(for_)

    @property
    def for_(self) -> float:
        """Seconds for which the limits start nothing."""
        return self.delay


class Cancel(RaisableOutcome):
    """Cancellation of the job by its handler."""

    __match_args__ = ("reason",)

    reason: Final[str]

    def __init__(self, reason: str = "canceled") -> None:
        self.reason = reason

    def __str__(self) -> str:
        return str(self.reason)


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a workflow waits for (tasks/workflow.py). The settlement records it, and creates its children."""

    step: str
    """The name of the step that waits."""
    event: str | None = None
    """The name of the event that ends the wait."""
    delay: float | None = None
    """Seconds until the end of the wait, by the store's clock. An end that the step has recorded before is kept. With
    neither a delay nor ``until``, only the event or the children end the wait."""
    until: datetime | None = None
    """The end of the wait, aware."""
    children: tuple[NewJob, ...] = ()
    """Jobs to create, in addition to children of this step that have not ended. The last one to end ends the wait."""
    places: tuple[int, ...] = ()
    """The place of each new child in the step, from 0. What was recorded for these places is deleted."""
    value: str | None = None
    """JSON text to record with a step of children; ``None`` for other waits."""
    attempts: int = 0
    """The attempts that count after the wait."""


class Waiting(msgspec.Struct, frozen=True):
    """A workflow waits: the attempt ends without an error, and the job runs again when the wait ends."""

    wait: Wait


Raisable = Retry | Fail | Snooze | Cancel
"""Outcomes that a handler may return or raise. A job with one of them has no result."""
Outcome = Complete | Retry | Fail | Snooze | Cancel | Waiting


class AttemptOutcome(StrEnum):
    """The outcome of an attempt, with the values that metrics use."""

    OK = "ok"
    RETRY = "retry"
    FAILED = "failed"
    POISON = "poison"
    SNOOZED = "snoozed"
    WAITING = "waiting"
    """A workflow waits for a time, an event or its children."""
    CANCELED = "canceled"


class Settlement(msgspec.Struct, frozen=True):
    """The change that a store writes when a job leaves ``processing``. Stores never decide; they record."""

    state: State
    ended: AttemptOutcome
    delay: float = 0.0
    """Seconds from now, by the store's clock, until the job is due again (``errored``, ``queued``)."""
    error: str | None = None
    """Error text, safe to store and cut to its limit."""
    result: str | None = None
    """JSON text, for ``completed``."""
    refund: bool = False
    """The attempt is not counted."""
    payload: str | None = None
    """JSON text that replaces the payload, for ``errored`` and ``failed``: the remaining elements of a batch."""
    then: tuple[NewJob, ...] = ()
    """Jobs enqueued in the same transaction, if and only if the settlement is accepted."""
    error_class: str | None = None
    """For ``errored`` and ``failed``: as in ``FailedAttempt``, at most 200 characters."""
    holds_limits: bool = False
    """For ``queued``: the limits of the job's task start no job for ``delay`` (``RateLimited``)."""
    wait: Wait | None = None
    """For ``queued``: what the job waits for. It sets the attempts, and the time at which the job is due."""


COMPLETED = Settlement(State.COMPLETED, AttemptOutcome.OK)
"""The settlement of a job that completed without a result. It is the most common one, so it is created once."""


WAITING_STATES = (State.QUEUED, State.ERRORED)
"""States from which a job can be claimed."""
STATES_WITH_PAYLOAD = (State.ERRORED, State.FAILED)
"""States of settlements that may replace the payload, even if the store writes another state."""
_OUTCOMES_BY_STATE = {
    State.COMPLETED: AttemptOutcome.OK,
    State.ERRORED: AttemptOutcome.RETRY,
    State.FAILED: AttemptOutcome.FAILED,
    State.QUEUED: AttemptOutcome.SNOOZED,
    State.CANCELED: AttemptOutcome.CANCELED,
}


def settle(
    outcome: Outcome,
    *,
    attempts: int,
    max_attempts: int,
    backoff: Backoff,
    result: str | None = None,
    then: tuple[NewJob, ...] = (),
) -> Settlement:
    """Return the settlement for the outcome of one attempt. ``result`` is the result of ``Complete`` as JSON text."""
    match outcome:
        case Complete():
            if result is None and not then:
                return COMPLETED
            return Settlement(State.COMPLETED, AttemptOutcome.OK, result=result, then=then)
        case Retry(error, delay, payload, error_class) if attempts < max_attempts:
            delay = max(backoff(attempts), 0.0) if delay is None else delay
            return Settlement(
                State.ERRORED, AttemptOutcome.RETRY, delay, error, payload=payload, error_class=error_class
            )
        case Retry(error, _, payload, error_class):
            return Settlement(
                State.FAILED, AttemptOutcome.FAILED, error=error, payload=payload, error_class=error_class
            )
        case Fail(error, poison, payload, error_class):
            attempt_outcome = AttemptOutcome.POISON if poison else AttemptOutcome.FAILED
            return Settlement(State.FAILED, attempt_outcome, error=error, payload=payload, error_class=error_class)
        case RateLimited(delay):
            return Settlement(State.QUEUED, AttemptOutcome.SNOOZED, delay=delay, refund=True, holds_limits=True)
        case Snooze(delay):
            return Settlement(State.QUEUED, AttemptOutcome.SNOOZED, delay=delay, refund=True)
        case Waiting(waited):
            return Settlement(State.QUEUED, AttemptOutcome.WAITING, refund=True, then=then, wait=waited)
        case Cancel(reason):
            return Settlement(State.CANCELED, AttemptOutcome.CANCELED, error=reason)


def effective_state(
    state: State, *, cancel_requested: bool, loses_retries: str | None, continues: bool = False
) -> State:
    """Return the state to write for a job that may have been canceled, or have lost its key, while it ran.

    PostgreSQL computes it in ``way_back`` (settle.sql).

    Args:
        state: the state of the settlement.
        cancel_requested: the job's cancellation was requested.
        loses_retries: "removed" if ``remove_key`` took its key, "replaced" if a newer job took it.
        continues: the job is a completed step of a flow that continues.

    """
    if continues and cancel_requested:
        return State.CANCELED
    if state not in WAITING_STATES:
        return state
    if cancel_requested or loses_retries == "removed":
        return State.CANCELED
    if loses_retries == "replaced" and state is State.ERRORED:
        return State.FAILED
    return state


def with_state(requested: Settlement, state: State) -> Settlement:
    """Return the settlement that was recorded with another state than requested. It enqueues nothing."""
    return msgspec.structs.replace(
        requested, state=state, ended=_OUTCOMES_BY_STATE[state], delay=0.0, result=None, then=(), wait=None
    )


def reset(*, resets: int, max_resets: int | None, max_attempts: int) -> Settlement:
    """Return the settlement of a job whose worker was lost. ``resets`` is the count before this loss."""
    if resets < allowed_resets(max_resets, max_attempts):
        return Settlement(State.QUEUED, AttemptOutcome.RETRY, refund=True)
    times = f"{resets + 1} time" if resets == 0 else f"{resets + 1} times"
    return Settlement(State.FAILED, AttemptOutcome.FAILED, error=f"its worker died {times} while running it")


def allowed_resets(max_resets: int | None, max_attempts: int) -> int:
    """Return the number of resets after which the next lost worker fails the job."""
    if max_resets is not None:
        return max_resets
    return 0 if max_attempts == 1 else DEFAULT_MAX_RESETS
