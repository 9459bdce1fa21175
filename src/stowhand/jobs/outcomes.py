"""Conversion of returned values and raised errors to outcomes. Every attempt ends with an outcome."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Awaitable, Iterator
from types import TracebackType
from typing import Any

from stowhand.errors import Misuse, NonRetryable, PayloadMismatch, Poison, UndecodablePayload, a_type
from stowhand.jobs import strict_json
from stowhand.jobs.failed_attempts import MAX_ERROR_CLASS_CHARACTERS, class_path, error_title
from stowhand.jobs.lifecycle import (
    Cancel,
    Complete,
    Fail,
    Outcome,
    RaisableOutcome,
    RateLimited,
    Retry,
    Snooze,
    Waiting,
)
from stowhand.jobs.text import MAX_ERROR_BYTES, clean

MAX_SEARCHED_ERROR_BYTES = 1024 * 1024
"""Maximum size of an error text that is searched for secrets, before it is cut to the stored size."""


OUTCOMES = (Complete, Retry, Fail, Snooze, Cancel)
COMPLETED_WITHOUT_RESULT = Complete()
"""The outcome of handlers that return nothing."""


def from_returned(value: object) -> Outcome:
    """Return the outcome of a returned value: ``Complete``, or the returned outcome with texts that can be stored.

    A value that cannot be inspected (a proxy of a deleted object, a reason whose ``__str__`` raises SystemExit) is an
    error of the handler.
    """
    if value is None:
        return COMPLETED_WITHOUT_RESULT
    try:
        return _safe_outcome(value)
    except BaseException as error:  # noqa: BLE001 - boundary: it ends this attempt, not the process
        error.__suppress_context__ = True  # the context is code of this package, not of the handler
        return from_error(error)


def _safe_outcome(value: object) -> Outcome:
    match value:
        case Complete() | Waiting():
            return value
        case Retry(error, delay, payload, error_class):
            message, remaining_payload = _check_payload(_safe_text(error, "retry requested"), payload)
            return Retry(message, delay, remaining_payload, _clean_error_class(error_class))
        case Fail(error, poison, payload, error_class):
            message, remaining_payload = _check_payload(_safe_text(error, "failed"), payload)
            return Fail(message, poison, remaining_payload, _clean_error_class(error_class))
        case Cancel(reason):
            return Cancel(_safe_text(reason, "canceled"))
        case RateLimited(delay):
            return RateLimited(delay)
        case Snooze(delay):
            return Snooze(delay)
        case type() if issubclass(value, OUTCOMES):
            name = value.__name__
            return from_error(TypeError(f"the handler returned the class {name}: return {name}(…), not the class"))
        case _:
            return Complete(value)


def from_raised(raised: RaisableOutcome, limit: int = MAX_ERROR_BYTES) -> Outcome:
    """Return the outcome that a handler raised.

    If it was raised ``from`` an error, that error's text is appended to its own, and its class is used. The traceback,
    cause and context of the instance are cleared, because a program may raise the same instance repeatedly. ``limit``
    is as in ``describe``.
    """
    cause = raised.__cause__
    raised.__traceback__ = raised.__cause__ = raised.__context__ = None
    outcome = from_returned(raised)
    if cause is None or not isinstance(outcome, Retry | Fail):
        return outcome
    cause_text = describe(cause, limit)
    # Retry(error) already has the text of its cause.
    text = cause_text if cause_text.startswith(f"{outcome.error}\n") else clean(f"{outcome.error}\n{cause_text}", limit)
    return outcome.__replace__(error=text, error_class=outcome.error_class or class_path(cause))


def from_error(error: BaseException, limit: int = MAX_ERROR_BYTES) -> Outcome:
    """Return the outcome of an error: a retry, or a failure if the error ``is_final``. ``limit`` is as in ``describe``.

    A raised outcome is returned itself. Inside a group, or as a cause, it is an error like any other.
    """
    if isinstance(error, RaisableOutcome):
        return from_raised(error, limit)
    text, error_class = describe(error, limit), class_path(error)
    if not is_final(error):
        return Retry(text, error_class=error_class)
    poison = any(isinstance(cause, Poison | UndecodablePayload) for cause in causes(error))
    return Fail(text, poison, error_class=error_class)


def is_final(error: BaseException) -> bool:
    """Return whether the chain of causes contains NonRetryable, UndecodablePayload or Misuse.

    A Misuse that the handler caught counts only as an explicit cause (``raise … from``).
    """
    if any(isinstance(cause, NonRetryable | UndecodablePayload) for cause in causes(error)):
        return True
    return any(isinstance(cause, Misuse) for cause in causes(error, contexts=False))


def as_failure(error: BaseException) -> Fail:
    """Return a failure for an error that the handler declares not retryable."""
    outcome = from_error(error)
    return outcome if isinstance(outcome, Fail) else Fail(describe(error), error_class=class_path(error))


def describe(error: BaseException, limit: int = MAX_ERROR_BYTES) -> str:
    """Return the error's class and text on the first line, and its traceback below; safe to store, never empty.

    The text has at most ``limit`` bytes. Never raises, even if the error's own ``__str__`` does.
    """
    try:
        title = error_title(error)
        lines = traceback.format_exception(type(error), error, _without_own_frames(error.__traceback__))
    except BaseException as failure:  # noqa: BLE001 - boundary: an error that cannot be printed must be stored too
        return clean(f"{type(error).__name__}: (its text is not available: {type(failure).__name__})")
    if isinstance(error, UndecodablePayload | PayloadMismatch):
        return clean(title.partition(": ")[2] or title)
    return clean(title + "\n" + "".join(lines), limit)


def awaitable(returned: Any, hook: str) -> Awaitable[object]:
    """Return the awaitable of a hook. Raises TypeError when the hook is not asynchronous."""
    if not inspect.isawaitable(returned):
        raise TypeError(f"{hook} must be asynchronous, but returned {a_type(returned)}; write `async def {hook}`")
    return returned


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the leading frames of this package, unless it has no others."""
    frames = trace
    while frames is not None and str(frames.tb_frame.f_globals.get("__name__")).startswith("stowhand."):
        frames = frames.tb_next
    return frames or trace


def causes(error: BaseException, *, contexts: bool = True) -> Iterator[BaseException]:
    """Yield the error, its causes and contexts, and the members of exception groups. Each is yielded once."""
    seen: set[int] = set()
    remaining: list[BaseException] = [error]
    while remaining:
        current = remaining.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            remaining.extend(current.exceptions)
        if current.__cause__ is not None:
            remaining.append(current.__cause__)
        elif contexts and current.__context__ is not None and not current.__suppress_context__:
            remaining.append(current.__context__)


def _clean_error_class(error_class: object) -> str | None:
    if error_class is None:
        return None
    return _safe_text(error_class, "")[:MAX_ERROR_CLASS_CHARACTERS] or None


def _check_payload(error: str, payload: str | None) -> tuple[str, str | None]:
    """Return the error text and the new payload. An invalid payload is dropped, and the error text says so."""
    if payload is None:
        return error, None
    try:
        strict_json.validate(payload, limit=strict_json.MAX_READ_BYTES)
    except Exception as failure:  # noqa: BLE001 - boundary: a handler may pass anything
        return clean(f"{error} (its new payload cannot be stored: {failure})"), None
    return error, payload


def _safe_text(text: object, default: str) -> str:
    try:
        return clean(str(text).strip() or default)
    except Exception as failure:  # noqa: BLE001 - boundary: a reason that cannot be printed must not lose the outcome
        return clean(f"{default} (its text is not available: {type(failure).__name__})")
