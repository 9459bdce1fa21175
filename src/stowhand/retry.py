"""How long to wait before another attempt. Pure; random numbers are injected."""

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
"""The same, of the attempt's number and of what it raised; ``None``: it raised nothing (a timeout, a ``Retry``)."""
AnyBackoff = Callable[[int], Duration] | BackoffByError
"""What an application may give. Which of the two it is, its signature says."""
Random = Callable[[], float]
"""A number in [0, 1)."""


def natural(attempt: int) -> float:
    """``exp(least(10, attempt))`` seconds: 2.7 s, 7.4 s, 20 s … 6 h 7 min. The default; graphile-worker's table.

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

    Below 1 an ``attempt`` counts as the first.
    """
    first, most = _wait(base), _wait(cap)
    if not (first >= 0 and most >= 0 and factor >= 1 and 0 <= jitter <= 1):  # in this form it refuses NaN too
        raise ConfigurationError("backoff: base and cap >= 0, factor >= 1, jitter between 0 and 1")

    def backoff(attempt: int) -> float:
        # The exponent is bounded before the power is taken: factor ** 5000 would raise OverflowError.
        steps = min(max(attempt - 1, 0), 1000.0 / math.log2(factor) if factor > 1 else 0)
        delay = min(first * factor**steps, most)
        return delay * (1 + jitter * (2 * random() - 1))

    return backoff


def constant(delay: Duration) -> Backoff:
    """Return a backoff with the same wait every time; the same function for the same wait, so settings are equal."""
    every = _wait(delay)
    if not every >= 0:
        raise ConfigurationError("backoff: a wait of 0 or more")
    return _always(every)


@cache
def _always(every: float) -> Backoff:
    return lambda attempt: every


def _wait(given: Duration) -> float:
    try:
        return seconds(given)
    except ValueError as error:
        raise ConfigurationError(f"backoff: {error}") from None


SERVICE = exponential(base=30.0, factor=2.0, cap=3600.0, jitter=0.2)
"""The preset ``service``: 30 s x 2 up to 1 h, ±20 %."""

PRESETS: dict[str, Backoff] = {"natural": natural, "service": SERVICE}


def named(policy: AnyBackoff | str) -> AnyBackoff:
    """Return the policy: a function, or the preset of this name.

    Raises ConfigurationError, also for a function that takes other arguments than it is called with.
    """
    if callable(policy):
        takes_error(policy)
        return policy
    given: object = policy
    if not isinstance(given, str):
        raise ConfigurationError(
            f"no backoff named {given!r}; for the same wait every time: stowhand.retry.constant({given!r})"
        )
    if given not in PRESETS:
        raise ConfigurationError(f"no backoff named {given!r}{suggest(given, PRESETS)}")
    return PRESETS[given]


def wait(backoff: AnyBackoff, attempt: int, error: BaseException | None) -> float:
    """Return the seconds to wait after this attempt. Raises what the function raises; ValueError for no duration.

    A plain number, whatever kind of number or duration the function gave: no store has to know a ``Decimal``.
    """
    if takes_error(backoff):
        given = cast("BackoffByError", backoff)(attempt, error)
    else:
        given = cast("Backoff", backoff)(attempt)
    delay = seconds(given)
    if not delay <= MAX_DURATION_SECONDS:  # in this form it refuses NaN too
        raise ValueError(f"the backoff of attempt {attempt} gave {delay} s")
    return delay


def takes_error(backoff: AnyBackoff) -> bool:
    """Whether it is called as ``backoff(attempt, error)``: it has two parameters without a default, or a second one
    called ``error``. Raises ConfigurationError where it takes neither these nor the attempt's number alone."""
    return backoff is not natural and _takes_error(backoff)


def _takes_error(backoff: AnyBackoff) -> bool:
    if inspect.iscoroutinefunction(backoff):
        raise ConfigurationError("backoff: an async function given; it is called, not awaited: write a plain def")
    try:
        signature = inspect.signature(backoff)
    except ValueError:
        return False  # written in C: its signature is not known
    for arguments in ((1,), (1, None)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2 or [*signature.parameters][1:2] == ["error"]
    raise ConfigurationError(f"backoff: takes {signature}; write backoff(attempt), or backoff(attempt, error)")
