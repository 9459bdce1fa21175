"""The retry rules of a task, ``retry_on`` and ``give_up_on``: which errors are retried. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stowhand.errors import ConfigurationError, Misuse, NonRetryable, StoreUnreachable, a_type
from stowhand.jobs.lifecycle import RaisableOutcome
from stowhand.jobs.outcomes import causes

Errors = type[BaseException] | Iterable[type[BaseException]]
"""An exception type, or several."""
Types = tuple[type[BaseException], ...]


class RetryRules(msgspec.Struct, frozen=True):
    """Retry rules of one task. Errors in the chain of causes count too, as with ``NonRetryable``."""

    retry_on: Types | None
    """Types that are retried; all other errors fail at once. ``None`` retries all but those of ``give_up_on``. An
    unreachable store is always retried."""
    give_up_on: Types
    """Types that fail at once. They take precedence."""

    def final_reason(self, error: BaseException) -> str | None:
        """Return why this error fails the job at once; ``None`` if it is retried."""
        chain = list(causes(error))
        for cause in chain:
            for kind in self.give_up_on:
                if isinstance(cause, kind):
                    return f"give_up_on has {kind.__qualname__}"
        if self.retry_on is None or any(isinstance(cause, (*self.retry_on, StoreUnreachable)) for cause in chain):
            return None
        return f"retry_on has only {_names_of(self.retry_on)}"


def read_retry_rules(retry_on: Errors | None, give_up_on: Errors | None) -> RetryRules | None:
    """Return the rules; ``None`` if there are none. Raises ConfigurationError."""
    if retry_on is None and give_up_on is None:
        return None
    retried_types = None if retry_on is None else _read("retry_on", retry_on)
    final_types = () if give_up_on is None else _read("give_up_on", give_up_on)
    for kind in retried_types or ():
        if issubclass(kind, (NonRetryable, Misuse)):
            raise ConfigurationError(f"retry_on: {kind.__qualname__} is never retried; leave it out")
        for other in final_types:
            if issubclass(kind, other):
                overlap = f"is also in give_up_on ({_names_of([other])})"
                raise ConfigurationError(f"retry_on: {kind.__qualname__} {overlap}; leave it out")
    return RetryRules(retried_types, final_types)


def _read(option: str, types: object) -> Types:
    kinds = tuple(types) if isinstance(types, Iterable) and not isinstance(types, str | bytes) else (types,)
    for kind in kinds:
        if not isinstance(kind, type):
            raise ConfigurationError(f"{option}: got {a_type(kind)} ({kind!r}); use exception types: {_EXAMPLE_TYPES}")
        if not issubclass(kind, BaseException):
            raise ConfigurationError(
                f"{option}: {kind.__qualname__} is not an exception type; use for example {_EXAMPLE_TYPES}"
            )
        if issubclass(kind, RaisableOutcome):
            raise ConfigurationError(f"{option}: {kind.__qualname__} is an outcome, not an error; leave it out")
    if not kinds:
        advice = "to retry nothing, write max_attempts=1" if option == "retry_on" else "leave it out"
        raise ConfigurationError(f"{option}: no exception type; {advice}, or use some: {_EXAMPLE_TYPES}")
    return kinds


_EXAMPLE_TYPES = "ConnectionError, or (ConnectionError, TimeoutError)"


def _names_of(kinds: Iterable[type]) -> str:
    return ", ".join(kind.__qualname__ for kind in kinds)
