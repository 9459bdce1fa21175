"""Which flags are forbidden just now, where a function says it, which is called before every claim.

It may count what runs, read a cache, or query a database: it is the application's code on the worker's loop.
When it fails nothing is claimed, because nothing is known to be allowed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable

from stowhand.clock import Clock
from stowhand.errors import ConfigurationError, InvalidJob, StowhandError, a_type
from stowhand.jobs import limits
from stowhand.jobs.outcomes import describe
from stowhand.protocols.options import Flags

PATIENCE = 10.0
"""Seconds that an asynchronous function may take."""
LAST_WORDS = 1.0
"""Seconds that it, or a hook, has to end once it is cancelled; then it is left behind."""


class FlagsUnknown(StowhandError):
    """The function raised, returned something that is no flag, or took too long; the text says which."""


class ForbiddenFlags:
    """``await now()`` before every claim. The answer may change with every job, so jobs are claimed one by one."""

    def __init__(self, function: Flags, clock: Clock) -> None:
        self._function = function
        self._clock = clock

    async def now(self) -> tuple[str, ...]:
        """The flags. Raises FlagsUnknown, and ConfigurationError where the answer is no list of flags."""
        try:
            answer = _uncancelled(self._function)
            flags = await self._within(answer) if inspect.isawaitable(answer) else answer
        except FlagsUnknown:
            raise
        except Exception as error:  # boundary: reported in an event, and called again after a pause
            raise FlagsUnknown(describe(error)) from error
        if isinstance(flags, str | bytes) or not isinstance(flags, Iterable | None):
            raise ConfigurationError(
                f"forbidden_flags: the function returned {a_type(flags)}; return a list of flags, or None"
            )
        try:
            return limits.read_forbidden(flags)
        except InvalidJob as error:  # a flag that came from data
            raise FlagsUnknown(str(error)) from error

    async def _within(self, answer: Awaitable[object]) -> object:
        asking = asyncio.ensure_future(answer)
        late = asyncio.Event()
        timer = self._clock.call_later(PATIENCE, late.set)
        waiting = asyncio.ensure_future(late.wait())
        try:
            await asyncio.wait((asking, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise FlagsUnknown(f"forbidden flags: no answer within {PATIENCE:g} s")
            return _uncancelled(asking.result)
        finally:
            timer.cancel()
            waiting.cancel()
            asking.cancel()
            await asyncio.wait((asking, waiting), timeout=LAST_WORDS)


def _uncancelled(call: Callable[[], object]) -> object:
    """A cancellation that the function raises is its own mistake, and does not cancel the worker."""
    try:
        return call()
    except asyncio.CancelledError as error:
        raise FlagsUnknown("forbidden flags: the answer was cancelled") from error
