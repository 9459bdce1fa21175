"""Whether a claim may go out now: the flags that are forbidden, and the handler's ``pre_claim``.

A function may say which flags are forbidden: it counts what runs, reads a cache, or queries a database. Both are the
application's code on the worker's loop. When one fails nothing is claimed, because nothing is known to be allowed; the
error is reported in an event, and the code is called again after a pause. A run with ``once`` raises the error after a
number of failures in a row: it must end.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from stowhand.clock import Clock
from stowhand.errors import ConfigurationError, InvalidJob, StowhandError, a_type
from stowhand.events import HookFailed, HookRan, StoreRecovered, StoreTrouble
from stowhand.jobs import limits
from stowhand.jobs.outcomes import awaitable, describe
from stowhand.protocols.attempt import AttemptLogger
from stowhand.protocols.handler import Asking, Claimable, Handler
from stowhand.protocols.options import ONCE_PATIENCE, OUTAGE, Flags
from stowhand.worker.state import WorkerState
from stowhand.worker.supervisor import LAST_WORDS

FLAGS_PATIENCE = 10.0
"""Seconds that an asynchronous function for the forbidden flags may take."""
PreClaim = Callable[[Asking], Awaitable[object]]


class Permit(msgspec.Struct, frozen=True):
    """Permission to send one claim."""

    limit: int
    flags: tuple[str, ...] = ()
    conditions: tuple[Any, ...] = ()


class Pause(msgspec.Struct, frozen=True):
    """Refusal to send a claim; ask again after ``pause`` seconds (``None``: as if there had been no jobs)."""

    pause: float | None = None


class Admission:
    """The rules by which the application permits or refuses a worker's claims."""

    def __init__(self, handler: Handler, state: WorkerState) -> None:
        self._state = state
        self._events = state.events
        self._worker = state.worker
        flags = state.options.forbidden_flags
        self._fixed_flags = () if callable(flags) else flags
        self._flags = flags if callable(flags) else None
        self._pre_claim: PreClaim | None = getattr(handler, "pre_claim", None)
        self._logger = AttemptLogger(state.events.emit, state.worker, "pre_claim", None)
        self._refusals = 0
        """How often the flags were not known, in a row."""
        self._hook_failures = 0
        """How often ``pre_claim`` failed, in a row."""
        self.one_by_one = self._flags is not None or self._pre_claim is not None
        """The last record must have begun, and been counted by the application, before the next claim."""

    async def ask(self, limit: int) -> Permit | Pause:
        """Decide whether a claim may go out, and for what. ``limit``: how many the worker would claim by itself.

        Raises ConfigurationError where the flags' function returned no list; with ``once``, what went on failing.
        """
        flags = self._fixed_flags
        if self._flags is not None:
            try:
                flags = await forbidden(self._flags, self._state.clock)
            except FlagsUnknown as error:
                self._refusals += 1
                pause = OUTAGE(self._refusals)
                self._events.emit(StoreTrouble(self._worker, "forbidden flags", str(error), pause))
                if self._gives_up(self._refusals):
                    raise
                return Pause(pause)
            if self._refusals:
                self._events.emit(StoreRecovered(self._worker, "forbidden flags", self._refusals))
                self._refusals = 0
            limit = min(limit, 1)
        if self._pre_claim is None:
            return Permit(limit, flags)
        answer = await self._call_apart(
            self._pre_claim, Asking(self._worker, self._state.free, len(self._state.running), self._logger)
        )
        if isinstance(answer, BaseException):
            self._events.emit(HookFailed(self._worker, "pre_claim", None, describe(answer)))
            self._hook_failures += 1
            if self._gives_up(self._hook_failures):
                raise StowhandError(f"pre_claim failed {self._hook_failures} times in a row: {describe(answer)}")
            return Pause(self._state.options.poll(is_listening=False))
        self._hook_failures = 0
        if answer is None:
            return Pause()
        return Permit(min(limit, answer.limit), flags, answer.conditions)

    def _gives_up(self, failures: int) -> bool:
        return self._state.options.once and failures > ONCE_PATIENCE and not self._state.running

    async def _call_apart(self, pre_claim: PreClaim, asking: Asking) -> Claimable | BaseException | None:
        """Return the answer of ``pre_claim``, or what it raises.

        It runs in a task of its own: it can neither cancel this one nor ignore its end.
        """
        task = asyncio.ensure_future(self._call(pre_claim, asking))
        try:
            await asyncio.wait((task,))
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=LAST_WORDS)

    async def _call(self, pre_claim: PreClaim, asking: Asking) -> Claimable | BaseException | None:
        began, failed = self._state.clock.monotonic(), True
        try:
            answer = read_answer(await awaitable(pre_claim(asking), "pre_claim"))
            failed = False
            return answer
        except BaseException as error:  # noqa: BLE001 - boundary: reported in an event, and called again after a pause
            return error
        finally:
            if self._events.wants(HookRan):
                took = self._state.clock.monotonic() - began
                self._events.emit(HookRan(self._worker, "pre_claim", "pre_claim", took, failed))


def read_answer(answer: object) -> Claimable | None:
    """Read the answer of ``pre_claim``. ``None``: not now. Raises ConfigurationError for what is no answer."""
    match answer:
        case True:
            return Claimable()
        case False:
            return None
        case Claimable(conditions=conditions, limit=limit):
            if type(limit) is not int or limit < 1:
                raise ConfigurationError(f"pre_claim: a limit of {limit!r}; give a whole number of 1 or more")
            return Claimable(_conditions(conditions), limit)
        case _:
            return Claimable(_conditions(answer if isinstance(answer, list | tuple) else (answer,)))


def _conditions(given: object) -> tuple[Any, ...]:
    conditions = tuple(given) if isinstance(given, list | tuple) else (given,)
    for one in conditions:
        if isinstance(one, str):
            raise ConfigurationError(
                f"pre_claim: a condition is text ({one!r}), which could come from data; write Where(column, operator, "
                f"value), or sql({one!r}, …) with a {{}} for each value"
            )
        if one is None or isinstance(one, bool | int | float | dict):
            raise ConfigurationError(
                f"pre_claim: {one!r} is no answer; return True, False, conditions (Where, sql), or Claimable(…)"
            )
    return conditions


class FlagsUnknown(StowhandError):
    """The function raised, returned something that is no flag, or took too long; the text says which."""


async def forbidden(function: Flags, clock: Clock) -> tuple[str, ...]:
    """Return the flags that this function forbids. Raises FlagsUnknown; ConfigurationError where it gives no list."""
    try:
        answer = _uncancelled(function)
        flags = await _within_patience(answer, clock) if inspect.isawaitable(answer) else answer
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


async def _within_patience(answer: Awaitable[object], clock: Clock) -> object:
    asking = asyncio.ensure_future(answer)
    late = asyncio.Event()
    timer = clock.call_later(FLAGS_PATIENCE, late.set)
    waiting = asyncio.ensure_future(late.wait())
    try:
        await asyncio.wait((asking, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise FlagsUnknown(f"forbidden flags: no answer within {FLAGS_PATIENCE:g} s")
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
