"""Records of failed attempts. A job keeps the last ten."""

from __future__ import annotations

import traceback
from datetime import datetime
from enum import StrEnum

import msgspec

MAX_KEPT_ATTEMPTS = 10
"""Records per job; adding one deletes the oldest beyond this number."""
MAX_ERROR_CLASS_CHARACTERS = 200
"""Maximum length of ``FailedAttempt.error_class``."""
WORKER_DIED = "WorkerDied"
BY_HAND = "by hand"
TIMED_OUT = "TimedOut"
"""Error classes that are not Python classes. Only built-in classes are stored without a module, so none clash."""

_MAX_EXCERPT_BYTES = 1024
_HEAD_CHARACTERS = 160
_TAIL_CHARACTERS = 800


class AttemptEnd(StrEnum):
    """The way an attempt ended without completing."""

    ERROR = "error"
    TIMEOUT = "timeout"
    RESET = "reset"
    """Its worker was lost, or its lease expired."""
    CANCELED = "canceled"
    BY_HAND = "by hand"
    """A call failed the job. ``number`` is the count of attempts until then."""


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that did not complete. Snoozed and returned attempts are not recorded."""

    number: int
    """Number of the attempt in its round, from 1. It repeats after a reset, which does not count the attempt."""
    round: int = 1
    """Number of the round. A manual retry, or a newer job with the same key, starts one if the job has records."""
    worker: str | None = None
    """``None`` if no worker was running the job."""
    started_at: datetime | None = None
    ended_at: datetime
    outcome: AttemptEnd
    error_class: str | None = None
    """The dotted path of the exception's class, or ``WORKER_DIED``, ``BY_HAND`` or ``TIMED_OUT``. ``None`` if it is not
    known, as when a handler returned ``Fail``."""
    error: str | None = None
    """The first line of the error and the end of its traceback. The job's ``last_error`` has the latest full text."""


def attempt_end(state: str, error_class: str | None) -> AttemptEnd:
    """Return the end of an attempt by the state that the worker requested: errored, failed or canceled."""
    if state == "canceled":
        return AttemptEnd.CANCELED
    return AttemptEnd.TIMEOUT if error_class == TIMED_OUT else AttemptEnd.ERROR


def error_title(error: BaseException) -> str:
    """Return class and text of an error, such as ``httpx.ConnectError: no route``."""
    # Notes are indented or come later, and so are the leading lines of a SyntaxError.
    titles = [line for line in traceback.format_exception_only(error) if not line.startswith(" ")]
    return "".join(titles[:1]).strip() or type(error).__name__


def class_path(error: BaseException) -> str:
    """Return ``httpx.ConnectError``, or the name alone for a built-in class. The end of a long path is kept."""
    kind = type(error)
    module = str(kind.__module__)
    path = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    return path.encode("utf-8", "replace").decode().replace("\x00", "?")[-MAX_ERROR_CLASS_CHARACTERS:]


def last_frames(text: str) -> str:
    """Return at most 1 KiB of an error text: its first line and its end.

    Lengths are in characters, a quarter of them if some are not ASCII, as in SQL.
    """
    if len(raw := text.encode()) <= _MAX_EXCERPT_BYTES:
        return text
    tail = _TAIL_CHARACTERS if len(raw) == len(text) else _TAIL_CHARACTERS // 4
    head = _HEAD_CHARACTERS if len(raw) == len(text) else _HEAD_CHARACTERS // 4
    return f"{text.partition(chr(10))[0][:head]}\n[...]\n{text[-tail:]}"
