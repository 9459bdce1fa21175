"""How long to wait before another attempt. Pure; random numbers are injected."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import timedelta
from functools import cache

from stowhand.errors import ConfigurationError, suggest
from stowhand.jobs.durations import seconds
from stowhand.jobs.lifecycle import Backoff

Random = Callable[[], float]
"""A number in [0, 1)."""


def natural(attempt: int) -> float:
    """``exp(least(10, attempt))`` seconds: 2.7 s, 7.4 s, 20 s … 6 h 7 min. The default; graphile-worker's table.

    Rounded to the microsecond, as an interval is in PostgreSQL.
    """
    return round(math.exp(min(10, attempt)), 6)


def exponential(
    base: timedelta | float = 30.0,
    factor: float = 2.0,
    cap: timedelta | float = 3600.0,
    jitter: float = 0.0,
    random: Random = random.random,
) -> Backoff:
    """``base * factor ** (attempt - 1)``, at most ``cap``, give or take the share ``jitter`` (0.2: ±20 %).

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


def constant(delay: timedelta | float) -> Backoff:
    """The same wait every time; the same function for the same wait, so that two settings with it are equal."""
    every = _wait(delay)
    if not every >= 0:
        raise ConfigurationError("backoff: a wait of 0 or more")
    return _always(every)


@cache
def _always(every: float) -> Backoff:
    return lambda attempt: every


def _wait(given: timedelta | float) -> float:
    try:
        return seconds(given)
    except ValueError as error:
        raise ConfigurationError(f"backoff: {error}") from None


SERVICE = exponential(base=30.0, factor=2.0, cap=3600.0, jitter=0.2)
"""The preset ``service``: 30 s x 2 up to 1 h, ±20 %."""

PRESETS: dict[str, Backoff] = {"natural": natural, "service": SERVICE}


def named(policy: Backoff | str) -> Backoff:
    """The policy: a function, or the preset of this name. Raises ConfigurationError."""
    if callable(policy):
        return policy
    try:
        return PRESETS[policy]
    except (KeyError, TypeError):
        raise ConfigurationError(f"no backoff named {policy!r}{suggest(policy, PRESETS)}") from None
