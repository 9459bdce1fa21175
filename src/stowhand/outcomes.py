"""What a handler returned or raised, as an Outcome. Nothing escapes: every ending of an attempt has one."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from stowhand.errors import NonRetryable, Poison, UndecodablePayload
from stowhand.lifecycle import Cancel, Complete, Fail, Outcome, Retry, Snooze
from stowhand.text import clean


def from_returned(value: object) -> Outcome:
    """An outcome is itself; anything else completes the job, with that result."""
    if isinstance(value, Complete):
        return value
    if isinstance(value, Retry):
        return Retry(clean(_words(value.error, "asked for a retry")), value.after)
    if isinstance(value, Fail):
        return Fail(clean(_words(value.error, "failed")), value.poison)
    if isinstance(value, Cancel):
        return Cancel(clean(_words(value.reason, "canceled")))
    if isinstance(value, Snooze):
        return value
    return Complete(value)


def from_error(error: BaseException) -> Outcome:
    """A retry; a failure at once when NonRetryable is anywhere in the chain of causes."""
    text = describe(error)
    chain = list(_chain(error))
    if any(isinstance(one, NonRetryable | UndecodablePayload) for one in chain):
        return Fail(text, poison=any(isinstance(one, Poison | UndecodablePayload) for one in chain))
    return Retry(text)


def describe(error: BaseException) -> str:
    """``ValueError: no`` on the first line, the traceback below it; safe to store, never empty.

    Whatever the error's own ``__str__`` does, this does not raise.
    """
    try:
        lines = traceback.format_exception(error)
    except BaseException as trouble:  # boundary: an error that cannot be printed is still an error to be stored
        return clean(f"{type(error).__name__}: (its text could not be made: {type(trouble).__name__})")
    head = "".join(traceback.format_exception_only(error)[-1:]).strip() or type(error).__name__
    if isinstance(error, UndecodablePayload):
        return clean(head.partition(": ")[2] or head)
    return clean(head + "\n" + "".join(lines))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes and contexts, and the members of groups; each once, however they are knotted."""
    seen: set[int] = set()
    todo: list[BaseException] = [error]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            todo.extend(one.exceptions)
        if one.__cause__ is not None:
            todo.append(one.__cause__)
        elif one.__context__ is not None and not one.__suppress_context__:
            todo.append(one.__context__)


def _words(text: object, default: str) -> str:
    try:
        return str(text).strip() or default
    except Exception as trouble:  # boundary: a reason that cannot be printed must not lose the outcome
        return f"{default} (its text could not be made: {type(trouble).__name__})"
