"""Backoffs: the wait before the next attempt. Pure; random numbers are injected."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from functools import cache
from typing import cast

from stowhand.errors import ConfigurationError, suggest
from stowhand.jobs.durations import MAX_DURATION_SECONDS, Duration, seconds
from stowhand.jobs.lifecycle import Backoff

__all__ = ["constant", "natural"]

BackoffByError = Callable[[int, BaseException | None], Duration]
"""A backoff by number and error of the attempt. The error is ``None`` after a timeout or a ``Retry``."""
AnyBackoff = Callable[[int], Duration] | BackoffByError
"""Either kind of backoff, distinguished by signature."""
Random = Callable[[], float]
"""A number in [0, 1)."""


def natural(attempt: int) -> float:
    """Return ``exp(min(10, attempt))`` seconds: 2.7 s, 7.4 s, 20 s … 6 h 7 min. The default, as in graphile-worker.

    Rounded to the microsecond, as an interval is in PostgreSQL.
    """
    return round(math.exp(min(10, attempt)), 6)


def exponential(
    base: Duration = 30.0,
    factor: float = 2.0,
    cap: Duration = 3600.0,
    jitter: float = 0.0,
    random: Random = random.random,
) -> Backoff:
    """Return a backoff of ``base * factor ** (attempt - 1)``, at most ``cap``, with ``jitter`` (0.2: ±20 %).

    An ``attempt`` below 1 counts as 1.
    """
    first = _wait(base)
    limit = _wait(cap)
    if not (first >= 0 and limit >= 0 and factor >= 1 and 0 <= jitter <= 1):  # this form also refuses NaN
        raise ConfigurationError("backoff: base and cap must be >= 0, factor >= 1, jitter between 0 and 1")

    def backoff(attempt: int) -> float:
        # The exponent is bounded before the power is taken: factor ** 5000 would raise OverflowError.
        steps = min(max(attempt - 1, 0), 1000.0 / math.log2(factor) if factor > 1 else 0)
        delay = min(first * factor**steps, limit)
        return delay * (1 + jitter * (2 * random() - 1))

    return backoff


def constant(delay: Duration) -> Backoff:
    """Return a backoff with a constant wait. Equal waits return the same function, so that settings compare equal."""
    wait_seconds = _wait(delay)
    if not wait_seconds >= 0:
        raise ConfigurationError("backoff: the wait must not be negative")
    return _constant(wait_seconds)


@cache
def _constant(wait_seconds: float) -> Backoff:
    return lambda attempt: wait_seconds


def _wait(duration: Duration) -> float:
    try:
        return seconds(duration)
    except ValueError as error:
        raise ConfigurationError(f"backoff: {error}") from None


SERVICE_BACKOFF = exponential(base=30.0, factor=2.0, cap=3600.0, jitter=0.2)
"""The preset ``service``: 30 s x 2 up to 1 h, ±20 %."""

BACKOFFS_BY_NAME: dict[str, Backoff] = {"natural": natural, "service": SERVICE_BACKOFF}


def resolve_backoff(backoff: AnyBackoff | str) -> AnyBackoff:
    """Return the policy: a function, or the preset of this name.

    Raises ConfigurationError for an unknown name and for a function with a wrong signature.
    """
    if callable(backoff):
        takes_error(backoff)
        return backoff
    value: object = backoff
    if not isinstance(value, str):
        raise ConfigurationError(
            f"no backoff named {value!r}; for a constant wait write stowhand.retry.constant({value!r})"
        )
    if value not in BACKOFFS_BY_NAME:
        raise ConfigurationError(f"no backoff named {value!r}{suggest(value, BACKOFFS_BY_NAME)}")
    return BACKOFFS_BY_NAME[value]


def wait(backoff: AnyBackoff, attempt: int, error: BaseException | None) -> float:
    """Return the seconds to wait after this attempt, as a plain number.

    Raises the function's errors, and ValueError for an invalid duration.
    """
    if takes_error(backoff):
        duration = cast("BackoffByError", backoff)(attempt, error)
    else:
        duration = cast("Backoff", backoff)(attempt)
    delay = seconds(duration)
    if not delay <= MAX_DURATION_SECONDS:  # this form also refuses NaN
        raise ValueError(f"the backoff of attempt {attempt} returned {delay} s")
    return delay


def takes_error(backoff: AnyBackoff) -> bool:
    """Return whether a backoff takes the error: two parameters without a default, or a second one named ``error``.

    Raises ConfigurationError for any other signature than ``backoff(attempt)`` and ``backoff(attempt, error)``.
    """
    return backoff is not natural and _takes_error(backoff)


def _takes_error(backoff: AnyBackoff) -> bool:
    if inspect.iscoroutinefunction(backoff):
        raise ConfigurationError("backoff: an async function, which would not be awaited; write a plain def")
    try:
        signature = inspect.signature(backoff)
    except ValueError:
        return False  # written in C: the signature is unknown
    for arguments in ((1,), (1, None)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2 or [*signature.parameters][1:2] == ["error"]
    raise ConfigurationError(f"backoff: takes {signature}; write backoff(attempt) or backoff(attempt, error)")
