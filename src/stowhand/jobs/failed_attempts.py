"""Entries of attempts that did not complete. The last ten are kept with their job."""

from __future__ import annotations

import traceback
from datetime import datetime
from enum import StrEnum

import msgspec

MAX_KEPT_ATTEMPTS = 10
"""Entries of a job; older ones go when one is added."""
CLASS_LIMIT = 200
"""Characters of ``Try.error_class``."""
WORKER_DIED = "WorkerDied"
BY_HAND = "by hand"
TIMED_OUT = "TimedOut"
"""No classes of Python's, and not to be taken for one: only of a built-in class is no module named."""

_MAX_EXCERPT_BYTES = 1024
_HEAD_CHARACTERS = 160
_TAIL_CHARACTERS = 800


class AttemptEnd(StrEnum):
    """How an attempt ended."""

    ERROR = "error"
    TIMEOUT = "timeout"
    RESET = "reset"
    """Its worker died, or its lease ended."""
    CANCELED = "canceled"
    BY_HAND = "by hand"
    """The job was failed by a call that acts on jobs: ``number`` attempts had begun until then."""


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that did not complete. Snoozes and returned attempts leave none."""

    number: int
    """1, 2, … in its round; the same number again after a reset, which gives the attempt back."""
    round: int = 1
    """1, 2, …: a retry by hand, or a newer job with its key, begins a new one where the job has entries."""
    worker: str | None = None
    """``None``: nobody ran it when it ended."""
    started_at: datetime | None = None
    ended_at: datetime
    outcome: AttemptEnd
    error_class: str | None = None
    """The dotted path of the exception's class; ``WORKER_DIED``, ``BY_HAND``, ``TIMED_OUT``; ``None``: it is not known,
    as where a handler returned ``Fail``."""
    error: str | None = None
    """The error's first line, and the end of its traceback. The newest whole text is the job's ``last_error``."""


def attempt_end(state: str, error_class: str | None) -> AttemptEnd:
    """``state``: of the settlement, as the worker asked for it: errored, failed or canceled."""
    if state == "canceled":
        return AttemptEnd.CANCELED
    return AttemptEnd.TIMEOUT if error_class == TIMED_OUT else AttemptEnd.ERROR


def error_title(error: BaseException) -> str:
    """``httpx.ConnectError: no route``: class and text of an error, in one line where the text is one."""
    # Notes are indented or come later; of a SyntaxError the lines before it are indented.
    titles = [line for line in traceback.format_exception_only(error) if not line.startswith(" ")]
    return "".join(titles[:1]).strip() or type(error).__name__


def class_path(error: BaseException) -> str:
    """``httpx.ConnectError``; of a built-in class its name alone. Of a long path the end is kept."""
    kind = type(error)
    module = str(kind.__module__)
    path = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    return path.encode("utf-8", "replace").decode().replace("\x00", "?")[-CLASS_LIMIT:]


def last_frames(text: str) -> str:
    """At most 1 KiB of an error text: its first line, and its end.

    Counted in characters, fewer where some are not ASCII: SQL cuts by the same rule.
    """
    if len(raw := text.encode()) <= _MAX_EXCERPT_BYTES:
        return text
    tail = _TAIL_CHARACTERS if len(raw) == len(text) else _TAIL_CHARACTERS // 4
    head = _HEAD_CHARACTERS if len(raw) == len(text) else _HEAD_CHARACTERS // 4
    return f"{text.partition(chr(10))[0][:head]}\n[...]\n{text[-tail:]}"
